"""Produce through the raw replay client: throughput as fast as it goes, latency at a steady rate.

A repetition is bounded by volume, not by time: what lies dirty in the page cache stays under the kernel's threshold for
writing back and within one segment, whose end is flushed, and the topic is deleted afterwards; so the disk is measured
only where acks=all waits for it.
"""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, wire
from bench.machine import in_own_process
from bench.measuring import Run, ceiling_row, measure, throughput_row
from bench.open_loop import open_loop_latencies_ms
from bench.percentiles import latency_figures, median_figures
from bench.replay import Exchange, replay, success
from bench.report import Row
from bench.stub import stub

WINDOW_REQUESTS = 64
WINDOW_BYTES = 8 << 20
SEND_BUFFER_BYTES = 1 << 20
LEADER_TIMEOUT_S = 30
LEADER_PAUSE_S = 0.05
LATENCY_RATE_PER_S = 1_000
LATENCY_SECONDS = 8


@dataclass(frozen=True, slots=True)
class Produce:
    """Connections that each produce to a partition of their own, one batch a request."""

    name: str
    batch_bytes: int
    """0: a batch is a single record."""
    record_bytes: int
    connections: int = 1
    requests: int = 0
    """Over all connections together."""
    acks: int = 1
    flushed: bool = False
    """Whether acks=all waits for the disk; otherwise all is acknowledged from the page cache."""
    figure: str = "mb_per_s"

    @property
    def requests_per_connection(self) -> int:
        return self.requests // self.connections

    @property
    def configs(self) -> Mapping[str, str]:
        return brokers.FLUSH_EACH if self.flushed else brokers.NO_FLUSH

    def batch(self) -> wire.Batch:
        if self.batch_bytes:
            return wire.batch_of_size(self.batch_bytes, self.record_bytes)
        return wire.batch_of([bytes(self.record_bytes)])


ACKS_ALL = -1

THROUGHPUT = (
    Produce("produce-16k", 16_384, 1_000, requests=60_000),
    Produce("produce-16k-8c", 16_384, 1_000, connections=8, requests=60_000),
    Produce("produce-16k-acks-all", 16_384, 1_000, requests=60_000, acks=ACKS_ALL),
    Produce("produce-16k-flushed", 16_384, 1_000, connections=8, requests=40_000, acks=ACKS_ALL, flushed=True),
    Produce("produce-1m", 1_000_000, 1_000, requests=1_000),
    Produce("single-8c", 0, 100, connections=8, requests=240_000, figure="requests_per_s"),
)
LATENCY = (
    Produce("latency-page-cache", 0, 1_000),
    Produce("latency-flushed", 0, 1_000, acks=ACKS_ALL, flushed=True),
    Produce("latency-flushed-8c", 0, 1_000, connections=8, acks=ACKS_ALL, flushed=True),
)


def produce_rows(scenario: Produce, broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    batch = scenario.batch()
    # The first repetition warms the broker up and is not counted.
    runs = [_produce_once(broker, scenario, batch, repetition) for repetition in range(repeat + 1)][1:]
    return [throughput_row(scenario.name, system, scenario.figure, runs, scenario.requests, len(batch.data))]


def _produce_once(broker: BrokerProcess, scenario: Produce, batch: wire.Batch, repetition: int) -> Run:
    topic = f"bench-{scenario.name}-{repetition}"
    brokers.create_topic(broker, topic, scenario.connections, scenario.configs)
    exchanges = produce_exchanges(broker.address, topic, batch, scenario)
    run = measure(broker, replay, broker.address, exchanges, scenario.requests_per_connection)
    check_end_offsets(broker, topic, batch, scenario)
    brokers.delete_topic(broker, topic)
    return run


def check_end_offsets(broker: BrokerProcess, topic: str, batch: wire.Batch, scenario: Produce) -> None:
    """What was acknowledged must be there, no more and no less."""
    first_response = 1
    acknowledged = (first_response + scenario.requests_per_connection) * batch.records_count
    stored = brokers.end_offsets(broker, topic, scenario.connections)
    assert stored == [acknowledged] * scenario.connections, (
        f"{topic} ends at {stored}, not at {acknowledged} everywhere"
    )


def produce_ceiling_row(scenario: Produce, repeat: int) -> Row:
    batch = scenario.batch()
    exchange, response = stub_exchange(f"bench-{scenario.name}-0", batch, scenario.acks)
    exchanges = [exchange] * scenario.connections
    return ceiling_row(scenario.name, scenario.figure, exchanges, response, repeat, scenario.requests, len(batch.data))


def latency_rows(scenario: Produce, broker: BrokerProcess, system: str, repeat: int) -> list[Row]:
    rounds = [latencies_once(scenario, broker) for _ in range(repeat)]
    return [Row(scenario.name, system, median_figures(rounds))]


def latencies_once(scenario: Produce, broker: BrokerProcess) -> dict[str, float]:
    topic = f"bench-{scenario.name}-0"
    brokers.create_topic(broker, topic, scenario.connections, scenario.configs)
    latencies = _open_loop(broker.address, produce_exchanges(broker.address, topic, scenario.batch(), scenario))
    brokers.delete_topic(broker, topic)
    return latency_figures(latencies)


def latency_floor_row(scenario: Produce, repeat: int) -> Row:
    exchange, response = stub_exchange(f"bench-{scenario.name}-0", scenario.batch(), scenario.acks)
    with stub(exchange.request_size, response) as address:
        rounds = [latency_figures(_open_loop(address, [exchange] * scenario.connections)) for _ in range(repeat)]
    return Row(scenario.name, "stub", median_figures(rounds))


def _open_loop(address: tuple[str, int], exchanges: list[Exchange]) -> list[float]:
    return in_own_process(open_loop_latencies_ms, address, exchanges, LATENCY_RATE_PER_S, LATENCY_SECONDS)


def produce_exchanges(address: tuple[str, int], topic: str, batch: wire.Batch, scenario: Produce) -> list[Exchange]:
    """One exchange per partition. Each has its request answered once here, to see what a success looks like."""
    exchanges = []
    with socket.create_connection(address) as connection:
        for partition in range(scenario.connections):
            request = wire.produce_request(topic, partition, batch, scenario.acks)
            response = first_success(connection, request, wire.produce_error_position(topic))
            exchanges.append(_exchange(request, response, wire.produce_error_position(topic)))
    return exchanges


def first_success(
    connection: socket.socket, request: bytes, error_position: int, pause_s: float = LEADER_PAUSE_S
) -> bytes:
    """A topic's leader may need a moment to know that it leads."""
    deadline = time.monotonic() + LEADER_TIMEOUT_S
    while True:
        response = wire.exchange(connection, request)
        error_code = wire.int16_at(response, error_position)
        if not error_code:
            return response
        if time.monotonic() > deadline:
            raise TimeoutError(f"Produce is answered with error code {error_code}")
        time.sleep(pause_s)


def stub_exchange(topic: str, batch: wire.Batch, acks: int = 1) -> tuple[Exchange, bytes]:
    """For a server that only counts: what to send, and what it is to answer."""
    response = wire.produce_response(topic, 0)
    request = wire.produce_request(topic, 0, batch, acks)
    return _exchange(request, response, wire.produce_error_position(topic)), response


def _exchange(request: bytes, response: bytes, error_position: int) -> Exchange:
    window = max(2, min(WINDOW_REQUESTS, WINDOW_BYTES // len(request)))
    requests = request * max(1, SEND_BUFFER_BYTES // len(request))
    return Exchange(requests, len(request), len(response), success(response, (error_position,)), window)
