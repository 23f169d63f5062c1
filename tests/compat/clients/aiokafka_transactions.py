"""Transactions of aiokafka: it knows transaction version 1, and nothing of pending offsets."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from tests.compat.clients.transactional import (
    READ_TIMEOUT_S,
    TRANSACTION_TIMEOUT_MS,
    Failed,
    Fenced,
    Partition,
    TransactionalClient,
    TransactionalProducer,
)

Answer = TypeVar("Answer")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch) as failure:
        raise Fenced(str(failure)) from failure
    except KafkaError as failure:
        raise Failed(str(failure)) from failure


class AiokafkaTransactionalProducer(TransactionalProducer):
    """Its event loop runs while it is asked for something, and rests in between."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._runner = asyncio.Runner()

        async def start() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = self._run(start())

    def _run(self, step: Awaitable[Answer]) -> Answer:
        async def within_time() -> Answer:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await step

        with _told():
            return self._runner.run(within_time())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        self._run(self._send(topic, values, partition))

    async def _send(self, topic: str, values: Sequence[bytes], partition: int) -> None:
        sent = [await self._producer.send(topic, value, partition=partition) for value in values]
        await asyncio.gather(*sent)

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        positions = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(positions, group))

    def copy(self, source: str, target: str, group: str, *, count: int) -> None:
        async def copy_all() -> None:
            after: dict[TopicPartition, int] = {}
            async with _consumer(self._bootstrap, group, committed=True, auto_offset_reset="earliest") as consumer:
                consumer.subscribe([source])
                for _ in range(count):
                    record = await consumer.getone()
                    await self._send(target, [record.value], record.partition)
                    after[TopicPartition(source, record.partition)] = record.offset + 1
                await self._producer.send_offsets_to_transaction(after, group)

        self._run(copy_all())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(Failed):  # it says once more why it can do nothing
            self._run(self._producer.stop())
        self._runner.close()


class AiokafkaTransactions(TransactionalClient):
    name = "aiokafka"
    asks_for_stable_offsets = False

    def producer(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionalProducer:
        return AiokafkaTransactionalProducer(self.bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, *, partitions: int = 1, committed: bool = True) -> list[list[bytes]]:
        async def read_all(consumer: AIOKafkaConsumer) -> list[list[bytes]]:
            values: list[list[bytes]] = [[] for _ in range(partitions)]
            assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            for partition in assigned:
                consumer.seek(partition, 0)
            ends = await consumer.end_offsets(assigned)
            while not all([await consumer.position(partition) >= end for partition, end in ends.items()]):
                for partition, records in (await consumer.getmany(timeout_ms=50)).items():
                    values[partition.partition].extend(record.value for record in records)
            return values

        return self._ask(read_all, committed=committed)

    def end(self, topic: str, *, committed: bool = True) -> int:
        asked = TopicPartition(topic, 0)

        async def ask(consumer: AIOKafkaConsumer) -> int:
            return int((await consumer.end_offsets([asked]))[asked])

        return self._ask(ask, committed=committed)

    def committed(self, group: str, topic: str, *, timeout_s: float = 10) -> int | None:
        async def ask(consumer: AIOKafkaConsumer) -> int | None:
            found: int | None = await consumer.committed(TopicPartition(topic, 0))
            return found

        return self._ask(ask, committed=True, group=group)

    def _ask(
        self,
        question: Callable[[AIOKafkaConsumer], Awaitable[Answer]],
        *,
        committed: bool,
        group: str | None = None,
    ) -> Answer:
        async def ask() -> Answer:
            async with _consumer(self.bootstrap, group, committed) as consumer, asyncio.timeout(READ_TIMEOUT_S):
                return await question(consumer)

        return asyncio.run(ask())


def _consumer(bootstrap: str, group: str | None, committed: bool, auto_offset_reset: str = "none") -> Any:
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        isolation_level="read_committed" if committed else "read_uncommitted",
        enable_auto_commit=False,
        auto_offset_reset=auto_offset_reset,
        fetch_max_wait_ms=20,
    )
