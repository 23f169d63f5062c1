"""Compaction: how fast a log is cleaned, and what a producer notices of it.

The speed is that of one round over a log of 1 KB records with a tenth as many keys, in this process and on one core:
the log's bytes, counted once, by the time of both passes, with all flushes and with the rests that a cleaner takes. It
is timed with and without the disk, since a flush costs what the disk makes of it.

The latency is that of the open loop of `raw_produce` (1 KB records, acks=1, page cache), side by side on one broker. In
both runs somebody else writes to another topic, which is compacted without a pause in the second one only.
"""

import statistics
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from tests.testkit.broker_process import BrokerProcess

from bench import brokers, raw_produce
from bench.percentiles import median_figures
from bench.report import Row
from penstock.protocol.batch import read_header
from penstock.protocol.records import Record, build_batch
from penstock.runtime.clock import SystemClock
from penstock.storage.compaction import CleanerLimits, Cleaning, plan_cleaning
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.pace import Pace

SPEED_NAME = "compaction"
LATENCY_NAME = "latency-while-compacting"
RECORD_BYTES = 1_000
RECORDS_PER_BATCH = 16
RECORDS_COUNT = 400_000
KEYS_COUNT = RECORDS_COUNT // 10
SEGMENT_BYTES = 64 << 20
NOW_MS = 1_700_000_000_000
MEMORY = "/dev/shm"
# Single pairs of a p99 say little on a machine that others use: 0.6 to 9.9 times that without, within minutes.
PAIRS_PER_REPETITION = 3

_CONFIG = LogConfig(
    segment_bytes=SEGMENT_BYTES,
    segment_ms=7 * 24 * 3_600_000,
    segment_index_bytes=10 << 20,
    index_interval_bytes=4096,
    retention_ms=-1,
    retention_bytes=-1,
    file_delete_delay_ms=0,
    is_compacted=True,
    is_deleted_by_retention=False,
)


def compaction_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """Ours only, since it needs the log and not a broker: on the disk of `directory`, and in memory."""
    if system != "penstock":
        return []
    rows = []
    directory.mkdir(parents=True)
    for name, place in ((SPEED_NAME, str(directory)), (f"{SPEED_NAME}-in-memory", MEMORY)):
        speeds = [_one_round(place) for _ in range(repeat)]
        rows.append(Row(name, "penstock", {"mb_per_s": statistics.median(speeds)}, (min(speeds), max(speeds))))
    return rows


def _one_round(place: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-compaction-", dir=place) as directory:
        log = _filled(f"{directory}/t-0")
        size = sum(segment.size for segment in log.segments[:-1])
        plan = plan_cleaning(log, log.log_end_offset, NOW_MS)
        assert plan is not None
        pace = Pace(SystemClock().monotonic_ms, threading.Event())
        cleaning = Cleaning(log, plan, CleanerLimits(), NOW_MS, pace.passed)
        begun = time.perf_counter()
        for work in cleaning.steps():
            work()
        elapsed_s = time.perf_counter() - begun
        assert cleaning.stats.records_kept == KEYS_COUNT, cleaning.stats
    return size / 1e6 / elapsed_s


def _filled(directory: str) -> Log:
    log = Log.open(directory, _CONFIG, now_ms=NOW_MS)
    value = bytes(range(256)) * 4
    for start in range(0, RECORDS_COUNT, RECORDS_PER_BATCH):
        # Keys come back in an order that has nothing to do with the one before.
        records = [
            Record(b"key-%012d" % (number * 7919 % KEYS_COUNT), value[: RECORD_BYTES - 16], (), NOW_MS)
            for number in range(start, start + RECORDS_PER_BATCH)
        ]
        batch = build_batch(records)
        log.stage(memoryview(batch), read_header(batch), 0, NOW_MS)
        log.write_staged()
    log.roll(NOW_MS)
    ticket = log.begin_flush()
    ticket.run()
    log.finish_flush(ticket)
    return log


def latency_rows(system: str, directory: Path, repeat: int) -> list[Row]:
    """The broker looks for something to compact all the time."""
    with brokers.start(system, directory, log_cleaner_backoff_ms=100) as broker:
        return _latency_rows(broker, system, repeat)


def _latency_rows(broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    without, with_it = f"{LATENCY_NAME}-not", LATENCY_NAME
    rounds: dict[str, list[dict[str, float]]] = {without: [], with_it: []}
    pair = [(without, "delete"), (with_it, "compact")]
    for _ in range(repeat * PAIRS_PER_REPETITION):
        for name, policy in pair:
            rounds[name].append(_latencies_beside(policy, broker))
        pair.reverse()  # what gets slower or faster meanwhile is not to favour one of them
    # Of neighbours: the machine is not the same for long.
    ratios = [after["p99_ms"] / before["p99_ms"] for before, after in zip(*rounds.values(), strict=True)]
    return [
        Row(without, system, median_figures(rounds[without])),
        Row(with_it, system, {**median_figures(rounds[with_it]), "p99_ratio": statistics.median(ratios)}),
    ]


def _latencies_beside(policy: str, broker: BrokerProcess) -> dict[str, float]:
    """Of one topic while another one is written, and compacted if that is its policy."""
    scenario = next(each for each in raw_produce.LATENCY if each.name == "latency-page-cache")
    topic = f"bench-fed-{policy}"
    configs = {
        "cleanup.policy": policy,
        "segment.bytes": str(8 << 20),
        "min.cleanable.dirty.ratio": "0.001",
        "file.delete.delay.ms": "0",
        "flush.messages": str(2**63 - 1),
    }
    brokers.create_topic(broker, topic, 1, configs)
    with _FedByAnother(broker.bootstrap, topic):
        figures = raw_produce.latencies_once(scenario, broker)
    brokers.delete_topic(broker, topic)
    return figures


class _FedByAnother:
    """Gives the cleaner a new segment several times a second: each makes it go through the whole log again."""

    def __init__(self, bootstrap: str, topic: str, keys_count: int = 100_000) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "batch.size": 100_000})
        self._topic = topic
        self._keys_count = keys_count
        self._written = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> None:
        for _ in range(self._keys_count // 1_000):  # 100 MB to go through in every round
            self._write(1_000)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._stop.wait(0.25):
            self._write(1_100)

    def _write(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, bytes(RECORD_BYTES), b"key-%d" % (self._written % self._keys_count))
            self._written += 1
        self._producer.flush(30)
