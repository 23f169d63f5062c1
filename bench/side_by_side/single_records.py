"""Requests of a single record: what a request costs, apart from its bytes.

Five unanswered on a connection, which is what Kafka's own producer allows itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.testkit.broker_process import BrokerProcess

from bench import brokers
from bench.measuring import measure
from bench.raw_produce import Produce, check_end_offsets, produce_exchanges
from bench.replay import Exchange, replay
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Figures, Once

IN_FLIGHT = 5
VALUE_BYTES = 100


@contextmanager
def single_records(connections: int, requests: int, laboratory: Laboratory, system: str) -> Iterator[Once]:
    broker = laboratory.broker(system)
    load = single_load(connections, requests)
    yield lambda: _once(broker, replace(load, name=laboratory.topic(load.name)))


def single_load(connections: int, requests: int) -> Produce:
    return Produce("single", 0, VALUE_BYTES, connections=connections, requests=requests)


def in_flight(exchanges: list[Exchange]) -> list[Exchange]:
    return [replace(each, window=IN_FLIGHT) for each in exchanges]


def _once(broker: BrokerProcess, load: Produce) -> Figures:
    batch = load.batch()
    brokers.create_topic(broker, load.name, load.connections, load.configs)
    exchanges = in_flight(produce_exchanges(broker.address, load.name, batch, load))
    run = measure(broker, replay, broker.address, exchanges, load.requests_per_connection)
    check_end_offsets(broker, load.name, batch, load)
    brokers.delete_topic(broker, load.name)
    answered = load.requests_per_connection * load.connections
    return {
        "requests_per_s": answered / run.elapsed_s,
        "cpu_us_each": run.broker_cpu_s / answered * 1e6,
    }
