"""Starting, holding many partitions, and coming back after SIGKILL: times, memory and descriptors.

"Ready" is what the broker itself says: the ready file, or the line in Kafka's log. The scenarios that restart a broker
also ask for end offsets, so that one which says it before it has its log back gains nothing.
"""

import statistics
import time
from pathlib import Path

from tests.testkit.broker import Broker
from tests.testkit.broker_process import BrokerProcess

from bench import brokers, process
from bench.machine import in_own_process
from bench.raw_produce import Produce, check_end_offsets, produce_exchanges
from bench.replay import replay
from bench.report import Row
from bench.targets import PARTITIONS_COUNT

IDLE_S = 2.0
TOPICS_COUNT = 10
ONE_RECORD_EACH = Produce("partitions", 0, 100, connections=PARTITIONS_COUNT // TOPICS_COUNT)
# Partitions enough that none of them fills a segment: a full one would be flushed, and there would be less to recover.
RECOVERY_PARTITIONS_COUNT = 4
RECOVERY_GIB = 2
GIB = 1 << 30


def cold_start_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """A broker with no data: seconds to ready, and its memory after two idle seconds."""
    ready_s, resident_mb = [], []
    for repetition in range(repeat):
        broker, elapsed_s = timed_start(system, directory / f"cold-{repetition}")
        with broker:
            time.sleep(IDLE_S)
            ready_s.append(elapsed_s)
            resident_mb.append(process.resident_mb(broker.pid))
    figures = {"ready_s": statistics.median(ready_s), "resident_mb": statistics.median(resident_mb)}
    return [Row("cold-start", system, figures, (min(ready_s), max(ready_s)))]


def timed_start(system: str, directory: Path) -> tuple[BrokerProcess, float]:
    started = time.time()
    broker = brokers.start(system, directory)
    return broker, _ready_at(broker) - started


def _ready_at(broker: BrokerProcess) -> float:
    # The kit looks for the ready file every now and then; the file itself knows when it was written.
    return broker.ready_path.stat().st_mtime if isinstance(broker, Broker) else time.time()


def partitions_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """10,000 partitions with a record each: how long they take to create, close and open, and what they hold open."""
    del repeat  # it takes long enough once
    with brokers.start(system, directory) as broker:
        topics = [f"bench-partitions-{number}" for number in range(TOPICS_COUNT)]
        started = time.monotonic()
        for topic in topics:
            brokers.create_topic(broker, topic, ONE_RECORD_EACH.connections, brokers.NO_FLUSH)
        created_s = time.monotonic() - started
        for topic in topics:
            produce_exchanges(broker.address, topic, ONE_RECORD_EACH.batch(), ONE_RECORD_EACH)
        started = time.monotonic()
        broker.stop()
        stopped_s = time.monotonic() - started
        restarted = time.time()
        ready_s = _timed_restart(broker)
        for topic in topics:
            check_end_offsets(broker, topic, ONE_RECORD_EACH.batch(), ONE_RECORD_EACH)
        answered_s = time.time() - restarted
        time.sleep(IDLE_S)
        figures = {
            "ready_s": ready_s,
            "answered_s": answered_s,
            "created_s": created_s,
            "stopped_s": stopped_s,
            "resident_mb": process.resident_mb(broker.pid),
            "descriptors": process.descriptors_count(broker.pid),
            "memory_maps": process.memory_maps_count(broker.pid),
        }
    return [Row("partitions-10k", system, figures)]


def recovery_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """SIGKILL with so much acknowledged but never flushed; the clock stops when every end offset has been answered."""
    del repeat
    load = Produce(
        "recovery", 16_384, 1_000, connections=RECOVERY_PARTITIONS_COUNT, requests=RECOVERY_GIB * GIB // 16_384
    )
    batch = load.batch()
    with brokers.start(system, directory) as broker:
        brokers.create_topic(broker, load.name, load.connections, load.configs)
        exchanges = produce_exchanges(broker.address, load.name, batch, load)
        in_own_process(replay, broker.address, exchanges, load.requests_per_connection)
        broker.kill()
        restarted = time.time()
        ready_s = _timed_restart(broker)
        check_end_offsets(broker, load.name, batch, load)
        answered_s = time.time() - restarted
    figures = {"s_per_gib": answered_s / RECOVERY_GIB, "ready_s": ready_s, "answered_s": answered_s}
    return [Row("recovery", system, figures)]


def _timed_restart(broker: BrokerProcess) -> float:
    started = time.time()
    broker.restart()
    return _ready_at(broker) - started
