"""confluent-kafka: librdkafka of today."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import Message as ConfluentMessage
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from tests.compat.clients.interface import CONSUME_TIMEOUT_S, AdminClient, Client, Cluster, Message, Received, Refused
from tests.testkit import eventually

_ADMIN_TIMEOUT_S = 20


class ConfluentClient(Client):
    name = "confluent-kafka"

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        partition: int = 0,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, record: ConfluentMessage) -> None:
            if error is None:
                offsets.append(_offset(record))
            else:
                failures.append(error)

        # A few milliseconds of linger put all messages into one batch, so that a codec has something to compress.
        config = {"acks": acks, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.timeout.ms": 15_000, **config})
        for message in messages:
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=partition,
                timestamp=message.timestamp_ms or 0,
                on_delivery=delivered,
            )
        assert producer.flush(20) == 0, "not every message was delivered"
        if failures:
            raise Refused(failures[0].code(), failures[0].str())
        return offsets

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        received: list[Received] = []
        with closing(self.consumer()) as consumer:
            consumer.assign([TopicPartition(topic, partition, offset)])

            def is_complete() -> bool:
                received.extend(_received(record) for record in consumer.consume(count - len(received), 0.1))
                return len(received) >= count

            eventually(is_complete, CONSUME_TIMEOUT_S, f"{count} records of {topic}-{partition}")
        return received

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        with closing(self.consumer()) as consumer:
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], 10)
        offset: int = found[0].offset
        return offset if offset >= 0 else None

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        with closing(self.consumer()) as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
        return low, high

    def consumer(self, **config: object) -> Consumer:
        # librdkafka demands a group id even of a consumer that never joins the group.
        fixed = {"group.id": "never-joined", "enable.auto.commit": False, "auto.offset.reset": "error"}
        return Consumer({"bootstrap.servers": self.bootstrap, "fetch.wait.max.ms": 100, **fixed, **config})


def _received(record: ConfluentMessage) -> Received:
    if (error := record.error()) is not None:
        raise Refused(error.code(), error.str())
    headers: Any = tuple(record.headers() or ())
    message = Message(record.value(), record.key(), headers, record.timestamp()[1])
    return Received(_offset(record), message)


def _offset(record: ConfluentMessage) -> int:
    """With acks=0 there is no answer to take an offset from."""
    offset = record.offset()
    return -1 if offset is None else offset


class ConfluentAdminClient(AdminClient):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.admin = ConfluentAdmin({"bootstrap.servers": bootstrap})

    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new_topic = NewTopic(topic, num_partitions=partitions, config=dict(configs or {}))
        _result(self.admin.create_topics([new_topic]))

    def topic_names(self) -> set[str]:
        return set(self.admin.list_topics(timeout=10).topics)

    def partition_leaders(self, topic: str) -> dict[int, int]:
        return {partition.id: partition.leader.id for partition in self._described(topic).partitions}

    def topic_id(self, topic: str) -> str:
        return str(self._described(topic).topic_id)

    def _described(self, topic: str) -> TopicDescription:
        description: TopicDescription = _result(self.admin.describe_topics(TopicCollection([topic])))
        return description

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        entries = _result(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _result(self.admin.incremental_alter_configs([resource]))

    def grow_topic(self, topic: str, *, partitions: int) -> None:
        _result(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def delete_records(self, topic: str, *, before_offset: int, partition: int = 0) -> int:
        deleted = _result(self.admin.delete_records([TopicPartition(topic, partition, before_offset)]))
        low_watermark: int = deleted.low_watermark
        return low_watermark

    def delete_topic(self, topic: str) -> None:
        _result(self.admin.delete_topics([topic]))

    def cluster(self) -> Cluster:
        described = self.admin.describe_cluster().result(_ADMIN_TIMEOUT_S)
        nodes = frozenset((node.id, node.host, node.port) for node in described.nodes)
        return Cluster(described.controller.id, nodes, described.cluster_id)


def _result(futures: Mapping[Any, Future[Any]]) -> Any:
    """The answer for the one resource that was asked about."""
    (future,) = futures.values()
    try:
        return future.result(_ADMIN_TIMEOUT_S)
    except KafkaException as failure:
        error = failure.args[0]
        raise Refused(error.code(), error.str()) from failure
