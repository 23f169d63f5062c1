"""An archive's table in Iceberg: a commit for each batch, and one for each merge of small files.

How far the archive has come is a property of the table and changes in the commit that adds the files, which the catalog
takes only if nobody else has committed since we looked. A file that a merge has replaced is kept for an hour, for those
who read the table as it was.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines.archived import NOTHING, from_text, to_text
from penstock.spark.pipelines.data_files import DataFile
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json
from penstock.spark.pipelines.merging import FileSizes, SizedFile, due, merge
from penstock.spark.pipelines.table_schema import RECORD, evolved

log = logging.getLogger(__name__)

ARCHIVE_ID = "penstock.archive"
_ARCHIVED = "penstock.archived"
_SCHEMA = "penstock.schema"
_LAST_DAY = date.max.isoformat()
_TRIES = 5
_KEEP_REPLACED_MS = 3_600_000
_KEPT_SNAPSHOTS = 300
_EXPIRED_AT_ONCE = 50


class IcebergTable:
    def __init__(self, spark: SparkSession, files: Files, table: Table) -> None:
        self._spark = spark
        self._files = files
        self._table = table
        self._days: set[str] = set()
        self._attempts: dict[str, str] = {}
        self._has_left_overs = False

    @property
    def archived(self) -> StreamOffsets:
        text = self._table.properties.get(_ARCHIVED)
        return NOTHING if text is None else from_text(text, f"{self._name}: {_ARCHIVED}")

    @property
    def schema(self) -> StructType:
        text = self._table.properties.get(_SCHEMA)
        return RECORD if text is None else StructType.fromJson(json.loads(text))

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def evolve(self, schema: StructType) -> None:
        wanted = evolved(self.schema, schema)
        if wanted == self.schema and _SCHEMA in self._table.properties:
            return
        with self._table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(to_arrow_schema(wanted, timezone="UTC"))
            transaction.set_properties({_SCHEMA: wanted.json()})

    # Batches

    def begin(self) -> None:
        self._has_left_overs = bool(self._files.list(self._attempt_notes))

    def attempt(self, name: str) -> str:
        """Noted, so that the files of one that is killed can be found and removed."""
        unique = f"{name}-{uuid4().hex[:8]}"
        self._files.make_directory(self._attempt_notes)
        note = joined(self._attempt_notes, unique)
        self._files.create(note, "")
        directory = joined(self._table.location(), "data", unique)
        self._attempts[directory] = note
        return directory

    def commit(self, directory: str, files: Sequence[DataFile], archived: StreamOffsets) -> None:
        based_on = self.archived
        self._check_days(directory, files)
        for _ in range(_TRIES):
            try:
                with self._table.transaction() as transaction:
                    self._add(transaction, files)
                    transaction.set_properties({_ARCHIVED: to_text(archived)})
                break
            except CommitFailedException:
                # A merge by another program changes nothing that we rest on; another archive would.
                self._table.refresh()
                if self.archived != based_on:
                    self.give_up(directory)
                    raise PipelineError(f"another query writes to the table {self._name}: one at a time") from None
        else:
            raise PipelineError(f"the table {self._name} changes too often to be committed to")
        self._days |= {file.day for file in files}
        self._settled(directory)

    def give_up(self, directory: str) -> None:
        self._files.delete(directory)
        self._files.delete(self._attempts.pop(directory))

    def _add(self, transaction: Transaction, files: Iterable[DataFile]) -> None:
        transaction.add_files([file.path for file in files], check_duplicate_files=False)

    def _check_days(self, directory: str, files: Iterable[DataFile]) -> None:
        """Producers may write any time, and Python, in which pyiceberg reckons, ends with the year 9999."""
        for file in files:
            if len(file.day) > len(_LAST_DAY):
                where = ", ".join(f"{each} offsets {first} to {last}" for each, (first, last) in file.offsets.items())
                self.give_up(directory)
                raise PipelineError(
                    f"records with times of {file.day} cannot be in an Iceberg table, which ends at {_LAST_DAY}: some "
                    f"of {where}; --format parquet takes them, message.timestamp.after.max.ms keeps them out of a topic"
                )

    def _settled(self, directory: str) -> None:
        """What this process has done is done; what a process that was killed has left can go, since nobody else can
        commit it any more: the table has changed.
        """
        self._files.delete(self._attempts.pop(directory))
        if not self._has_left_overs:
            return
        self._has_left_overs = False
        left = [entry for entry in self._files.list(self._attempt_notes) if not entry.name.startswith(".")]
        in_use = {path.removeprefix(self._data).split("/", 1)[0] for path in self.files()} if left else set()
        for entry in left:
            if entry.name not in in_use:
                self._files.delete(self._data + entry.name)
            self._files.delete(entry.path)

    @property
    def _data(self) -> str:
        return joined(self._table.location(), "data", "")

    @property
    def _attempt_notes(self) -> str:
        return joined(self._table.location(), "attempts")

    # Merging

    def tidy(self, sizes: FileSizes, is_last: bool) -> None:
        live = {file.file_path: (day, file) for day in sorted(self._days) for file in self._files_of(day)}
        self._days.clear()
        found = [SizedFile(path, day, file.file_size_in_bytes, file.record_count) for path, (day, file) in live.items()]
        small = due(found, sizes)
        if small:
            self._merge(small, [live[file.path][1] for file in small], sizes)
        self._expire_snapshots()
        self._remove_replaced()

    def _files_of(self, day: str) -> list[IcebergFile]:
        first = date.fromisoformat(day)
        if day == _LAST_DAY:  # no day comes after it, and nothing of it is merged
            return []
        begins, ends = (datetime.combine(each, datetime.min.time(), UTC) for each in (first, first + timedelta(days=1)))
        of_day = And(
            GreaterThanOrEqual("timestamp", begins.isoformat()),  # type: ignore[call-arg, arg-type]
            LessThan("timestamp", ends.isoformat()),  # type: ignore[call-arg, arg-type]
        )
        number = (first - date(1970, 1, 1)).days
        return [
            task.file for task in self._table.scan(row_filter=of_day).plan_files() if task.file.partition[0] == number
        ]

    def _merge(self, small: Sequence[SizedFile], live: Sequence[IcebergFile], sizes: FileSizes) -> None:
        begun_s = time.monotonic()
        directory = self.attempt("merged")
        merged = merge(self._spark, self._files, small, self.schema, directory, sizes)
        note = self._note_replaced(small)
        try:
            with self._table.transaction() as transaction, transaction.update_snapshot().overwrite() as replace:
                for old in live:
                    replace.delete_data_file(old)
                for new in merged:
                    replace.append_data_file(
                        parquet_file_to_data_file(self._table.io, transaction.table_metadata, new.path)
                    )
        except CommitFailedException:
            self._table.refresh()
            self.give_up(directory)
            self._files.delete(note)
            log.info("merge given up, somebody else has committed", extra={"table": self._name})
            return
        self._files.delete(self._attempts.pop(directory))
        facts = {"table": self._name, "files": len(small), "into": len(merged)}
        log.info("small files merged", extra=facts | {"ms": round((time.monotonic() - begun_s) * 1_000)})

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table.scan().plan_files()]

    # What merges have replaced

    @property
    def _replaced_notes(self) -> str:
        return joined(self._table.location(), "replaced")

    def _note_replaced(self, group: Sequence[SizedFile]) -> str:
        self._files.make_directory(self._replaced_notes)
        note = joined(self._replaced_notes, f"{_now_ms():015}-{uuid4().hex[:8]}.json")
        self._files.create(note, json.dumps({"files": [file.path for file in group]}))
        return note

    def _expire_snapshots(self, at_least: int = _EXPIRED_AT_ONCE) -> None:
        """The table's metadata, which every commit writes anew, has a line for each."""
        newest_first = sorted(self._table.snapshots(), key=lambda each: each.timestamp_ms, reverse=True)
        before_ms = _now_ms() - _KEEP_REPLACED_MS
        old = [
            each.snapshot_id
            for number, each in enumerate(newest_first)
            if number and (number >= _KEPT_SNAPSHOTS or each.timestamp_ms < before_ms)
        ]
        if len(old) >= at_least:
            self._table.maintenance.expire_snapshots().by_ids(old).commit()
            self._table.refresh()

    def _remove_replaced(self) -> None:
        """Files that nobody reads any more, with the snapshots that had them."""
        before_ms = _now_ms() - _KEEP_REPLACED_MS
        old = [
            entry
            for entry in self._files.list(self._replaced_notes)
            if entry.name[:15].isdigit() and int(entry.name[:15]) < before_ms
        ]
        if not old:
            return
        self._expire_snapshots(at_least=1)
        live = set(self.files())  # a merge whose commit failed has replaced nothing
        for entry in old:
            for path in (read_json(self._files, entry.path) or {}).get("files", []):
                if path not in live:
                    self._files.delete(path)
            self._files.delete(entry.path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
