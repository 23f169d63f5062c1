"""What tests of pipelines share: topics with records, and what readers of committed records find in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.testkit import eventually

_TIMEOUT_S = 20.0


class Given(NamedTuple):
    """A record to write."""

    value: bytes | str | None
    key: bytes | str | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class Found(NamedTuple):
    """A record as it was read."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


def create(bootstrap: str, *topics: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Records of any time stay: some tests have their own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(topic, partitions, 1, config={"retention.ms": "-1", **(config or {})}) for topic in topics]
    for created in admin.create_topics(new).values():
        created.result(_TIMEOUT_S)


def delete(bootstrap: str, topic: str) -> None:
    """Returns when it is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(_TIMEOUT_S)
    eventually(lambda: topic not in admin.list_topics(timeout=_TIMEOUT_S).topics)


def fill(bootstrap: str, topic: str, records: Iterable[Given]) -> None:
    # In order without being idempotent, for which librdkafka waits half a second at the start.
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "max.in.flight": 1, "linger.ms": 5})
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
        producer.poll(0)
    assert producer.flush(_TIMEOUT_S) == 0


def fill_json(bootstrap: str, topic: str, documents: Iterable[object], partition: int = 0) -> None:
    fill(bootstrap, topic, [Given(json.dumps(document), partition=partition) for document in documents])


def read(bootstrap: str, topic: str) -> list[list[Found]]:
    """What a reader of committed records finds in each partition, up to where it ends now."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "never-joined", "isolation.level": "read_committed"}
    settings |= {"auto.offset.reset": "error"}
    # The end is only told by an answer without records, which waits for some.
    with closing(Consumer(settings | {"enable.partition.eof": True, "fetch.wait.max.ms": 10})) as consumer:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        found: list[list[Found]] = [[] for _ in partitions]
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ends = 0
        while ends < len(partitions):
            message = consumer.poll(_TIMEOUT_S)
            assert message is not None, f"no record and no end within {_TIMEOUT_S} s"
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
                continue
            headers = tuple((str(each[0]), bytes(each[1] or b"")) for each in cast(Any, message.headers()) or ())
            found[partition].append(Found(message.value(), message.key(), headers, message.timestamp()[1]))
    return found


def values(bootstrap: str, topic: str) -> list[list[bytes | None]]:
    return [[record.value for record in records] for records in read(bootstrap, topic)]


def documents(bootstrap: str, topic: str) -> list[dict[str, object]]:
    """The JSON of all partitions."""
    return [json.loads(record.value or b"") for records in read(bootstrap, topic) for record in records]
