"""What tests of the sink share: rows as Spark hands them to a task, tasks without Spark, and what is in a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from penstock.core.ids import TopicPartition
from penstock.protocol.records import StoredRecord
from penstock.spark.markers import MarkerKey
from penstock.spark.sink_checks import check_cluster
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.task_writer import Task, TaskWritten, write_exactly_once
from penstock.wire.offsets import Isolation, latest
from penstock.wire.reading import read
from tests.testkit import RawClient, eventually
from tests.testkit.asking import create_usable_topic
from tests.wire.reading import a_client, records_of

TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def a_batch(**columns: Sequence[Any]) -> pa.RecordBatch:
    """Of these columns, with the types that Spark gives them."""
    return pa.record_batch({name: pa.array(column, TYPES[name]) for name, column in columns.items()})


def values(*some: bytes | None, partition: int = 0) -> list[pa.RecordBatch]:
    """One batch, all for the same partition, so that their order shows."""
    return [a_batch(value=some, partition=[partition] * len(some))]


def sink_options(bootstrap: str, kind: Kind, /, **options: object) -> SinkOptions:
    """Options as users write them, with underscores for the dots of those that begin with `kafka_`."""
    named = {
        name.replace("_", ".") if name.startswith("kafka_") else name: str(value) for name, value in options.items()
    }
    return SinkOptions.parse({"kafka.bootstrap.servers": bootstrap, **named}, kind)


def a_sink(bootstrap: str, topic: str | None, **options: object) -> SinkOptions:
    """Checked, as the driver does it: the topic of markers is there then."""
    if topic is not None:
        options["topic"] = topic
    parsed = sink_options(bootstrap, Kind.STREAM, **options)
    check_cluster(parsed, Kind.STREAM)
    return parsed


def create(address: tuple[str, int], topic: str, partitions: int = 1, **configs: Any) -> None:
    with RawClient(address) as client:
        create_usable_topic(client, topic, partitions=partitions, **configs)


def written(
    sink: SinkOptions, writer: str, number: int, batch_id: int, batches: Iterable[pa.RecordBatch]
) -> TaskWritten:
    """What a task does with its rows."""
    return write_exactly_once(sink, Task(writer, number, batch_id), batches)


def is_settled(bootstrap: str, topic: str, partition: int = 0) -> bool:
    """Whether no transaction is open."""
    where = TopicPartition(topic, partition)
    with a_client(bootstrap) as cluster:
        ends = {latest(cluster, [where], isolation)[where] for isolation in Isolation}
    return len(ends) == 1


def records(bootstrap: str, topic: str, partition: int = 0) -> list[StoredRecord]:
    """All of a partition that is committed, once nothing is open: a commit is seen a moment after it is made."""
    eventually(lambda: is_settled(bootstrap, topic, partition), message=f"a transaction of {topic} stays open")
    where = TopicPartition(topic, partition)
    with a_client(bootstrap) as cluster:
        return records_of(read(cluster, where, 0, latest(cluster, [where])[where]))


def values_of(bootstrap: str, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(bootstrap, topic, partition)]


@contextmanager
def an_attempt(sink: SinkOptions, writer: str, number: int) -> Iterator[Producer]:
    """A producer as another attempt of the task has it, in a transaction that nobody ends."""
    bootstrap = ",".join(map(str, sink.client.bootstrap))
    own = {"bootstrap.servers": bootstrap, "transactional.id": MarkerKey(writer, number).transactional_id}
    producer = Producer(own)
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer
