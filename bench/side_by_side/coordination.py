"""What coordinators do: transactions one after the other, and groups that rebalance."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tests.testkit.broker_process import BrokerProcess

from bench import brokers, groups, transactions
from bench.machine import in_own_process
from bench.measuring import measure
from bench.side_by_side.laboratory import Laboratory
from bench.side_by_side.rows import Figures, Once
from bench.transactions import ONE_SEGMENT, Serial

TRANSACTION_VERSION = 2


@contextmanager
def serial_transactions(count: int, laboratory: Laboratory, system: str, *, flushed: bool) -> Iterator[Once]:
    """A record in each; the topic and the coordinator's log acknowledge from the same place."""
    broker = laboratory.broker(system)
    in_own_process(transactions.first_producer, broker.address)
    work = Serial("transactions", TRANSACTION_VERSION, flushed, count)
    yield lambda: _transactions_once(broker, laboratory.topic("transactions"), work)


def _transactions_once(broker: BrokerProcess, topic: str, work: Serial) -> Figures:
    brokers.create_topic(broker, topic, 1, {**work.configs, **ONE_SEGMENT})
    transactions.flush_coordinator(broker, work.configs)
    run = measure(broker, transactions.serial, broker.address, topic, work)
    brokers.delete_topic(broker, topic)
    return {"commits_per_s": work.count / run.elapsed_s}


@contextmanager
def rebalance(laboratory: Laboratory, system: str) -> Iterator[Once]:
    """A group of two hundred whose leader joins again, until every member has its new assignment."""
    broker = laboratory.broker(system)
    yield lambda: {"rebalanced_s": in_own_process(rebalanced_s, broker.address, laboratory.topic("group"))}


def rebalanced_s(address: tuple[str, int], group: str) -> float:
    _, (_, elapsed_s) = asyncio.run(groups.large_group_once(address, group))
    return elapsed_s
