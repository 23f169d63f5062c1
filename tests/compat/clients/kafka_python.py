"""kafka-python."""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.errors import BrokerResponseError

from tests.compat.clients.interface import CONSUME_TIMEOUT_S, AdminClient, Client, Cluster, Message, Received, Refused
from tests.testkit import eventually

_INSTALLED = {"none": True, "gzip": True, "snappy": has_snappy(), "lz4": has_lz4(), "zstd": has_zstd()}


class KafkaPythonClient(Client):
    name = "kafka-python"
    sends_null_headers = False
    codecs = tuple(codec for codec, is_installed in _INSTALLED.items() if is_installed)

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
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=5,
        )
        with closing(producer):
            sent = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            return [future.get(timeout=15).offset for future in sent]

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        assigned = TopicPartition(topic, partition)
        received: list[Received] = []
        with closing(self._consumer()) as consumer:
            consumer.assign([assigned])
            consumer.seek(assigned, offset)

            def is_complete() -> bool:
                for records in consumer.poll(timeout_ms=100, max_records=count - len(received)).values():
                    received.extend(_received(record) for record in records)
                return len(received) >= count

            eventually(is_complete, CONSUME_TIMEOUT_S, f"{count} records of {topic}-{partition}")
        return received

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        asked = TopicPartition(topic, partition)
        with closing(self._consumer()) as consumer:
            found = consumer.offsets_for_times({asked: timestamp_ms})[asked]
        return None if found is None else int(found.offset)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        asked = TopicPartition(topic, partition)
        with closing(self._consumer()) as consumer:
            return consumer.beginning_offsets([asked])[asked], consumer.end_offsets([asked])[asked]

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )


def _received(record: Any) -> Received:
    message = Message(record.value, record.key, tuple(map(tuple, record.headers)), record.timestamp)
    return Received(record.offset, message)


class KafkaPythonAdminClient(AdminClient):
    name = "kafka-python"

    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        self.run("create_topics", {topic: {"num_partitions": partitions, "configs": dict(configs or {})}})

    def topic_names(self) -> set[str]:
        return set(self.run("list_topics"))

    def partition_leaders(self, topic: str) -> dict[int, int]:
        (description,) = self.run("describe_topics", [topic])
        return {partition["partition_index"]: partition["leader_id"] for partition in description["partitions"]}

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        described = self.run("describe_configs", [ConfigResource("TOPIC", topic)], config_filter="all")
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        answer: str = self.run("alter_configs", [ConfigResource("TOPIC", topic, configs=dict(configs))])["topic"][topic]
        # This one call tells of an error by text alone: "[Error 40] InvalidConfigurationError: ...".
        if error := re.match(r"\[Error (\d+)\]", answer):
            raise Refused(int(error[1]), answer)

    def grow_topic(self, topic: str, *, partitions: int) -> None:
        self.run("create_partitions", {topic: partitions})

    def delete_records(self, topic: str, *, before_offset: int, partition: int = 0) -> int:
        asked = TopicPartition(topic, partition)
        return int(self.run("delete_records", {asked: before_offset})[asked]["low_watermark"])

    def delete_topic(self, topic: str) -> None:
        self.run("delete_topics", [topic])

    def cluster(self) -> Cluster:
        described = self.run("describe_cluster")
        nodes = frozenset((node["broker_id"], node["host"], node["port"]) for node in described["brokers"])
        return Cluster(described["controller_id"], nodes, described["cluster_id"])

    def run(self, method: str, *arguments: object, **options: object) -> Any:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap)) as admin:
            try:
                return getattr(admin, method)(*arguments, **options)
            except BrokerResponseError as failure:
                raise Refused(failure.errno, str(failure)) from failure
