"""Transactions of confluent-kafka: librdkafka knows transaction version 1."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

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

_STEP_TIMEOUT_S = 20
_NO_OFFSET = -1001
_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except KafkaException as failure:
        raise _failure(failure.args[0]) from failure


def _failure(error: KafkaError) -> Failed:
    return (Fenced if error.code() in _FENCED else Failed)(error.str())


class ConfluentTransactionalProducer(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "log_level": 0,
            }
        )
        self._step(self._producer.init_transactions)

    def begin(self) -> None:
        with _told():
            self._producer.begin_transaction()

    def send(self, topic: str, values: Sequence[bytes], *, partition: int = 0) -> None:
        with _told():
            for value in values:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
                self._producer.poll(0)
            eventually(self._is_answered, _STEP_TIMEOUT_S, "records were not acknowledged")
        if self._errors:
            raise _failure(self._errors.pop())

    def _is_answered(self) -> bool:
        """A flush of a producer that was fenced meanwhile raises a SystemError (confluent-kafka 2.16)."""
        self._producer.poll(0.05)
        return len(self._producer) == 0

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._errors.append(error)

    def send_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        with closing(Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})) as consumer:
            self._send_offsets(offsets, consumer.consumer_group_metadata())

    def copy(self, source: str, target: str, group: str, *, count: int) -> None:
        config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        isolation = {"isolation.level": "read_committed"}
        with closing(Consumer({"bootstrap.servers": self._bootstrap, **config, **isolation})) as consumer:
            consumer.subscribe([source])
            messages: list[Any] = []

            def is_complete() -> bool:
                messages.extend(consumer.consume(count - len(messages), 0.1))
                return len(messages) >= count

            eventually(is_complete, READ_TIMEOUT_S, f"{count} records of {source}")
            for message in messages:
                self.send(target, [message.value()], partition=message.partition())
            after = {(source, message.partition()): message.offset() + 1 for message in messages}
            self._send_offsets(after, consumer.consumer_group_metadata())

    def _send_offsets(self, offsets: Mapping[Partition, int], metadata: object) -> None:
        positions = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        self._step(lambda timeout: self._producer.send_offsets_to_transaction(positions, metadata, timeout))

    def commit(self) -> None:
        self._step(self._producer.commit_transaction)

    def abort(self) -> None:
        self._step(self._producer.abort_transaction)

    def _step(self, call: Callable[[float], object]) -> None:
        with _told():
            call(_STEP_TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.flush(1)


class ConfluentTransactions(TransactionalClient):
    name = "confluent-kafka"

    def producer(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> TransactionalProducer:
        return ConfluentTransactionalProducer(self.bootstrap, transactional_id, timeout_ms)

    def read(self, topic: str, *, partitions: int = 1, committed: bool = True) -> list[list[bytes]]:
        values: list[list[bytes]] = [[] for _ in range(partitions)]
        at_end: set[int] = set()
        with closing(self._consumer("never-joined", committed)) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])

            def is_complete() -> bool:
                for message in consumer.consume(10_000, 0.05):
                    partition, value, error = message.partition(), message.value(), message.error()
                    assert partition is not None and value is not None
                    if error is None:
                        values[partition].append(value)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        at_end.add(partition)
                return len(at_end) == partitions

            eventually(is_complete, READ_TIMEOUT_S, f"the end of {topic}")
        return values

    def end(self, topic: str, *, committed: bool = True) -> int:
        with closing(self._consumer("never-joined", committed)) as consumer:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), READ_TIMEOUT_S)
        return int(end)

    def committed(self, group: str, topic: str, *, timeout_s: float = 10) -> int | None:
        with closing(self._consumer(group, committed=True)) as consumer:
            try:
                (found,) = consumer.committed([TopicPartition(topic, 0)], timeout_s)
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError._TIMED_OUT:
                    raise TimeoutError(failure.args[0].str()) from failure
                raise
        assert found.error is None, found.error
        return None if found.offset == _NO_OFFSET else int(found.offset)

    def _consumer(self, group: str, committed: bool) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
            }
        )
