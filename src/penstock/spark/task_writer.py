"""What one task does with its rows: transactions with a marker, or just acknowledged records.

Exactly once, in this order: fence earlier attempts of the task, which ends what they left open; read the task's last
marker, which is then final; write, with the marker as the last record, and commit. A task that finds the marker of its
own batch has been here before: it only makes sure that its rows are the same.

One transaction takes a whole task, unless it is about to take longer than brokers let it: then the marker says how far
the task has come, and another one follows. An attempt after that goes on from there, if its first rows are the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from penstock.protocol.records.checksum import MASK
from penstock.spark.destination import Destination
from penstock.spark.marker_scan import StillOpen, last_marker, outdated_markers
from penstock.spark.markers import Marker, MarkerKey
from penstock.spark.producing import Outbox
from penstock.spark.rows import Rows
from penstock.spark.sink_errors import WriteFailed
from penstock.spark.sink_options import SinkOptions

_USED_SHARE = 0.75


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What the driver is told of a task. `was_there`: an earlier attempt had written all of it."""

    task: int
    rows: int
    was_there: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    writer: str
    number: int
    batch_id: int

    @property
    def key(self) -> MarkerKey:
        return MarkerKey(self.writer, self.number)

    def __str__(self) -> str:
        return f"task {self.number} of batch {self.batch_id}"


class Tally:
    """Count and checksum of the rows that have gone by."""

    def __init__(self) -> None:
        self.rows = 0
        self.checksum = 0

    def add(self, rows: Rows) -> None:
        self.rows += rows.count
        self.checksum = (self.checksum + rows.checksum()) & MASK

    def is_that_of(self, marker: Marker) -> bool:
        return (self.rows, self.checksum) == (marker.rows, marker.checksum)


def write_at_least_once(options: SinkOptions, number: int, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
    """Raises WireError."""
    rows = _rows(options, batches)
    first = next(rows, None)
    if first is None:
        return TaskWritten(number, 0)
    count = 0
    with closing(Destination(options.client)) as destination, closing(Outbox(destination, options.producer)) as outbox:
        for some in chain((first,), rows):
            count += some.count
            _put(some, outbox)
        outbox.flush()
    return TaskWritten(number, count)


def write_exactly_once(
    options: SinkOptions,
    task: Task,
    batches: Iterable[pa.RecordBatch],
    clock: Callable[[], float] = time.monotonic,
) -> TaskWritten:
    """`clock` is in seconds. Raises WireError."""
    rows = _rows(options, batches)
    first = next(rows, None)
    with closing(Destination(options.client)) as destination:
        writer = _ExactlyOnce(options, task, destination, clock)
        return writer.write_nothing() if first is None else writer.write(chain((first,), rows))


def _rows(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    for batch in batches:
        if batch.num_rows:
            yield Rows.of(batch, options.topic)


def _put(rows: Rows, outbox: Outbox) -> None:
    for topic, some in rows.by_topic():
        outbox.put(topic, some)


class _ExactlyOnce:
    def __init__(self, options: SinkOptions, task: Task, destination: Destination, clock: Callable[[], float]) -> None:
        self._options = options
        self._task = task
        self._destination = destination
        self._clock = clock
        timeout_ms = options.producer.transaction_timeout_ms
        # What is left of it is for what is under way, and for the commit. To go on from the middle takes rows that are
        # the same, and in the same order.
        self._ends_after_s = _USED_SHARE * timeout_ms / 1_000 if options.compares_rows else math.inf
        self._tally = Tally()

    def write_nothing(self) -> TaskWritten:
        """A task without rows has nothing to undo and nothing to repeat: no transaction, and no marker."""
        try:
            found = self._last_marker()
        except StillOpen:
            self._fenced().close()
            found = self._last_marker()
        if found is not None and found.batch_id == self._task.batch_id:
            raise self._differs(found)
        return TaskWritten(self._task.number, 0)

    def write(self, rows: Iterator[Rows]) -> TaskWritten:
        with closing(self._fenced()) as outbox:
            found = self._last_marker()
            was_there = False
            if found is not None and found.batch_id == self._task.batch_id:
                rows = self._after(found, rows)
                was_there = found.is_whole
            if was_there:
                self._check_that_nothing_is_left(found, rows)
            else:
                self._write_rest(outbox, rows)
        return TaskWritten(self._task.number, self._tally.rows, was_there)

    def _fenced(self) -> Outbox:
        outbox = Outbox(self._destination, self._options.producer, self._task.key.transactional_id)
        outbox.fence()
        return outbox

    def _last_marker(self) -> Marker | None:
        found = last_marker(self._destination.cluster, self._options.marker_topic, self._task.key)
        if found is not None and found.batch_id > self._task.batch_id:
            raise WriteFailed(
                f"{self._task} comes before batch {found.batch_id}, which is in the output already: the checkpoint is "
                "older than the output. Go back to the checkpoint that wrote it, or begin with a new one, which writes "
                "again what it reads"
            )
        return found

    def _after(self, found: Marker, rows: Iterator[Rows]) -> Iterator[Rows]:
        """What comes after the rows that are there, once those have been seen to be the same."""
        for some in rows:
            known = min(found.rows - self._tally.rows, some.count)
            if known > 0:
                self._tally.add(some.slice(0, known))
                if self._tally.rows == found.rows and not self._is_that_of(found):
                    raise self._differs(found)
            if known < some.count:
                yield some.slice(known, some.count - known)
        if self._tally.rows < found.rows:
            raise self._differs(found)

    def _check_that_nothing_is_left(self, found: Marker | None, rows: Iterator[Rows]) -> None:
        assert found is not None
        for some in rows:
            self._tally.add(some)
        if not self._is_that_of(found):
            raise self._differs(found)

    def _is_that_of(self, found: Marker) -> bool:
        if found.is_whole and not self._options.compares_rows:
            return self._tally.rows == found.rows
        return self._tally.is_that_of(found)

    def _write_rest(self, outbox: Outbox, rows: Iterator[Rows]) -> None:
        began_s = self._clock()
        try:
            for some in rows:
                self._tally.add(some)
                _put(some, outbox)
                if self._clock() - began_s >= self._ends_after_s:
                    self._commit(outbox, is_whole=False)
                    # With an epoch of its own: what is still under way of the last one cannot end the next.
                    outbox.fence()
                    began_s = self._clock()
            self._commit(outbox, is_whole=True)
        except BaseException:
            outbox.abort()
            raise

    def _commit(self, outbox: Outbox, *, is_whole: bool) -> None:
        marker = Marker(self._task.batch_id, self._tally.rows, self._tally.checksum, is_whole)
        key = self._task.key
        if is_whole:
            for outdated in outdated_markers(self._destination.cluster, self._options.marker_topic, key):
                outbox.put_marker(self._options.marker_topic, key.partition(), outdated, None)
        outbox.put_marker(self._options.marker_topic, key.partition(), key.to_bytes(), marker.to_bytes())
        outbox.commit()

    def _differs(self, found: Marker) -> WriteFailed:
        tally = self._tally
        anew = "begin with a new checkpoint" if self._options.write_id is None else "give the write another writeId"
        return WriteFailed(
            f"{self._task} was written before, with other rows: {found.rows} of checksum {found.checksum:016x} then, "
            f"{tally.rows} of {tally.checksum:016x} now. The query does not give the same rows twice (does it use "
            "rand, uuid or the time, or read what has changed?), so it cannot write them exactly once. Make it give "
            "the same rows, or write with compareRows=false if what was written may stand for them, or with "
            f"exactlyOnce=false, or {anew}, which writes again what it reads"
        )
