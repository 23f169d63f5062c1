"""Fetch through the raw replay client: a log in the page cache, read again and again in pieces of exactly 1 MiB.

The log is one segment of 16 KiB batches, so a fetch that starts at a multiple of 64 batches brings 1 MiB to the byte.
"""

import socket
from dataclasses import replace

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, wire
from bench.machine import in_own_process
from bench.measuring import Run, ceiling_row, measure, throughput_row
from bench.raw_produce import Produce, produce_exchanges
from bench.replay import Exchange, replay, success
from bench.report import Row

NAME = "fetch-1m"
# The same from another address: Penstock sends to other machines by sendfile, as Kafka does to all.
SENDFILE_NAME = "fetch-1m-sendfile"
OTHER_HOST = "127.0.0.2"
FETCH_BYTES = 1 << 20
REQUESTS = 4_096
WINDOW_REQUESTS = 4
LOG = Produce("fetch-log", 16_384, 1_000, requests=32_768)


def fetch_rows(broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    batch = LOG.batch()
    topic = f"bench-{LOG.name}"
    topic_id = brokers.create_topic(broker, topic, 1, LOG.configs)
    filling = produce_exchanges(broker.address, topic, batch, LOG)
    in_own_process(replay, broker.address, filling, LOG.requests - 1)
    exchange = _fetch_exchange(broker.address, topic_id, batch)
    exchanges = {NAME: exchange, SENDFILE_NAME: replace(exchange, client_host=OTHER_HOST)}
    runs: dict[str, list[Run]] = {name: [] for name in exchanges}
    for _ in range(repeat):
        for name in exchanges:
            runs[name].append(measure(broker, replay, broker.address, [exchanges[name]], REQUESTS))
    brokers.delete_topic(broker, topic)
    return [throughput_row(name, system, "mb_per_s", runs[name], REQUESTS, FETCH_BYTES) for name in exchanges]


def fetch_ceiling_row(repeat: int) -> Row:
    topic_id = bytes(16)
    response = wire.fetch_response(topic_id, 0, bytes(FETCH_BYTES))
    exchange = _exchange([wire.fetch_request(topic_id, 0, 0, FETCH_BYTES)], response)
    return ceiling_row(NAME, "mb_per_s", [exchange], response, repeat, REQUESTS, FETCH_BYTES)


def _fetch_exchange(address: tuple[str, int], topic_id: bytes, batch: wire.Batch) -> Exchange:
    """The fetches of the whole log, each tried once, which also warms the broker up."""
    records_per_fetch = FETCH_BYTES // LOG.batch_bytes * batch.records_count
    offsets = range(0, LOG.requests * batch.records_count, records_per_fetch)
    requests = [wire.fetch_request(topic_id, 0, offset, FETCH_BYTES) for offset in offsets]
    with socket.create_connection(address) as connection:
        for offset, request in zip(offsets, requests, strict=True):
            response = wire.exchange(connection, request)
            records = wire.fetched_records(response)
            base_offset = int.from_bytes(records[:8], "big")
            assert (base_offset, len(records)) == (offset, FETCH_BYTES), (
                f"{len(records)} bytes from {base_offset} at {offset}"
            )
    return _exchange(requests, response)


def _exchange(requests: list[bytes], response: bytes) -> Exchange:
    no_errors = success(response, (wire.FETCH_ERROR_POSITION, wire.FETCH_PARTITION_ERROR_POSITION))
    return Exchange(b"".join(requests), len(requests[0]), len(response), no_errors, WINDOW_REQUESTS)
