"""Disks that fail: nothing is acknowledged that is not kept, and what can go on goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.chaos.faults import inject, strace_or_skip
from tests.chaos.ledger import PARTITIONS, TOPIC, Ledger, create_topic, read_all
from tests.testkit import RawClient, eventually
from tests.testkit.broker import Broker


def a_producer(bootstrap: str, **settings: object) -> Producer:
    return Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "retries": 0, "log_level": 0}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )


def send(producer: Producer, ledger: Ledger, number: int, payload_bytes: int = 100) -> bool:
    """True when it was acknowledged."""
    partition = number % PARTITIONS
    before = len(ledger.acknowledged[partition])
    ledger.sent[partition].append(number)
    producer.produce(TOPIC, b"%012d" % number + b"." * payload_bytes, partition=partition, on_delivery=ledger.settle)
    assert producer.flush(20) == 0
    return len(ledger.acknowledged[partition]) > before


@pytest.fixture
def strace() -> str:
    return strace_or_skip()


def test_given_a_failed_fdatasync_then_nothing_is_acknowledged_any_more_and_the_broker_ends_unclean(
    tmp_path: Path, strace: str
) -> None:
    ledger = Ledger()
    broker = Broker.start(tmp_path / "data")
    create_topic(broker.bootstrap)
    producer = a_producer(broker.bootstrap, message_timeout_ms=3_000)
    assert send(producer, ledger, 0)
    tracer = inject(strace, broker.pid, "fdatasync:error=EIO:when=1")

    assert not send(producer, ledger, PARTITIONS)  # the same partition

    exit_code = broker._running().wait(10)
    tracer.wait(10)
    assert exit_code == 1
    assert "a flush failed" in broker.log_text()
    with Broker.start(tmp_path / "data") as again:
        ledger.check(read_all(again.bootstrap), exactly_once=True)


def test_given_a_marker_on_its_way_to_a_slow_disk_when_who_asked_is_gone_and_the_broker_stops_then_it_stops_clean(
    tmp_path: Path, strace: str
) -> None:
    with Broker.start(tmp_path / "data") as broker:
        create_topic(broker.bootstrap)
        # Longer than the tasks of a broker that stops have to end.
        tracer = inject(strace, broker.pid, "fdatasync:delay_enter=1500000:when=1")
        with RawClient(broker.address) as client:
            topic = WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])
            marker = WritableTxnMarker(producer_id=5, producer_epoch=0, transaction_result=False, topics=[topic])
            request = WriteTxnMarkersRequest(markers=[marker])
            client.send_request(request.API_KEY, 1, request.encode(1))
            written = tmp_path / "data" / f"{TOPIC}-0" / "00000000000000000000.log"
            eventually(lambda: written.stat().st_size > 0, 10, "no marker")

        broker.stop()  # with exit code 0, and without waiting for anybody for ever
        tracer.wait(10)
        assert "unexpected failure" not in broker.log_text()
        broker.restart()
        assert "the last stop was not clean" not in broker.log_text()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a full disk needs root to mount a small tmpfs")
    at = tmp_path / "small"
    at.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(at)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs mounts here: {mounted.stderr.decode().strip()}")
    yield at
    subprocess.run(["umount", "--lazy", str(at)], check=True)


# A tmpfs that fills up gives real short writes as well: the last append fits in part.
def test_given_a_full_disk_then_appends_fail_whole_reads_go_on_and_freed_space_is_enough_to_go_on(
    tmp_path: Path, small_disk: Path
) -> None:
    ledger = Ledger()
    # Checkpoints and retention come round while the disk is full: they must not end the broker either.
    settings = {"log.flush.offset.checkpoint.interval.ms": "100", "log.retention.check.interval.ms": "100"}
    with Broker.start(small_disk / "data", log_index_size_max_bytes=40_960, **settings) as broker:  # type: ignore[arg-type]
        create_topic(broker.bootstrap)
        producer = a_producer(broker.bootstrap, message_timeout_ms=5_000)
        for number in range(50):
            assert send(producer, ledger, number)
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 65_536)
                file.flush()

        refused = [number for number in range(50, 80) if not send(producer, ledger, number, payload_bytes=100_000)]
        assert refused, "the disk was not full"
        assert "KAFKA_STORAGE_ERROR" in broker.log_text() or ledger.failures
        ledger.check(read_all(broker.bootstrap), exactly_once=True)
        with pytest.raises(KafkaException):
            create_other_topic(broker.bootstrap, "while-full")

        ballast.unlink()
        for number in range(80, 120):
            assert send(producer, ledger, number)
        create_other_topic(broker.bootstrap, "after")
        ledger.check(read_all(broker.bootstrap), exactly_once=True)
        broker.kill()
        broker.restart()
        ledger.check(read_all(broker.bootstrap), exactly_once=True)


def create_other_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Large enough that the metadata of its partitions cannot fit into what is left of a page.
    admin.create_topics([NewTopic(name, 500, 1)])[name].result(10)
