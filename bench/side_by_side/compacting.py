"""Compaction as a broker does it: a log of keyed records becomes one to be compacted, and the clock runs until its
closed segments hold one record of each key.

The same for all, from outside: the sizes of the files tell. The time until the cleaner looks (a tenth of a second at
most here) is in the figure.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.waiting import eventually

from bench import brokers, wire
from bench.machine import in_own_process
from bench.payloads import values
from bench.raw_produce import WINDOW_REQUESTS, first_success
from bench.replay import Exchange, replay, success
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Figures, Once

RECORD_BYTES = 1_000
RECORDS_PER_BATCH = 16
VALUES_PER_KEY = 10
CLOSED_SEGMENTS_COUNT = 12
SEGMENT_BYTES_AT_LEAST = 1 << 20  # as Kafka has it
CLEANER_BACKOFF_MS = 100
PATIENCE_S = 300
# Above what one record of each key takes: batches that lost records keep their headers.
SETTLED_SHARE = 1.25


@contextmanager
def compaction(records_count: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    settings = {"log.cleaner.backoff.ms": CLEANER_BACKOFF_MS}
    with (
        laboratory.own_directory(system) as directory,
        laboratory.own_broker(system, directory, **settings) as broker,
    ):
        yield lambda: _compaction_once(broker, laboratory.topic("compaction"), records_count)


def _compaction_once(broker: BrokerProcess, topic: str, records_count: int) -> Figures:
    segment_bytes = max(SEGMENT_BYTES_AT_LEAST, records_count * RECORD_BYTES // CLOSED_SEGMENTS_COUNT)
    policy = {"cleanup.policy": "delete", "segment.bytes": str(segment_bytes), "min.cleanable.dirty.ratio": "0.01"}
    brokers.create_topic(broker, topic, 1, {**policy, **brokers.NO_FLUSH})
    keys_count = records_count // VALUES_PER_KEY
    _fill(broker, topic, keys_count)
    size_bytes = _closed_bytes(broker.data, topic)
    started = time.perf_counter()
    _compact(broker, topic)
    settled_bytes = keys_count * RECORD_BYTES * SETTLED_SHARE
    eventually(lambda: _closed_bytes(broker.data, topic) <= settled_bytes, PATIENCE_S, f"{topic} is not compacted")
    elapsed_s = time.perf_counter() - started
    brokers.delete_topic(broker, topic)
    return {"mb_per_s": size_bytes / 1e6 / elapsed_s}


def _fill(broker: BrokerProcess, topic: str, keys_count: int) -> None:
    """Every key several times, in the same order each time."""
    error_position = wire.produce_error_position(topic)
    pool = values(RECORD_BYTES - 16, 1_000)
    requests = [
        wire.produce_request(topic, 0, _batch(first, pool), 1)
        for first in range(0, keys_count // RECORDS_PER_BATCH * RECORDS_PER_BATCH, RECORDS_PER_BATCH)
    ]
    with socket.create_connection(broker.address) as connection:
        response = first_success(connection, requests[0], error_position)
    sizes = {len(request) for request in requests}
    assert len(sizes) == 1, f"the requests have different sizes: {sizes}"
    no_errors = success(response, (error_position,))
    exchange = Exchange(b"".join(requests), len(requests[0]), len(response), no_errors, WINDOW_REQUESTS)
    in_own_process(replay, broker.address, [exchange], VALUES_PER_KEY * len(requests))


def _batch(first: int, pool: list[bytes]) -> wire.Batch:
    records = [
        wire.record(pool[number % len(pool)], number - first, b"key-%012d" % number)
        for number in range(first, first + RECORDS_PER_BATCH)
    ]
    return wire.batch_of_records(b"".join(records), RECORDS_PER_BATCH)


def _compact(broker: BrokerProcess, topic: str) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = brokers.admin_client(broker)
    [altered] = admin.incremental_alter_configs([wanted]).values()
    altered.result(brokers.ADMIN_TIMEOUT_S)


def _closed_bytes(data: Path, topic: str) -> int:
    """Of the segments that may be compacted: all but the last. Files that are being replaced have other endings."""
    sizes: dict[str, int] = {}
    for path in data.glob(f"{topic}-0/*.log"):
        try:
            sizes[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sum(size for name, size in sizes.items() if name != max(sizes))
