"""Reading: cold data while somebody writes, one log by twenty at once, and bulk against the machine's own limit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict

from tests.testkit.broker_process import BrokerProcess
from tests.testkit.page_cache import evict

from bench import brokers, machine
from bench.machine import in_own_process
from bench.measuring import measure
from bench.open_loop import open_loop_latencies_ms
from bench.percentiles import percentile
from bench.raw_produce import Produce, produce_exchanges
from bench.replay import replay
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.loads import Load
from bench.side_by_side.raw_throughput import FETCH_BYTES, fetch_exchange, produce_exchange
from bench.side_by_side.rows import MACHINE, Figures, Once

LOAD = Load("1kb", 1, "none")
CONSUMERS_COUNT = 20
# What the others write meanwhile: batches of 16 KiB, 16 MB/s.
WRITES_PER_S = 1_000
CATCH_UP_S = 3.0


class _Log:
    """A topic of one partition with so much in it, and the fetches of all of it."""

    def __init__(self, broker: BrokerProcess, topic: str, volume_bytes: int) -> None:
        self.topic = topic
        self._broker = broker
        count = LOAD.batches_per_partition(volume_bytes)
        topic_id = brokers.create_topic(broker, topic, 1, brokers.NO_FLUSH)
        in_own_process(replay, broker.address, [produce_exchange(broker.address, topic, LOAD)], count)
        self.fetches = fetch_exchange(broker.address, topic_id, LOAD, count)

    @property
    def fetches_count(self) -> int:
        return len(self.fetches.requests) // self.fetches.request_size

    @property
    def bytes_per_fetch(self) -> int:
        batch_bytes = len(LOAD.batch().data)
        return FETCH_BYTES // batch_bytes * batch_bytes

    def evict(self) -> None:
        for path in self._broker.data.glob(f"{self.topic}-*/*.log"):
            evict(path)

    def delete(self) -> None:
        brokers.delete_topic(self._broker, self.topic)


# Cold data


@contextmanager
def catch_up(volume_bytes: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    broker = laboratory.broker(system)
    yield lambda: _catch_up_once(broker, laboratory, volume_bytes)


def _catch_up_once(broker: BrokerProcess, laboratory: Laboratory, volume_bytes: int) -> Figures:
    """Everything is on the disk and nothing in memory when the reader begins; writers go on in another topic."""
    log = _Log(broker, laboratory.topic("catch-up"), volume_bytes)
    writing = Produce(laboratory.topic("catch-up-beside"), 16_384, 1_000)
    brokers.create_topic(broker, writing.name, 1, brokers.NO_FLUSH)
    exchanges = produce_exchanges(broker.address, writing.name, writing.batch(), writing)
    log.evict()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(
            in_own_process, open_loop_latencies_ms, broker.address, exchanges, WRITES_PER_S, CATCH_UP_S
        )
        read = measure(broker, replay, broker.address, [log.fetches], log.fetches_count)
        latencies: list[float] = beside.result()
    log.delete()
    brokers.delete_topic(broker, writing.name)
    mb_per_s = log.fetches_count * log.bytes_per_fetch / 1e6 / read.elapsed_s
    return {"mb_per_s": mb_per_s, "write_p99_ms": percentile(latencies, 99)}


# Many readers


@contextmanager
def fan_out(volume_bytes: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    broker = laboratory.broker(system)
    log = _Log(broker, laboratory.topic("fan-out"), volume_bytes)
    try:
        yield lambda: _read_once(broker, log, connections=CONSUMERS_COUNT)
    finally:
        log.delete()


# Bulk


@contextmanager
def bulk_fetch(volume_bytes: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    """One reader, beside a process that only sends a file over the loopback device."""
    if system == MACHINE:
        with brokers.scratch() as directory, machine.sendfile_probe(directory) as path:
            yield lambda: asdict(machine.sent_by_sendfile(path))
        return
    broker = laboratory.broker(system)
    log = _Log(broker, laboratory.topic("bulk"), volume_bytes)
    try:
        yield lambda: _read_once(broker, log, rounds=2)
    finally:
        log.delete()


def _read_once(broker: BrokerProcess, log: _Log, *, connections: int = 1, rounds: int = 1) -> Figures:
    """The whole log, so many times on each connection."""
    fetches_count = rounds * log.fetches_count
    run = measure(broker, replay, broker.address, [log.fetches] * connections, fetches_count)
    volume_bytes = connections * fetches_count * log.bytes_per_fetch
    return {"mb_per_s": volume_bytes / 1e6 / run.elapsed_s, "cpu_s_per_gb": run.broker_cpu_s / (volume_bytes / 1e9)}
