"""Transactions of kafka-python: it knows transaction version 1."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import InvalidProducerEpochError, KafkaError, KafkaTimeoutError, ProducerFencedError

from tests.compat.clients.transactional import (
    READ_TIMEOUT_S,
    TRANSACTION_TIMEOUT_MS,
    Failed,
    Fenced,
    Partition,
    TransactionalClient,
    TransactionalProducer,
)
from tests.testkit import eventually


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ProducerFencedError, InvalidProducerEpochError) as failure:
        raise Fenced(str(failure)) from failure
    except KafkaError as failure:
        raise Failed(str(failure)) from failure


class KafkaPythonTransactionalProducer(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        with _told():
            self._producer.init_transactions()

    def begin(self) -> None:
        with _told():
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        with _told():
            sent = [self._producer.send(topic, value, partition=partition) for value in values]
            for future in sent:
                future.get(timeout=READ_TIMEOUT_S)

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self._send_offsets(offsets, group)

    def copy(self, source: str, target: str, group: str, *, count: int) -> None:
        consumer = _consumer(self._bootstrap, group, committed=True, auto_offset_reset="earliest")
        records: list[Any] = []
        with closing(consumer):
            consumer.subscribe([source])

            def is_complete() -> bool:
                for polled in consumer.poll(timeout_ms=1_000, max_records=count - len(records)).values():
                    records.extend(polled)
                return len(records) >= count

            eventually(is_complete, READ_TIMEOUT_S, f"{count} records of {source}")
            for record in records:
                self.send(target, [record.value], partition=record.partition)
            after = {(source, record.partition): record.offset + 1 for record in records}
            self._send_offsets(after, consumer.group_metadata())

    def _send_offsets(self, offsets: Mapping[Partition, int], metadata: object) -> None:
        positions = {
            TopicPartition(*partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()
        }
        with _told():
            self._producer.send_offsets_to_transaction(positions, metadata)

    def commit(self) -> None:
        with _told():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _told():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class KafkaPythonTransactions(TransactionalClient):
    name = "kafka-python"

    def producer(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionalProducer:
        return KafkaPythonTransactionalProducer(self.bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, *, partitions: int = 1, committed: bool = True) -> list[list[bytes]]:
        values: list[list[bytes]] = [[] for _ in range(partitions)]
        assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
        with closing(_consumer(self.bootstrap, None, committed)) as consumer:
            consumer.assign(assigned)
            for partition in assigned:
                consumer.seek(partition, 0)
            ends = consumer.end_offsets(assigned)

            def is_complete() -> bool:
                for partition, records in consumer.poll(timeout_ms=50, max_records=10_000).items():
                    values[partition.partition].extend(record.value for record in records)
                return all(consumer.position(partition) >= end for partition, end in ends.items())

            eventually(is_complete, READ_TIMEOUT_S, f"the end of {topic}")
        return values

    def end(self, topic: str, *, committed: bool = True) -> int:
        asked = TopicPartition(topic, 0)
        with closing(_consumer(self.bootstrap, None, committed)) as consumer:
            return int(consumer.end_offsets([asked])[asked])

    def committed(self, group: str, topic: str, *, timeout_s: float = 10) -> int | None:
        with closing(_consumer(self.bootstrap, group, committed=True)) as consumer:
            try:
                found: int | None = consumer.committed(TopicPartition(topic, 0), timeout_ms=int(timeout_s * 1000))
            except KafkaTimeoutError as failure:
                raise TimeoutError(str(failure)) from failure
        return found


def _consumer(bootstrap: str, group: str | None, committed: bool, auto_offset_reset: str = "none") -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        isolation_level="read_committed" if committed else "read_uncommitted",
        enable_auto_commit=False,
        auto_offset_reset=auto_offset_reset,
        fetch_max_wait_ms=20,
    )
