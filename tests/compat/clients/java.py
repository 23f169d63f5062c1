"""Kafka's own Java client."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.compat.clients.interface import AdminClient, Client, Cluster, Message, Received, Refused
from tests.testkit.java import JavaDriver, JavaError, from_java, to_java

_ERROR_CODES = {
    "UnknownTopicOrPartitionException": 3,
    "RecordTooLargeException": 10,
    "InvalidTopicException": 17,
    "TopicExistsException": 36,
    "InvalidPartitionsException": 37,
    "InvalidConfigurationException": 40,
}


class JavaClient(Client):
    name = "java"

    def __init__(self, bootstrap: str, driver: JavaDriver) -> None:
        super().__init__(bootstrap)
        self.driver = driver

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
        config = {
            "acks": acks,
            "compression.type": codec,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": 5,
        }
        records = [{"partition": partition, **_record_fields(message)} for message in messages]
        acknowledged = self.call("produce", topic=topic, config=config, records=records)
        return [metadata["offset"] for metadata in acknowledged]

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        config = {"fetch.max.wait.ms": 100, "max.poll.records": count}
        records = self.call("consume", topic=topic, positions={partition: offset}, count=count, config=config)
        return [Received(record["offset"], message_of(record)) for record in records]

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        found = self.call("offsets_for_times", topic=topic, times={partition: timestamp_ms})[str(partition)]
        return None if found is None else int(found["offset"])

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        bounds = self.call("bounds", topic=topic, partition=partition)
        return bounds["beginning"], bounds["end"]

    def call(self, command: str, **arguments: object) -> Any:
        return _call(self.driver, command, bootstrap=self.bootstrap, **arguments)


class JavaAdminClient(AdminClient):
    name = "java"

    def __init__(self, bootstrap: str, driver: JavaDriver) -> None:
        super().__init__(bootstrap)
        self.driver = driver

    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        self.call("create_topic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def topic_names(self) -> set[str]:
        return set(self.call("list_topics"))

    def partition_leaders(self, topic: str) -> dict[int, int]:
        description = self.call("describe_topic", topic=topic)
        return {partition["partition"]: partition["leader"] for partition in description["partitions"]}

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return {name: entry["value"] for name, entry in self.call("describe_configs", topic=topic).items()}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        self.call("alter_configs", topic=topic, configs=dict(configs))

    def grow_topic(self, topic: str, *, partitions: int) -> None:
        self.call("create_partitions", topic=topic, partitions=partitions)

    def delete_records(self, topic: str, *, before_offset: int, partition: int = 0) -> int:
        deleted = self.call("delete_records", topic=topic, partition=partition, before_offset=before_offset)
        low_watermark: int = deleted["low_watermark"]
        return low_watermark

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def cluster(self) -> Cluster:
        described = self.call("describe_cluster")
        nodes = frozenset((node["id"], node["host"], node["port"]) for node in described["nodes"])
        return Cluster(described["controller"], nodes, described["cluster_id"])

    def call(self, command: str, **arguments: object) -> Any:
        return _call(self.driver, command, bootstrap=self.bootstrap, **arguments)


def message_of(record: Mapping[str, Any]) -> Message:
    """A consumed record of the driver's JSON."""
    headers = tuple((name, from_java(value)) for name, value in record["headers"])
    return Message(from_java(record["value"]), from_java(record["key"]), headers, record["timestamp"])


def _record_fields(message: Message) -> dict[str, object]:
    return {
        "key": to_java(message.key),
        "value": to_java(message.value),
        "headers": [[name, to_java(value)] for name, value in message.headers],
        "timestamp": message.timestamp_ms,
    }


def _call(driver: JavaDriver, command: str, **arguments: object) -> Any:
    try:
        return driver.call(command, **arguments)
    except JavaError as error:
        if error.name in _ERROR_CODES:
            raise Refused(_ERROR_CODES[error.name], str(error)) from error
        raise
