"""An archive's table as plain Parquet: directories by day that anything can read, with nothing twice and nothing half.

Files that can be seen are never changed and never removed, and each appears in one step. So small ones are not made
visible at all: batches lie under `_penstock/fresh`, in files that nobody lists who does not know better, until there is
enough of them, or some time has passed, or the run ends; then they are merged into files of a good size, and those are
moved to where they are seen. What is fresh, what is to be moved and how far the archive has come is in the table's
state: a small file with a number, of which only one with each number can be made. Whoever is killed between the state
and the moves has them made by the run that follows.

    <table>/day=2026-01-31/000000000042-0.parquet   seen by everybody
    <table>/_penstock/state/000000000042.json       the state, of which the highest number counts
    <table>/_penstock/fresh/17-3f9c1a2b/day=...     files of a batch
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines.archived import NOTHING, from_text, to_text
from penstock.spark.pipelines.data_files import DAY, DataFile, inside
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined, read_json
from penstock.spark.pipelines.merging import FileSizes, SizedFile, merge
from penstock.spark.pipelines.table_schema import evolved

log = logging.getLogger(__name__)

_KEPT_STATES = 3
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Fresh:
    """A file that is not seen yet; its path is below the table's directory."""

    path: str
    day: str
    size_bytes: int
    rows: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class Move:
    """Of a file to where it is seen; both paths are below the table's directory."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class State:
    """`leaving` are directories of what is visible by now: removed when files are made visible the next time."""

    number: int
    schema: StructType
    archived: StreamOffsets = NOTHING
    fresh: tuple[Fresh, ...] = ()
    moves: tuple[Move, ...] = ()
    leaving: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(
            {
                "schema": self.schema.jsonValue(),
                "archived": to_text(self.archived),
                "fresh": [
                    {"path": f.path, "day": f.day, "bytes": f.size_bytes, "rows": f.rows, "since_ms": f.since_ms}
                    for f in self.fresh
                ],
                "moves": [{"path": move.path, "to": move.to} for move in self.moves],
                "leaving": list(self.leaving),
            }
        )

    @classmethod
    def from_json(cls, number: int, found: Mapping[str, Any], where: str) -> State:
        try:
            return cls(
                number,
                StructType.fromJson(found["schema"]),
                from_text(found["archived"], where),
                tuple(Fresh(f["path"], f["day"], f["bytes"], f["rows"], f["since_ms"]) for f in found["fresh"]),
                tuple(Move(move["path"], move["to"]) for move in found["moves"]),
                tuple(found["leaving"]),
            )
        except (KeyError, TypeError) as error:
            raise PipelineError(f"{where} is damaged: {error}") from None


def open_parquet_table(
    spark: SparkSession, files: Files, location: str, schema: StructType | None
) -> ParquetTable | None:
    """As `archive_table.open_table`."""
    states = _States(files, location)
    state = states.latest()
    if state is None:
        if schema is None:
            return None
        state = states.add(State(0, schema))
    elif schema is not None and (wanted := evolved(state.schema, schema)) != state.schema:
        state = states.add(replace(state, number=state.number + 1, schema=wanted))
    return ParquetTable(spark, files, location, states, state)


class ParquetTable:
    def __init__(self, spark: SparkSession, files: Files, location: str, states: _States, state: State) -> None:
        self._spark = spark
        self._files = files
        self._location = location
        self._states = states
        self._state = state

    @property
    def archived(self) -> StreamOffsets:
        return self._state.archived

    @property
    def schema(self) -> StructType:
        return self._state.schema

    def begin(self) -> None:
        """From the new state on, whoever wrote here before cannot commit: what they have left can go."""
        self._change()
        self._make_moves()
        used = {_top(file.path) for file in self._state.fresh} | {*self._state.leaving}
        for entry in self._files.list(self._fresh):
            if entry.name not in used:
                self._files.delete(entry.path)

    def attempt(self, name: str) -> str:
        return joined(self._fresh, f"{name}-{uuid4().hex[:8]}")

    def commit(self, directory: str, files: Sequence[DataFile], archived: StreamOffsets) -> None:
        now_ms = _now_ms()
        fresh = [Fresh(inside(self._location, f.path), f.day, f.size_bytes, f.rows, now_ms) for f in files]
        self._change(archived=archived, fresh=(*self._state.fresh, *fresh), moves=())

    def give_up(self, directory: str) -> None:
        self._files.delete(directory)

    def tidy(self, sizes: FileSizes, is_last: bool) -> None:
        """All that is fresh is made visible together, so that what is seen has no holes for longer than a moment."""
        fresh = self._state.fresh
        if not fresh:
            return
        is_large = sum(file.size_bytes for file in fresh) >= sizes.target_bytes
        is_old = min(file.since_ms for file in fresh) <= _now_ms() - sizes.visible_after_s * 1_000
        if not (is_last or is_large or is_old):
            return
        # A name that nobody else can have taken: the number of a state is used once.
        number = self._state.number + 1
        moves = tuple(
            Move(path, f"{DAY}={day}/{number:012}-{at}.parquet")
            for at, (day, path) in enumerate(sorted(self._of_good_size(fresh, sizes)))
        )
        before = self._state.leaving
        leaving = {_top(path) for path in (*(file.path for file in fresh), *(move.path for move in moves))}
        self._change(fresh=(), moves=moves, leaving=tuple(sorted(leaving)))
        self._make_moves()
        for name in before:
            self._files.delete(joined(self._fresh, name))
        log.info("files made visible", extra={"table": self._location, "files": len(fresh), "into": len(moves)})

    def _of_good_size(self, fresh: Sequence[Fresh], sizes: FileSizes) -> list[tuple[str, str]]:
        """Days and paths: small files of a day merged, and the others as they are."""
        days: dict[str, list[SizedFile]] = {}
        for file in fresh:
            if sizes.is_small(file.size_bytes):
                days.setdefault(file.day, []).append(SizedFile(file.path, file.day, file.size_bytes, file.rows))
        small = [file for group in days.values() if len(group) > 1 for file in group]
        taken = {file.path for file in small}
        others = [(file.day, file.path) for file in fresh if file.path not in taken]
        if not small:
            return others
        group = [replace(file, path=self._at(file.path)) for file in small]
        merged = merge(self._spark, self._files, group, self.schema, self.attempt("merged"), sizes)
        return [*others, *((file.day, inside(self._location, file.path)) for file in merged)]

    def _make_moves(self) -> None:
        for move in self._state.moves:
            if self._files.exists(self._at(move.path)):
                self._files.make_directory(self._at(move.to).rpartition("/")[0])
                self._files.rename(self._at(move.path), self._at(move.to))

    def files(self) -> list[str]:
        """Those that are seen, and those that will be."""
        for _ in range(_TRIES):
            seen = [
                entry.path
                for day in self._files.list(self._location)
                if day.is_directory and day.name.startswith(f"{DAY}=")
                for entry in self._files.list(day.path)
                if entry.name.endswith(".parquet")
            ]
            state, self._state = self._state, self._states.latest() or self._state
            if state.number == self._state.number:
                known = set(seen)
                coming = [move.path for move in state.moves if self._at(move.to) not in known]
                return [*seen, *(self._at(path) for path in (*coming, *(file.path for file in state.fresh)))]
        raise PipelineError(f"the table {self._location} changes too often to be listed")

    def _change(self, **changes: Any) -> None:
        self._state = self._states.add(replace(self._state, number=self._state.number + 1, **changes))

    def _at(self, path: str) -> str:
        return joined(self._location, path)

    @property
    def _fresh(self) -> str:
        return joined(self._location, "_penstock", "fresh")


class _States:
    """The table's states, by number."""

    def __init__(self, files: Files, location: str) -> None:
        self._files = files
        self._location = location
        self._directory = joined(location, "_penstock", "state")

    def latest(self) -> State | None:
        for _ in range(_TRIES):
            numbers = self._numbers()
            if not numbers:
                return None
            path = self._path(max(numbers))
            found = read_json(self._files, path)
            if found is not None:  # old ones are removed
                return State.from_json(max(numbers), found, path)
        raise PipelineError(f"the table {self._location} changes too often to be read")

    def add(self, state: State) -> State:
        self._files.make_directory(self._directory)
        numbers = self._numbers()
        if (numbers and max(numbers) >= state.number) or not self._files.create(
            self._path(state.number), state.to_json()
        ):
            raise PipelineError(f"another query writes to the table {self._location}: one at a time")
        for number in sorted(numbers)[: 1 - _KEPT_STATES]:
            self._files.delete(self._path(number))
        return state

    def _numbers(self) -> list[int]:
        names = [entry.name for entry in self._files.list(self._directory)]
        return [int(name[:12]) for name in names if name[:12].isdigit() and name[12:] == ".json"]

    def _path(self, number: int) -> str:
        return joined(self._directory, f"{number:012}.json")


def _top(path: str) -> str:
    """The directory of an attempt, of `_penstock/fresh/<attempt>/...`."""
    return path.split("/")[2]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
