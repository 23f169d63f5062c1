"""What one task does with its rows: one transaction with a marker, or just acknowledged records.

Exactly once, in this order: fence earlier attempts of the task, which ends what they left open; read the task's last
marker, which is then final; write, with the marker as the last record, and commit. A task that finds the marker of its
own batch has been here before: it only makes sure that its rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.datasource import WriterCommitMessage

from penstock.protocol.records.checksum import MASK
from penstock.spark.marker_scan import last_marker
from penstock.spark.markers import Marker, MarkerKey
from penstock.spark.producing import Outbox, explained
from penstock.spark.rows import Rows
from penstock.spark.sink_errors import WriteFailed
from penstock.spark.sink_options import SinkOptions
from penstock.wire.cluster import Cluster

_ACKNOWLEDGED_WITHIN_S = 330.0
_ABORTED_WITHIN_S = 30.0


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What the driver is told of a task."""

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


def write_at_least_once(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> TaskWritten:
    outbox = Outbox(options.producer, None)
    topics = Topics(options)
    count = 0
    for batch in batches:
        for topic, rows in Rows.of(batch, options.topic).by_topic():
            topics.check(topic, rows)
            outbox.put(topic, rows)
            count += rows.count
    outbox.flush(_ACKNOWLEDGED_WITHIN_S)
    return TaskWritten(count)


def write_exactly_once(options: SinkOptions, task: Task, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    outbox = Outbox(options.producer, task.key.transactional_id)
    _transactionally(lambda: outbox.producer.init_transactions(options.client.api_timeout_s), f"beginning {task}")
    with closing(Cluster(options.client)) as cluster:
        found = last_marker(cluster, options.marker_topic, task.key)
    if found is not None and found.batch_id > task.batch_id:
        raise WriteFailed(_is_older(options, task, found))
    if found is not None and found.batch_id == task.batch_id:
        return _compare(options, task, found, batches)
    outbox.producer.begin_transaction()
    try:
        tally = _write_all(options, outbox, batches)
        marker = Marker(task.batch_id, tally.rows, tally.checksum)
        outbox.producer.produce(options.marker_topic, marker.to_bytes(), task.key.to_bytes(), task.key.partition())
        _transactionally(lambda: outbox.producer.commit_transaction(_ACKNOWLEDGED_WITHIN_S), f"committing {task}")
    except BaseException:
        # Readers would wait for its timeout. What is fenced or has no broker cannot, and need not, be aborted.
        with suppress(KafkaException):
            outbox.producer.abort_transaction(_ABORTED_WITHIN_S)
        raise
    return TaskWritten(tally.rows)


def _write_all(options: SinkOptions, outbox: Outbox, batches: Iterator[pa.RecordBatch]) -> Tally:
    tally = Tally()
    topics = Topics(options)
    for batch in batches:
        rows = Rows.of(batch, options.topic)
        tally.add(rows)
        for topic, some in rows.by_topic():
            topics.check(topic, some)
            outbox.put(topic, some)
    return tally


def _compare(options: SinkOptions, task: Task, found: Marker, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    tally = Tally()
    for batch in batches:
        tally.add(Rows.of(batch, options.topic))
    if (tally.rows, tally.checksum) != (found.rows, found.checksum):
        raise WriteFailed(
            f"{task} was written before, with other rows: {found.rows} of checksum {found.checksum:016x} then, "
            f"{tally.rows} of {tally.checksum:016x} now. The query does not give the same rows twice (does it use "
            "rand, uuid, the time, or a source that has changed?), so they cannot be written exactly once. Make it "
            "give the same rows, or write with exactlyOnce=false, or begin with a new checkpoint, which writes again"
        )
    return TaskWritten(tally.rows, was_there=True)


def _is_older(options: SinkOptions, task: Task, found: Marker) -> str:
    return (
        f"{task} comes before batch {found.batch_id}, which is in the output already: the checkpoint is older than the "
        "output. Go back to the checkpoint that wrote it, or begin with a new one, which may write rows again"
    )


class Topics:
    """Those that rows name. A producer would create what is not there, or wait for it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._partitions: dict[str, int] = {}

    def check(self, topic: str, rows: Rows) -> None:
        """Raises WriteFailed, WireError."""
        if topic not in self._partitions:
            with closing(Cluster(self._options.client)) as cluster:
                self._partitions[topic] = len(cluster.look_up([topic])[topic].leaders)


def _transactionally(act: Callable[[], Any], what: str) -> None:
    try:
        act()
    except KafkaException as failure:
        raise WriteFailed(explained(failure.args[0], what)) from None
