"""Latencies at a steady rate: from the moment a message was due to its acknowledgement, or until a consumer has it."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, wire
from bench.machine import in_own_process
from bench.open_loop import open_loop_latencies_ms
from bench.payloads import values
from bench.percentiles import latency_figures
from bench.raw_produce import ACKS_ALL, Produce, first_success, produce_exchanges
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.latency_client import Steady, end_to_end_latencies_ms
from bench.side_by_side.latency_stub import TOPIC_ID, latency_stub
from bench.side_by_side.rows import STUB, Figures, Once

VALUE_BYTES = 1_000
REQUESTS_PER_S = 1_000
CONSUMERS_COUNT = 20


@dataclass(frozen=True, slots=True)
class EndToEnd:
    messages_per_s: int
    acks: int
    seconds: float
    consumers_count: int = 1

    @property
    def requests_per_s(self) -> int:
        return min(REQUESTS_PER_S, self.messages_per_s)

    @property
    def records_per_request(self) -> int:
        return self.messages_per_s // self.requests_per_s

    @property
    def steady(self) -> Steady:
        return Steady(self.requests_per_s, self.records_per_request, self.seconds, self.consumers_count)

    def batch(self) -> wire.Batch:
        return wire.batch_of(values(VALUE_BYTES, self.records_per_request))


@contextmanager
def end_to_end(load: EndToEnd, laboratory: Laboratory, system: str) -> Iterator[Once]:
    if system == STUB:
        yield lambda: _end_to_end_alone(laboratory, load)
    else:
        broker = laboratory.broker(system)
        yield lambda: _end_to_end_once(broker, laboratory, load)


def _end_to_end_alone(laboratory: Laboratory, load: EndToEnd) -> Figures:
    """Without a broker's part in it: each repetition has a stub of its own, which counts from zero."""
    topic, batch = laboratory.topic("end-to-end"), load.batch()
    with latency_stub(topic, batch, laboratory.cores.broker) as address:
        request, error_position = wire.produce_request(topic, 0, batch, load.acks), wire.produce_error_position(topic)
        arguments = (address, request, error_position, TOPIC_ID, 0, load.steady)
        return latency_figures(in_own_process(end_to_end_latencies_ms, *arguments))


def _end_to_end_once(broker: BrokerProcess, laboratory: Laboratory, load: EndToEnd) -> Figures:
    topic, batch = laboratory.topic(f"end-to-end-{load.messages_per_s}"), load.batch()
    topic_id = brokers.create_topic(broker, topic, 1, brokers.NO_FLUSH)
    request, error_position = wire.produce_request(topic, 0, batch, load.acks), wire.produce_error_position(topic)
    with socket.create_connection(broker.address) as connection:
        first_success(connection, request, error_position)
    arguments = (broker.address, request, error_position, topic_id, batch.records_count, load.steady)
    latencies = in_own_process(end_to_end_latencies_ms, *arguments)
    brokers.delete_topic(broker, topic)
    return latency_figures(latencies)


@contextmanager
def acknowledgement(seconds: float, laboratory: Laboratory, system: str, *, flushed: bool) -> Iterator[Once]:
    """acks=all, single records of 1 KB on one connection; with or without a flush before the acknowledgement."""
    broker = laboratory.broker(system)
    load = Produce("acknowledged", 0, VALUE_BYTES, acks=ACKS_ALL, flushed=flushed)
    yield lambda: _acknowledged_once(broker, replace(load, name=laboratory.topic(load.name)), seconds)


def _acknowledged_once(broker: BrokerProcess, load: Produce, seconds: float) -> Figures:
    brokers.create_topic(broker, load.name, 1, load.configs)
    exchanges = produce_exchanges(broker.address, load.name, load.batch(), load)
    latencies = in_own_process(open_loop_latencies_ms, broker.address, exchanges, REQUESTS_PER_S, seconds)
    brokers.delete_topic(broker, load.name)
    return latency_figures(latencies)
