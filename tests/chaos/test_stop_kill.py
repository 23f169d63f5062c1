"""A broker is killed in the middle of its stop: another leads, and its logs are trusted only when whole (trap A7).

The kill comes with the n-th of some of the calls that a stop consists of: files removed and connections closed while it
hands over, then logs flushed and closed, checkpoints renamed, the clean-shutdown marker last. Which n are tried comes
from a seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.protocol.batch import read_header
from tests.chaos.conftest import rounds
from tests.chaos.faults import inject, strace_or_skip
from tests.cluster.finding import create_topic_over, leader_of, states_of, until_readable
from tests.testkit import Broker, Cluster, eventually

ALL = (1, 2, 3)
STOPS = rounds(short=3, full=50)
# The calls that are counted, of each thread for itself, and about as many as a stop has of them; with the last ones
# some brokers stop before. Logs that are closed cut their indexes, and all that is written then comes to its place by a
# rename.
KINDS = (("unlink,close,fsync,fdatasync,rename", 45), ("ftruncate", 2), ("rename", 4))
MARKER = ".kafka_cleanshutdown"
UNCLEAN = "the last stop was not clean"


class Writer:
    """An idempotent producer that goes on through everything."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self._topic = topic
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.failures: list[KafkaError] = []

    def until_acknowledged(self, more: int) -> None:
        target = len(self.acknowledged) + more
        eventually(lambda: self._write() >= target, 30, "nothing was acknowledged any more")

    def finish(self) -> None:
        assert self._producer.flush(30) == 0

    def _write(self) -> int:
        self.sent.append(b"%d" % len(self.sent))
        self._producer.produce(self._topic, self.sent[-1], partition=0, on_delivery=self._delivered)
        self._producer.poll(0.002)
        return len(self.acknowledged)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.failures.append(error)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.start(tmp_path, brokers=3) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_given_a_leader_that_is_killed_while_it_stops_then_another_leads_and_nothing_acknowledged_is_lost(
    cluster: Cluster, topic_name: str, luck: random.Random
) -> None:
    strace = strace_or_skip()
    create_topic_over(cluster, topic_name, ALL)
    writer = Writer(cluster.bootstrap, topic_name)

    for number in range(STOPS):
        writer.until_acknowledged(20)
        broker = cluster[leader_of(cluster, topic_name)]
        calls, last = KINDS[number % len(KINDS)]
        tracer = inject(strace, broker.pid, f"{calls}:signal=SIGKILL:when={luck.randint(1, last)}")
        os.kill(broker.pid, signal.SIGTERM)
        eventually(lambda: not broker.is_running, 30, "it neither stops nor dies")  # noqa: B023 - called at once
        tracer.wait(10)

        writer.until_acknowledged(20)
        is_clean, uncleans = (broker.data / MARKER).exists(), broker.log_text().count(UNCLEAN)
        if is_clean:
            assert (broker.data / f"{topic_name}-0" / f"{_end_offset(broker, topic_name):020}.snapshot").exists()
        broker.restart()
        assert is_clean == (broker.log_text().count(UNCLEAN) == uncleans)
        eventually(lambda: sorted(states_of(cluster, topic_name)[0].isr_nodes) == [*ALL], 30)

    writer.finish()
    assert writer.failures == []
    assert writer.acknowledged == writer.sent
    until_readable(cluster, topic_name, writer.sent)
    eventually(lambda: len({_records(cluster[each], topic_name) for each in ALL}) == 1, 30, "the logs differ")


def _end_offset(broker: Broker, topic: str) -> int:
    """Of what is in its files. A log that was closed has a snapshot of its producers there."""
    content = memoryview(_records(broker, topic))
    end_offset = 0
    while content:
        header = read_header(content)
        end_offset, content = header.last_offset + 1, content[header.size :]
    return end_offset


def _records(broker: Broker, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((broker.data / f"{topic}-0").glob("*.log")))
