"""Produce and consume through the raw replay client: what a broker does when no client library stands in its way.

One connection. Requests to several partitions take turns, as librdkafka's do; a fetch asks for a part of every
partition, 1 MiB together, as every consumer's does. What was written is read from the page cache, more than once.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, wire
from bench.measuring import Run, measure
from bench.raw_produce import WINDOW_BYTES, WINDOW_REQUESTS, first_success
from bench.replay import Exchange, replay, success
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.loads import Load
from bench.side_by_side.rows import Figures, Once
from bench.side_by_side.starting import disk_bytes

FETCH_BYTES = 1 << 20
FETCH_WINDOW_REQUESTS = 4
READ_ROUNDS = 3
ACKS_LEADER = 1


@contextmanager
def raw_throughput(load: Load, volume_bytes: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    broker = laboratory.broker(system)
    yield lambda: _write_and_read(broker, laboratory.topic(f"raw-{load.name}"), load, volume_bytes)


def _write_and_read(broker: BrokerProcess, topic: str, load: Load, volume_bytes: int) -> Figures:
    batch, each = load.batch(), load.batches_per_partition(volume_bytes)
    topic_id = brokers.create_topic(broker, topic, load.partitions_count, brokers.NO_FLUSH)
    try:
        produces = produce_exchange(broker.address, topic, load)
        written = measure(broker, replay, broker.address, [produces], each * load.partitions_count)
        _check_end_offsets(broker, topic, load, each)
        on_disk_bytes = sum(disk_bytes(path) for path in broker.data.glob(f"{topic}-*"))
        fetches = fetch_exchange(broker.address, topic_id, load, each)
        requests = READ_ROUNDS * (len(fetches.requests) // fetches.request_size)
        read = measure(broker, replay, broker.address, [fetches], requests)
    finally:
        brokers.delete_topic(broker, topic)
    written_bytes = each * load.partitions_count * len(batch.data)
    read_bytes = requests * _batches_per_fetch(load) * load.partitions_count * len(batch.data)
    return {
        **_figures("produce", written, written_bytes),
        **_figures("consume", read, read_bytes),
        "peak_mb": max(written.peak_resident_mb, read.peak_resident_mb),
        "disk_mb_per_gb": on_disk_bytes / written_bytes * 1e3,
    }


def _figures(kind: str, run: Run, volume_bytes: int) -> Figures:
    return {
        f"{kind}_mb_per_s": volume_bytes / 1e6 / run.elapsed_s,
        f"{kind}_cpu_s_per_gb": run.broker_cpu_s / (volume_bytes / 1e9),
    }


def produce_exchange(address: tuple[str, int], topic: str, load: Load) -> Exchange:
    """A request to every partition in turn; each has its first one answered here."""
    batch, error_position = load.batch(), wire.produce_error_position(topic)
    requests = [wire.produce_request(topic, each, batch, ACKS_LEADER) for each in range(load.partitions_count)]
    with socket.create_connection(address) as connection:
        responses = [first_success(connection, request, error_position) for request in requests]
    size = len(requests[0])
    window = max(2, min(WINDOW_REQUESTS, WINDOW_BYTES // size))
    turns = max(1, (1 << 20) // (size * len(requests)))
    return Exchange(
        b"".join(requests) * turns, size, len(responses[0]), success(responses[0], (error_position,)), window
    )


def _check_end_offsets(broker: BrokerProcess, topic: str, load: Load, batches_count: int) -> None:
    """What was acknowledged must be there, with the first batch of `produce_exchange`."""
    acknowledged = (1 + batches_count) * load.batch().records_count
    stored = brokers.end_offsets(broker, topic, load.partitions_count)
    assert stored == [acknowledged] * load.partitions_count, f"{topic} ends at {stored}, not at {acknowledged}"


def _batches_per_fetch(load: Load) -> int:
    """Of one partition."""
    return max(1, FETCH_BYTES // load.partitions_count // len(load.batch().data))


def fetch_exchange(address: tuple[str, int], topic_id: bytes, load: Load, batches_count: int) -> Exchange:
    """The fetches of the whole log; the last batches, too few to fill one, are left out."""
    batch, per_fetch = load.batch(), _batches_per_fetch(load)
    requests = [
        wire.fetch_partitions_request(
            topic_id,
            dict.fromkeys(range(load.partitions_count), first * batch.records_count),
            per_fetch * len(batch.data),
        )
        for first in range(0, batches_count + 1 - per_fetch, per_fetch)
    ]
    with socket.create_connection(address) as connection:
        response = wire.exchange(connection, requests[0])
    expected_bytes = per_fetch * load.partitions_count * len(batch.data)
    assert len(response) > expected_bytes, f"a fetch brought {len(response)} bytes, not {expected_bytes}"
    no_errors = success(response, wire.fetch_error_positions(response))
    return Exchange(b"".join(requests), len(requests[0]), len(response), no_errors, FETCH_WINDOW_REQUESTS)
