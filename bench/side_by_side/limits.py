"""What no broker exceeds in this run: the machine's loopback device, and the raw client on a server that only counts.

The client's limits tell whether a row measured the broker: where a broker comes near them, it did not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from bench import machine, wire
from bench.machine import in_own_process
from bench.raw_fetch import REQUESTS as FETCHES
from bench.raw_produce import stub_exchange
from bench.replay import Exchange, replay, success
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.loads import Load
from bench.side_by_side.raw_throughput import FETCH_BYTES, FETCH_WINDOW_REQUESTS
from bench.side_by_side.rows import Once
from bench.side_by_side.single_records import in_flight, single_load
from bench.stub import stub

LOAD = Load("1kb", 1, "none")
CONNECTIONS = 8


@contextmanager
def loopback(laboratory: Laboratory, system: str) -> Iterator[Once]:
    del laboratory, system
    yield lambda: asdict(machine.sent_from_memory(machine.SENDFILE_CHUNK_BYTES))


@contextmanager
def client_produces(requests: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    """Batches as in the rows of 1 KB, one partition."""
    del system
    batch = LOAD.batch()
    exchange, response = stub_exchange("bench-limit", batch)
    with stub(exchange.request_size, response, laboratory.cores.broker) as address:
        yield lambda: {"mb_per_s": _requests_per_s(address, [exchange], requests) * len(batch.data) / 1e6}


@contextmanager
def client_fetches(share: float, laboratory: Laboratory, system: str) -> Iterator[Once]:
    del system
    topic_id = bytes(16)
    request = wire.fetch_request(topic_id, 0, 0, FETCH_BYTES)
    response = wire.fetch_response(topic_id, 0, bytes(FETCH_BYTES))
    no_errors = success(response, wire.fetch_error_positions(response))
    exchange = Exchange(request, len(request), len(response), no_errors, FETCH_WINDOW_REQUESTS)
    with stub(len(request), response, laboratory.cores.broker) as address:
        count = max(64, int(FETCHES * share))
        yield lambda: {"mb_per_s": _requests_per_s(address, [exchange], count) * FETCH_BYTES / 1e6}


@contextmanager
def client_single_records(requests: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    del system
    load = single_load(CONNECTIONS, requests)
    exchange, response = stub_exchange("bench-limit", load.batch())
    with stub(exchange.request_size, response, laboratory.cores.broker) as address:
        exchanges = in_flight([exchange] * CONNECTIONS)
        yield lambda: {"requests_per_s": _requests_per_s(address, exchanges, load.requests_per_connection)}


def _requests_per_s(address: tuple[str, int], exchanges: list[Exchange], count: int) -> float:
    """`count` on each connection."""
    return count * len(exchanges) / in_own_process(replay, address, exchanges, count).elapsed_s
