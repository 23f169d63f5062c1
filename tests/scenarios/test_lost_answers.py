"""A transaction whose records were appended, and whose producer never heard of it.

librdkafka, when it aborts such a transaction, forgets the records that it was about to send again, and gives their
sequence numbers to the next transaction's (rd_kafka_toppar_purge_queues, "ADVBASE"). A broker that takes those for
retries of the first ones tells it that they are in the log, and they are lost.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.badinput.recording_proxy import RecordingProxy
from tests.testkit import Broker, RawClient, eventually
from tests.testkit.asking import create_topic, offset_at

LATEST = -1


class LosingProxy(RecordingProxy):
    """Passes on what clients say; whether they hear the answers is up to the test."""

    is_losing = False

    def _pass_on(self, source: socket.socket, target: socket.socket, record: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(64 * 1024):
                if not (self.is_losing and source.getpeername() == self._broker):
                    target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Ends all connections; new ones hear everything again."""
        self.is_losing = False
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[LosingProxy]:
    with LosingProxy() as proxy:
        yield proxy


@pytest.fixture
def broker(proxy: LosingProxy, tmp_path: Path) -> Iterator[Broker]:
    advertised = ["--set", f"advertised.listeners=PLAINTEXT://{proxy.bootstrap}"]
    with Broker.start(tmp_path / "data", arguments=advertised) as broker:
        proxy.forward_to(broker.address)
        yield broker


@pytest.mark.parametrize("count", [1, 2, 3], ids=["fewer", "as-many", "more"])
def test_given_a_transaction_whose_answers_were_lost_when_the_next_one_is_committed_then_its_records_are_there(
    proxy: LosingProxy, broker: Broker, count: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "orders")
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap,
                "transactional.id": "one",
                "linger.ms": 20,
                "retry.backoff.ms": 5_000,
                "retry.backoff.max.ms": 5_000,
            }
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("orders", "heard of", partition=0)
        producer.flush(5)  # the partition is in the transaction now: nothing but records is sent from here on
        proxy.is_losing = True
        for value in ("lost-1", "lost-2"):
            producer.produce("orders", value, partition=0)
        eventually(lambda: _served(producer) and offset_at(client, "orders", LATEST).offset == 3)
        proxy.cut()
        eventually(lambda: _abort(producer))

        wanted = [f"kept-{number}" for number in range(count)]
        eventually(lambda: _commit(producer, wanted), 30)

    assert _committed_values(broker) == wanted


def _served(producer: Producer) -> bool:
    producer.poll(0)
    return True


def _abort(producer: Producer) -> bool:
    try:
        producer.abort_transaction(5)
    except KafkaException as failure:
        assert failure.args[0].retriable(), failure
        return False
    return True


def _commit(producer: Producer, values: list[str]) -> bool:
    """As an application does it: what can be aborted is aborted, for the next attempt."""
    try:
        producer.begin_transaction()
        for value in values:
            producer.produce("orders", value, partition=0)
        producer.flush(5)
        producer.commit_transaction(5)
    except KafkaException as failure:
        assert failure.args[0].txn_requires_abort(), failure
        eventually(lambda: _abort(producer))
        return False
    return True


def _committed_values(broker: Broker) -> list[str]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", 0, 0)])
    values: list[str] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        values.append((message.value() or b"").decode())
    consumer.close()
    return values
