"""aiokafka."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

from tests.compat.clients.interface import CONSUME_TIMEOUT_S, AdminClient, Client, Cluster, Message, Received, Refused

Answer = TypeVar("Answer")


class AiokafkaClient(Client):
    name = "aiokafka"

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
        async def send_all() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=5,
            )
            async with producer:
                sent = [await producer.send(topic, **_send_arguments(message, partition)) for message in messages]
                acknowledged = await asyncio.gather(*sent)
            # With acks=0 there is no answer to take an offset from.
            return [-1 if metadata is None else metadata.offset for metadata in acknowledged]

        return asyncio.run(send_all())

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        async def read() -> list[Received]:
            assigned = TopicPartition(topic, partition)
            received: list[Received] = []
            async with self._consumer() as consumer, asyncio.timeout(CONSUME_TIMEOUT_S):
                consumer.assign([assigned])
                consumer.seek(assigned, offset)
                while len(received) < count:
                    record = await consumer.getone(assigned)
                    message = Message(record.value, record.key, tuple(record.headers), record.timestamp)
                    received.append(Received(record.offset, message))
            return received

        return asyncio.run(read())

    def offset_for_time(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        asked = TopicPartition(topic, partition)
        found = self._ask_consumer(lambda consumer: consumer.offsets_for_times({asked: timestamp_ms}))[asked]
        return None if found is None else int(found.offset)

    def bounds(self, topic: str, *, partition: int = 0) -> tuple[int, int]:
        asked = TopicPartition(topic, partition)
        low = self._ask_consumer(lambda consumer: consumer.beginning_offsets([asked]))[asked]
        high = self._ask_consumer(lambda consumer: consumer.end_offsets([asked]))[asked]
        return low, high

    def _ask_consumer(self, question: Callable[[AIOKafkaConsumer], Awaitable[Any]]) -> Any:
        async def ask() -> Any:
            async with self._consumer() as consumer:
                return await question(consumer)

        return asyncio.run(ask())

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )
        async with consumer:
            yield consumer


def _send_arguments(message: Message, partition: int) -> dict[str, Any]:
    return {
        "value": message.value,
        "key": message.key,
        "headers": list(message.headers),
        "partition": partition,
        "timestamp_ms": message.timestamp_ms,
    }


class AiokafkaAdminClient(AdminClient):
    """Its `alter_configs` is the older AlterConfigs, which replaces all overrides of the topic."""

    name = "aiokafka"

    def create_topic(self, topic: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new_topic = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        response = self._run(lambda admin: admin.create_topics([new_topic]))
        _refuse(response.topic_errors[0][1], str(response.topic_errors))

    def topic_names(self) -> set[str]:
        return set(self._run(lambda admin: admin.list_topics()))

    def partition_leaders(self, topic: str) -> dict[int, int]:
        (description,) = self._run(lambda admin: admin.describe_topics([topic]))
        return {partition["partition"]: partition["leader"] for partition in description["partitions"]}

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self._run(lambda admin: admin.describe_configs([resource]))
        (error_code, error_message, _type, _name, entries) = response.resources[0][:5]
        _refuse(error_code, error_message)
        return {entry[0]: entry[1] for entry in entries}

    def set_topic_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))
        (response,) = self._run(lambda admin: admin.alter_configs([resource]))
        _refuse(response.resources[0][0], response.resources[0][1])

    def grow_topic(self, topic: str, *, partitions: int) -> None:
        response = self._run(lambda admin: admin.create_partitions({topic: NewPartitions(partitions)}))
        _refuse(response.topic_errors[0][1], response.topic_errors[0][2])

    def delete_records(self, topic: str, *, before_offset: int, partition: int = 0) -> int:
        asked = TopicPartition(topic, partition)
        deleted = self._run(lambda admin: admin.delete_records({asked: RecordsToDelete(before_offset)}))
        low_watermark: int = deleted[asked]
        return low_watermark

    def delete_topic(self, topic: str) -> None:
        response = self._run(lambda admin: admin.delete_topics([topic]))
        _refuse(response.topic_error_codes[0][1], topic)

    def cluster(self) -> Cluster:
        described = self._run(lambda admin: admin.describe_cluster())
        nodes = frozenset((node["node_id"], node["host"], node["port"]) for node in described["brokers"])
        return Cluster(described["controller_id"], nodes, described.get("cluster_id"))

    def _run(self, question: Callable[[AIOKafkaAdminClient], Awaitable[Answer]]) -> Answer:
        async def ask() -> Answer:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            try:
                return await question(admin)
            except BrokerResponseError as failure:
                raise Refused(failure.errno, str(failure)) from failure
            finally:
                await admin.close()

        return asyncio.run(ask())


def _refuse(error_code: int, message: str | None) -> None:
    if error_code:
        raise Refused(error_code, message or "")
