"""Topics to a table, by day: Iceberg or plain Parquet, every record once, whatever is killed on the way.

A batch is what the source has read; its files are committed together with how far the archive has come (archive_table).
If values are taken apart, those that cannot be go to the quarantine table with the reason, and it is committed first:
the archive is behind then, and the batch is done again, but for what is there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.core.ids import TopicId
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines import archive_home, archived, checkpoints
from penstock.spark.pipelines.archive_home import DEFAULT_TABLE, ArchiveHome
from penstock.spark.pipelines.archive_table import ArchiveTable, open_table
from penstock.spark.pipelines.behind import Followed
from penstock.spark.pipelines.data_files import DataFile, write_by_day, written_files
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, read_json
from penstock.spark.pipelines.merging import FileSizes
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.running import DEFAULT_INTERVAL_S, Ended, Running, run
from penstock.spark.pipelines.table_schema import QUARANTINED, REASON, evolved, records_of, with_fields
from penstock.spark.pipelines.topics import Brokers, TopicSource, read_options
from penstock.spark.pipelines.values import ValueFormat, taken_apart, value_format

log = logging.getLogger(__name__)

DEFAULT_MAX_PER_BATCH = 4_000_000
_MAX_PER_TASK = 500_000


def plan_archive(
    spark: SparkSession,
    *,
    bootstrap: str,
    topics: Sequence[str],
    to: str,
    format: str = "iceberg",
    table: str = DEFAULT_TABLE,
    kafka: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    value: str | None = None,
    schema: str | Sequence[str] = (),
    checkpoint: str | None = None,
    follow: bool = False,
    interval_s: float = DEFAULT_INTERVAL_S,
    max_per_batch: int = DEFAULT_MAX_PER_BATCH,
    sizes: FileSizes | None = None,
    skip_lost: bool = False,
) -> ArchivePlan:
    """Archives what the topics have now, or goes on until it is stopped. Raises PipelineError, WireError.

    `format` is iceberg or parquet; `catalog` is properties of pyiceberg's catalog, if it is not the archive's own;
    `value` is json or avro, and `schema` its fields, as columns, JSON or a file, if values are to be taken apart.
    Records that the broker has deleted before they were archived are an error, unless `skip_lost` passes over them.
    """
    files = Files(spark)
    schemas = [schema] if isinstance(schema, str) else list(schema)
    if schemas and value is None:
        raise PipelineError("a schema is for values that are taken apart: say what they are, json or avro")
    home = archive_home.planned(files, to, format, table)
    source = TopicSource(
        Brokers(bootstrap, kafka or {}),
        tuple(dict.fromkeys(topics)),
        read_options(max_per_batch, skip_lost) | {"maxRecordsPerPartition": str(_MAX_PER_TASK)},
    )
    plan = ArchivePlan(
        spark=spark,
        source=source,
        home=home,
        catalog=catalog or {},
        value=None if value is None else value_format(files, value, schemas),
        checkpoint=files.qualified(checkpoint or home.checkpoint),
        follow=follow,
        interval_s=interval_s,
        sizes=sizes or FileSizes(),
    )
    plan.check()
    return plan


archive = carried_out("archive", plan_archive)


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    spark: SparkSession
    source: TopicSource
    home: ArchiveHome
    catalog: Mapping[str, str]
    value: ValueFormat | None
    checkpoint: str
    follow: bool
    interval_s: float
    sizes: FileSizes

    def check(self) -> None:
        """Raises PipelineError, WireError."""
        self.source.check()
        checkpoints.check(Files(self.spark), self.checkpoint, self._purpose(self.home))
        self._check_topics()
        table = open_table(self.spark, self.home, self.home.table, None, self.catalog)
        if table is not None:
            evolved(table.schema, self._schema())
            archived.with_topics(table.archived, self._topic_ids())
            self._check_values(table)
        self._followed().check(archived.NOTHING if table is None else table.archived)

    def _check_topics(self) -> None:
        """What a query does not read any more is lost to it, and --skip-lost would pass over more than that."""
        read = checkpoints.committed(Files(self.spark), self.checkpoint)
        left = {partition.topic for partition in read.offsets} - set(self.source.topics) if read is not None else set()
        if left:
            raise PipelineError(
                f"the checkpoint {self.checkpoint} has read {', '.join(sorted(left))}, and that is not to be archived "
                "now: --checkpoint takes another directory, and with a new one it goes on where the archive ends"
            )

    def _check_values(self, table: ArchiveTable) -> None:
        """A run that was killed between the two tables has put aside what others may be able to read, or the other way
        round: a record would be in both, or in neither.
        """
        quarantine = open_table(self.spark, self.home, self.home.quarantine, None, self.catalog)
        if quarantine is None or not archived.is_ahead(quarantine.archived, table.archived):
            return
        last = read_json(Files(self.spark), self.home.values)
        if last is not None and last != self._values():
            raise PipelineError(
                f"the last run of the archive {self.home.path} was killed in the middle of a batch, with values taken "
                f"apart in another way: run it once more as it was, {last['told']}, and then with this schema"
            )

    def _values(self) -> dict[str, object]:
        """As the archive notes it for the next run."""
        if self.value is None:
            return {"told": "without a schema"}
        return {**self.value.to_json(), "told": str(self.value)}

    def lines(self) -> Lines:
        partitions = self.source.check()
        table = open_table(self.spark, self.home, self.home.table, None, self.catalog)
        begun = archived.NOTHING if table is None else table.archived
        lines = [("archive", f"{self.home.path} ({self.home.format}, table {self.home.table})")]
        for topic, count in partitions.items():
            records = sum(end for partition, end in begun.offsets.items() if partition.topic == topic)
            told = f"from offset {records:,} in all" if records else "from the first record"
            lines.append(("topic", f"{topic}, {count} partitions, {told}"))
        if self.value is not None:
            lines.append(("values", str(self.value)))
            lines.append(("quarantine", self.home.quarantine))
        lines.append(("checkpoint", self.checkpoint))
        lines.append(("runs", f"until it is stopped, every {self.interval_s:g} s" if self.follow else "once"))
        return lines

    def run(self) -> Ended:
        files = Files(self.spark)
        home = archive_home.made(files, self.home)
        checkpoints.claim(files, self.checkpoint, self._purpose(home))
        table = self._opened(home, home.table, self._schema())
        quarantine = None if self.value is None else self._opened(home, home.quarantine, QUARANTINED)
        files.write(home.values, json.dumps(self._values(), indent=2))
        archiver = _Archiver(files, table, quarantine, self.value, self._topic_ids(), self.sizes)
        begun = archived.starting_offsets(table.archived, self.source.check())
        source = TopicSource(self.source.brokers, self.source.topics, {**self.source.options, "startingOffsets": begun})
        writer = source.stream(self.spark).writeStream.foreachBatch(archiver.archive)
        name = f"archive {', '.join(self.source.topics)}"
        ended = run(writer, Running(name, self.checkpoint, self.follow, self.interval_s, archiver.rows_of))
        archiver.tidy(is_last=True)
        self._followed().write_down(table.archived)
        return ended

    def _followed(self) -> Followed:
        return Followed(self.spark, self.source, self.checkpoint, f"the archive {self.home.path}", self.home.read)

    def _opened(self, home: ArchiveHome, name: str, schema: StructType) -> ArchiveTable:
        table = open_table(self.spark, home, name, schema, self.catalog)
        assert table is not None, "a table that has a schema to be made with is made"
        table.begin()
        return table

    def _schema(self) -> StructType:
        return with_fields(None if self.value is None else self.value.fields)

    def _topic_ids(self) -> dict[str, TopicId]:
        return {name: topic.id for name, topic in self.source.brokers.topics(self.source.topics).items()}

    def _purpose(self, home: ArchiveHome) -> dict[str, str]:
        return {"pipeline": "archive", "archive": home.id}


class _Archiver:
    """What is done with each batch."""

    def __init__(
        self,
        files: Files,
        table: ArchiveTable,
        quarantine: ArchiveTable | None,
        value: ValueFormat | None,
        topic_ids: Mapping[str, TopicId],
        sizes: FileSizes,
    ) -> None:
        self._rows: dict[int, int] = {}
        self._files = files
        self._table = table
        self._quarantine = quarantine
        self._value = value
        self._topic_ids = topic_ids
        self._sizes = sizes
        self._files_since = 0

    def archive(self, batch: DataFrame, batch_id: int) -> None:
        """Nearly every batch begins where the archive ends, so it is written as it comes. Its files tell when it does
        not, after a kill or with a checkpoint that is older than the archive: then without what is archived.
        """
        records = records_of(batch)
        written = self._written(records, batch_id)
        if archived.has_any_of(self._table.archived, written.files):
            written.give_up()
            written = self._written(archived.without_archived(records, self._table.archived), batch_id)
        self._rows[batch_id] = sum(file.rows for file in written.files)
        self._commit(written, batch_id)
        if self._files_since >= self._sizes.small_files:
            self.tidy(is_last=False)

    def rows_of(self, batch_id: int) -> int | None:
        """Asked for once."""
        return self._rows.pop(batch_id, None)

    def _written(self, records: DataFrame, batch_id: int) -> _Written:
        """Those that can be read are written in one go; those that cannot, if there are any, in another."""
        if self._value is None or self._quarantine is None:
            return _Written(self._attempt(self._table, records, batch_id))
        taken, seen = taken_apart(records, self._value), Observation()
        counted = taken.observe(seen, F.count_if(F.col(REASON).isNotNull()).alias("bad"))
        good = self._attempt(self._table, counted.where(F.col(REASON).isNull()).drop(REASON), batch_id)
        if not seen.get.get("bad"):
            return _Written(good)
        unreadable = taken.where(F.col(REASON).isNotNull()).select(*QUARANTINED.fieldNames())
        if not archived.is_ahead(self._quarantine.archived, self._table.archived):
            return _Written(good, self._attempt(self._quarantine, unreadable, batch_id))
        # A run was killed between the two: what it had put aside is there.
        fresh = archived.without_archived(unreadable, self._quarantine.archived)
        return _Written(good, self._attempt(self._quarantine, fresh, batch_id), archived.ends_of(unreadable))

    def _attempt(self, table: ArchiveTable, records: DataFrame, batch_id: int) -> _Attempt:
        directory = table.attempt(str(batch_id))
        write_by_day(records, directory)
        return _Attempt(table, directory, written_files(self._files, directory))

    def _commit(self, written: _Written, batch_id: int) -> None:
        good, bad = written.good, written.bad
        if bad is not None and bad.files:
            bad.table.commit(bad.directory, bad.files, archived.after(bad.table.archived, bad.files))
            facts = {"batch": batch_id, "rows": sum(file.rows for file in bad.files)}
            log.warning("values that cannot be read are in quarantine", extra=facts)
        elif bad is not None:
            bad.give_up()
        ends = archived.furthest(archived.after(good.table.archived, written.files), written.put_aside)
        if ends == good.table.archived:
            good.give_up()
            return
        good.table.commit(good.directory, good.files, archived.with_topics(ends, self._topic_ids))
        self._files_since += len(good.files)

    def tidy(self, is_last: bool) -> None:
        self._files_since = 0
        for table in (self._table, self._quarantine):
            if table is not None:
                table.tidy(self._sizes, is_last)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Files that are not committed."""

    table: ArchiveTable
    directory: str
    files: Sequence[DataFile]

    def give_up(self) -> None:
        self.table.give_up(self.directory)


@dataclass(frozen=True, slots=True)
class _Written:
    """What a batch has written: what could be read, and what could not."""

    good: _Attempt
    bad: _Attempt | None = None
    put_aside: StreamOffsets = archived.NOTHING
    """How far what could not be read goes, where some of it was in quarantine before."""

    @property
    def files(self) -> Sequence[DataFile]:
        return self.good.files if self.bad is None else (*self.good.files, *self.bad.files)

    def give_up(self) -> None:
        self.good.give_up()
        if self.bad is not None:
            self.bad.give_up()
