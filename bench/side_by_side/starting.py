"""Starting: from nothing, with many partitions, and after SIGKILL; and what a broker holds then.

Nobody's word is taken for being ready: the clock stops at the first acknowledged write, or when every end offset is
answered.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testkit import KafkaBroker, RawClient
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.waiting import lasting_port

from bench import brokers, process, wire
from bench.machine import in_own_process
from bench.raw_produce import ACKS_ALL, Produce, check_end_offsets, first_success, produce_exchanges
from bench.replay import replay
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Figures, Once
from penstock.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

IDLE_S = 2.0
PATIENCE_S = 120
PAUSE_S = 0.005
CREATE_TOPICS_VERSION = 5
TOPIC_ALREADY_EXISTS = 36
PARTITIONS_PER_TOPIC = 1_000
# Partitions enough that none of them fills a segment: a full one would be flushed, and there would be less to recover.
RECOVERY_PARTITIONS_COUNT = 4
GIB = 1 << 30


@contextmanager
def in_own_directory(
    once: Callable[[Laboratory, str, Path], Figures], laboratory: Laboratory, system: str
) -> Iterator[Once]:
    """A scenario whose every repetition begins with an empty directory, and with nobody else around."""

    def in_directory() -> Figures:
        with laboratory.own_directory(system) as directory:
            return once(laboratory, system, directory)

    yield in_directory


# From nothing


def cold_start(laboratory: Laboratory, system: str, directory: Path) -> Figures:
    """Kafka's directory is formatted before the clock starts."""
    broker = brokers.SYSTEMS[system](directory / system, {}, launcher=laboratory.broker_launcher, port=lasting_port())
    if isinstance(broker, KafkaBroker):
        broker.format()
    written_at: list[float] = []
    writer = threading.Thread(target=lambda: written_at.append(_first_write(("127.0.0.1", broker.port))))
    started = time.perf_counter()
    writer.start()
    broker.restart()
    with broker:
        writer.join()
        broker.until_loaded()
        time.sleep(IDLE_S)
        resident_mb = process.resident_mb(broker.pid)
    assert written_at, "no write was acknowledged"
    return {"first_write_s": written_at[0] - started, "idle_mb": resident_mb}


def _first_write(address: tuple[str, int]) -> float:
    """When a client that tries all the time has its first record acknowledged."""
    topic, deadline = "bench-first", time.monotonic() + PATIENCE_S
    request = wire.produce_request(topic, 0, wire.batch_of([b"first"]), ACKS_ALL)
    while time.monotonic() < deadline:
        try:
            if _has_topic(address, topic):
                with socket.create_connection(address) as connection:
                    first_success(connection, request, wire.produce_error_position(topic), PAUSE_S)
                return time.perf_counter()
        except ConnectionError:
            pass
        time.sleep(PAUSE_S)
    raise TimeoutError("no write was acknowledged")


def _has_topic(address: tuple[str, int], topic: str) -> bool:
    """Creates it where that is possible already."""
    request = CreateTopicsRequest(topics=[CreatableTopic(name=topic, num_partitions=1, replication_factor=1)])
    with RawClient(address) as client:
        [created] = client.exchange(request, CREATE_TOPICS_VERSION, CreateTopicsResponse).topics
    return created.error_code in (0, TOPIC_ALREADY_EXISTS)


# Many partitions


def many_partitions(count: int, laboratory: Laboratory, system: str, directory: Path) -> Figures:
    """A record in each, a clean stop, and a start."""
    load = Produce("partitions", 0, 100, connections=min(count, PARTITIONS_PER_TOPIC))
    topics = [f"bench-partitions-{number}" for number in range(count // load.connections)]
    with laboratory.own_broker(system, directory) as broker:
        started = time.perf_counter()
        for topic in topics:
            brokers.create_topic(broker, topic, load.connections, load.configs)
        created_s = time.perf_counter() - started
        for topic in topics:
            produce_exchanges(broker.address, topic, load.batch(), load)
        broker.stop()
        restarted_s = _timed_restart(broker, topics, load)
        time.sleep(IDLE_S)
        held = {"resident_mb": process.resident_mb(broker.pid), "disk_mb": disk_bytes(broker.data) / 1e6}
    return {"created_s": created_s, "restarted_s": restarted_s, **held}


def _timed_restart(broker: BrokerProcess, topics: list[str], load: Produce) -> float:
    """Until every end offset is answered, and right."""
    started = time.perf_counter()
    broker.restart()
    for topic in topics:
        check_end_offsets(broker, topic, load.batch(), load)
    return time.perf_counter() - started


def disk_bytes(directory: Path) -> int:
    """What is allocated, not what the files' lengths say: Kafka's indexes are mostly holes."""
    block_bytes = 512
    return sum(path.stat().st_blocks * block_bytes for path in directory.rglob("*") if path.is_file())


# After SIGKILL


def recovery(volume_bytes: int, laboratory: Laboratory, system: str, directory: Path) -> Figures:
    """So much acknowledged and never flushed."""
    load = Produce("recovery", 16_384, 1_000, connections=RECOVERY_PARTITIONS_COUNT, requests=volume_bytes // 16_384)
    with laboratory.own_broker(system, directory) as broker:
        brokers.create_topic(broker, load.name, load.connections, load.configs)
        exchanges = produce_exchanges(broker.address, load.name, load.batch(), load)
        in_own_process(replay, broker.address, exchanges, load.requests_per_connection)
        broker.kill()
        restarted_s = _timed_restart(broker, [load.name], load)
    return {"s_per_gib": restarted_s / (volume_bytes / GIB)}
