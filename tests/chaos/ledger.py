"""What a producer was promised, to be compared with what the log holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "ledger"
PARTITIONS = 3


@dataclass
class Ledger:
    """Numbers sent per partition, and which of them were acknowledged, in the order of both."""

    sent: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    acknowledged: list[list[int]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    failures: list[str] = field(default_factory=list)

    def settle(self, error: Any, message: Message) -> None:
        if error is None:
            partition, number = _content(message)
            self.acknowledged[partition].append(number)
        else:
            self.failures.append(str(error))

    def check(self, found: list[list[int]], *, exactly_once: bool) -> None:
        for partition, numbers in enumerate(found):
            missing = set(self.acknowledged[partition]) - set(numbers)
            assert not missing, f"partition {partition}: acknowledged and lost: {sorted(missing)[:10]} ({len(missing)})"
            unknown = set(numbers) - set(self.sent[partition])
            assert not unknown, f"partition {partition}: never sent: {sorted(unknown)[:10]}"
            if exactly_once:
                assert len(numbers) == len(set(numbers)), f"partition {partition}: duplicates"
                assert numbers == sorted(numbers), f"partition {partition}: out of order"


class Load:
    """A producer that never stops by itself: idempotent, acks=all, from a thread of its own."""

    def __init__(self, bootstrap: str, ledger: Ledger, payload_bytes: int = 200) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "socket.timeout.ms": 5_000,
                "log_level": 0,
            }
        )
        self._ledger = ledger
        self._padding = b"." * payload_bytes
        self._next = 0
        self._stop = threading.Event()
        # A daemon, so that a run whose test failed comes to its end.
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for _ in range(50):
                number, self._next = self._next, self._next + 1
                partition = number % PARTITIONS
                try:
                    self._producer.produce(
                        TOPIC, b"%012d" % number + self._padding, partition=partition, on_delivery=self._ledger.settle
                    )
                except BufferError:
                    self._producer.poll(0.05)
                    continue
                self._ledger.sent[partition].append(number)
            self._producer.poll(0.005)

    def finish(self) -> None:
        """Stop sending and wait until everything sent is acknowledged."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(60)
        assert left == 0, f"{left} messages were never acknowledged"

    def abandon(self) -> None:
        """Stop sending; what is not acknowledged by now never will be."""
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(5)


def create_topic(bootstrap: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={name.replace("_", "."): value for name, value in configs.items()})
    admin.create_topics([topic])[TOPIC].result(10)


def read_all(bootstrap: str) -> list[list[int]]:
    """Every number in every partition, in the order of offsets."""
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for partition, number in _consume(bootstrap):
        found[partition].append(number)
    return found


def _content(message: Message) -> tuple[int, int]:
    partition, value = message.partition(), message.value()
    assert partition is not None and value is not None
    return partition, int(value[:12])


def _consume(bootstrap: str) -> Iterator[tuple[int, int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ledger",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        at_end: set[int | None] = set()
        while len(at_end) < PARTITIONS:
            message = consumer.poll(20)
            assert message is not None, "no message and no end of partition within 20 s"
            error = message.error()
            if error is None:
                yield _content(message)
            else:
                assert error.name() == "_PARTITION_EOF", str(error)
                at_end.add(message.partition())
    finally:
        consumer.close()
