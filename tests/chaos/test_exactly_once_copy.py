"""The exactly-once examples copy a topic while they and the broker are killed: the copy is the original.

In transactions of 750 records, some of them aborted on purpose, by two copiers of one group. A copier that is killed
comes back at once, or after another has got its partitions. What the copier does is in examples/.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.conftest import rounds
from tests.chaos.copying import PARTITIONS, SOURCE, TARGET, TRANSACTION_SIZE, Copiers, Source, read_target
from tests.compat.members import group_settings
from tests.testkit import BrokerProcess, KafkaBroker, RawClient, broker_under_test, eventually
from tests.testkit.asking import fetch

pytestmark = pytest.mark.xdist_group("chaos-copy")

RECORDS_PER_KILL = 2_500
READ_COMMITTED = 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["confluent-kafka", "java"])
def test_given_a_copy_in_transactions_when_copiers_and_broker_are_killed_then_it_is_the_original_in_order(
    tmp_path: Path, luck: random.Random, kind: str
) -> None:
    kills = rounds(short=2, full=40)
    with _a_broker(tmp_path) as broker:
        source = Source(broker.bootstrap)
        with Copiers(kind, broker.bootstrap, tmp_path / "copiers", luck) as copiers:
            for victim in _victims(kills, luck):
                further = _further(copiers, luck.randint(1, RECORDS_PER_KILL // TRANSACTION_SIZE))
                source.write(RECORDS_PER_KILL)
                copiers.until(further)
                _let_pass(luck.random() * 0.1)  # any moment of a transaction
                if victim == "broker":
                    broker.kill()
                    broker.restart(same_port=True)
                else:
                    copiers.kill_one()
            copiers.until(lambda: source.is_copied(broker.bootstrap) and _is_all_settled(broker))
            copiers.end()
            print(
                f"{copiers.said('committed')} commits, {copiers.said('aborted')} aborts, {kills} kills,"
                f" {copiers.ended_by_themselves} copiers gave up and were started again"
            )

        found = read_target(broker.bootstrap)

    for original, copied in zip(source.written, found, strict=True):
        assert not (lost := sorted(set(original) - set(copied))), f"{len(lost)} lost, from {lost[0]!r}"
        assert not (twice := [value for value, count in Counter(copied).items() if count > 1]), (
            f"{len(twice)} twice, from {twice[0]!r}"
        )
        assert copied == original, "out of order, or never written"
    assert sum(map(len, found)) == kills * RECORDS_PER_KILL


def _a_broker(tmp_path: Path) -> BrokerProcess:
    settings = group_settings()
    if broker_under_test() is KafkaBroker:
        settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = 500
    broker = broker_under_test().start(tmp_path / "data", **settings)
    broker.restart(same_port=True)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (SOURCE, TARGET)]).values():
        created.result(10)
    return broker


def _further(copiers: Copiers, transactions: int) -> Callable[[], bool]:
    """Whether that many transactions more than now were committed."""
    wanted = copiers.said("committed") + transactions
    return lambda: copiers.said("committed") >= wanted


def _victims(kills: int, luck: random.Random) -> list[str]:
    victims = ["broker", "copier"] * (kills // 2)
    luck.shuffle(victims)
    return victims


def _let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until)


def _is_all_settled(broker: BrokerProcess) -> bool:
    """Whether no transaction is open: one that a copier left behind ends when it is back, or runs out of time."""
    with RawClient(broker.address) as client:
        ends = [fetch(client, TARGET, partition=each, isolation_level=READ_COMMITTED) for each in range(PARTITIONS)]
    return all(end.last_stable_offset == end.high_watermark for end in ends)
