"""Clients and the broker are killed and paused at random; then what all did and saw is held against every promise."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.conftest import rounds
from tests.chaos.fleet import Fleet
from tests.chaos.harm import Harm
from tests.compat.members import group_settings
from tests.history.checker import check
from tests.history.findings import report
from tests.history.reading import Fate, History, read_history
from tests.testkit import BrokerProcess, broker_under_test, eventually, lasting_port

pytestmark = pytest.mark.xdist_group("chaos-histories")

INPUT, OUTPUT = "input", "output"
PARTITIONS = 3
COPIERS = "copiers"


@pytest.mark.timeout(1200)
def test_given_producers_and_groups_when_they_and_the_broker_are_killed_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    with _a_broker(tmp_path) as broker:
        _create_topics(broker, INPUT)
        with Fleet(broker.bootstrap, tmp_path / "histories", luck) as fleet:
            for kind in ("plain", "idempotent", "idempotent"):
                fleet.start("producer", kind=kind, topic=INPUT, partitions=PARTITIONS)
            for group in ("one", "one", "two"):
                fleet.start("consumer", group=group, topic=INPUT, partitions=PARTITIONS)
            _harm(broker, fleet, luck, seconds=rounds(short=8, full=120))
            fleet.end("producer")
            fleet.end("consumer")
            fleet.read_everything(INPUT, PARTITIONS)

        history = _check(fleet.directory)

    assert not fleet.stuck, "\n".join(fleet.stuck)
    assert any(write.outcome == "ok" for write in history.writes.values())
    assert history.positions and history.commits


@pytest.mark.timeout(1800)
def test_given_transactions_and_copiers_when_they_and_the_broker_are_killed_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    with _a_broker(tmp_path) as broker:
        _create_topics(broker, INPUT, OUTPUT)
        with Fleet(broker.bootstrap, tmp_path / "histories", luck) as fleet:
            _start_transactional(fleet)
            _harm(broker, fleet, luck, seconds=rounds(short=8, full=600))
            fleet.end("producer")
            fleet.read_everything(INPUT, PARTITIONS)
            ends = _ends_of_input(fleet)
            is_copied = _is_copied_in_time(broker, ends)
            fleet.end("copier", "consumer")
            fleet.read_everything(OUTPUT, PARTITIONS)

        history = _check(fleet.directory)

    assert not fleet.stuck, "\n".join(fleet.stuck)
    assert is_copied, "the copiers did not come to the end"
    _check_that_all_is_copied(history)
    _check_that_there_was_something_to_hide(history)


def _start_transactional(fleet: Fleet) -> None:
    common = {"topic": INPUT, "partitions": PARTITIONS}
    fleet.start("producer", kind="idempotent", **common)
    for number in range(2):
        fleet.start("producer", kind="transactional", transactional_id=f"producer-{number}", **common)
        fleet.start(
            "copier",
            kind="transactional",
            transactional_id=f"copier-{number}",
            isolation="read_committed",
            group=COPIERS,
            output=OUTPUT,
            transaction_records=200,
            **common,
        )
    for topic, isolation in ((OUTPUT, "read_committed"), (INPUT, "read_uncommitted")):
        fleet.start("consumer", group=f"readers-of-{topic}", isolation=isolation, topic=topic, partitions=PARTITIONS)


def _a_broker(tmp_path: Path) -> BrokerProcess:
    return broker_under_test().start(tmp_path / "data", port=lasting_port(), **group_settings())


def _create_topics(broker: BrokerProcess, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        created.result(10)


def _harm(broker: BrokerProcess, fleet: Fleet, luck: random.Random, *, seconds: float) -> None:
    harm = Harm(broker, fleet, luck)
    harm.go_on_for(seconds)
    print(f"harm done: {dict(harm.done)}")


def _ends_of_input(fleet: Fleet) -> dict[int, int]:
    """The position after the last record that can be read of each partition."""
    ends = dict.fromkeys(range(PARTITIONS), 0)
    for session in read_history(fleet.directory).sessions:
        if session.is_final and session.process.is_read_committed and session.reads:
            ends[session.partition[1]] = session.reads[-1].offset + 1
    return ends


def _is_copied_in_time(broker: BrokerProcess, ends: dict[int, int]) -> bool:
    """If not, the checker knows better why."""
    try:
        return eventually(lambda: _is_copied(broker, ends), 90)
    except AssertionError:
        return False


def _is_copied(broker: BrokerProcess, ends: dict[int, int]) -> bool:
    """Whether the copiers' group has come to the end of the input."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": COPIERS, "isolation.level": "read_committed"}
    )
    try:
        told = consumer.committed([TopicPartition(INPUT, partition) for partition in ends], timeout=5)
        return all(each.offset >= ends[each.partition] for each in told)
    except KafkaException:
        return False
    finally:
        consumer.close()


def _check(directory: Path) -> History:
    history = read_history(directory)
    findings = check(history)
    fates = Counter(transaction.fate.name for transaction in history.transactions)
    sizes = f"{history.event_count} events, {len(history.writes)} writes, {len(history.sessions)} sessions"
    print(f"{sizes}, transactions: {dict(fates)}: {report(findings)}")
    assert not findings, report(findings)
    return history


def _check_that_all_is_copied(history: History) -> None:
    """Each record of the input once: what is there twice, or out of order, the checker has found already."""
    visible = [write for write in history.writes.values() if write.is_visible(read_committed=True)]
    sources = {(*write.partition, write.offset) for write in visible if write.source is None}
    assert sources and sources == {write.source for write in visible if write.source is not None}


def _check_that_there_was_something_to_hide(history: History) -> None:
    """Otherwise nothing was tried: commits, and aborted records that a read_uncommitted reader did see."""
    fates = {transaction.fate for transaction in history.transactions}
    assert {Fate.COMMITTED, Fate.GIVEN_UP} <= fates
    assert any(
        write.is_seen and write.transaction.fate is Fate.GIVEN_UP
        for write in history.writes.values()
        if write.transaction is not None
    )
