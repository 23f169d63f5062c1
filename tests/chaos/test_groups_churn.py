"""Fifty members, of which some are killed or stopped all the time: nothing is owned twice, nothing goes back."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.conftest import rounds
from tests.compat.members import Feeder, Group, Kind, Member, group_settings
from tests.testkit import broker_under_test, eventually

pytestmark = pytest.mark.xdist_group("chaos-groups")

PROCESSES = 10
MEMBERS_EACH = 5
PARTITIONS = 100
TOPIC = "churned"
# Fifty clients share a core or two with their broker: with less a busy moment is taken for a death.
SESSION_MS = 3_000
REBALANCE_TIMEOUT_MS = 10_000
# librdkafka gives up on a heartbeat after a few intervals, and never learns what the answer told it to give up.
HEARTBEAT_MS = 1_000
# The dead are noticed in a session; then whoever does not join, or not give up what it should, has its time to do so.
STABLE_WITHIN_S = (SESSION_MS + REBALANCE_TIMEOUT_MS + 2 * HEARTBEAT_MS) / 1000

KINDS = [Kind("confluent-kafka", "classic", ("roundrobin",)), Kind("confluent-kafka", "consumer", ())]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_given_fifty_members_when_some_are_killed_and_stopped_all_the_time_then_the_group_settles_and_lost_nothing(
    tmp_path: Path, luck: random.Random, kind: Kind
) -> None:
    settings = group_settings(
        **{"group.consumer.session.timeout.ms": SESSION_MS, "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS}
    )
    with broker_under_test().start(tmp_path / "data", **settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(10)
        group = Group(broker, "fifty", [TOPIC], tmp_path, partitions=PARTITIONS)
        with group, Feeder(broker.bootstrap, [TOPIC], PARTITIONS, interval_s=0.2) as feeder:
            living = [_join(group, kind) for _ in range(PROCESSES)]
            eventually(lambda: _is_settled(group, living, admin), 60, "the group never settled")

            end = time.monotonic() + rounds(short=6, full=120)
            while time.monotonic() < end:
                _harm_one(group, kind, living, luck)

            eventually(
                lambda: _is_settled(group, living, admin), STABLE_WITHIN_S, "the group did not settle in its timeouts"
            )
            sent = feeder.stop()
            eventually(lambda: sent <= group.processed(), 30, "records were never processed")
        group.check()


def _join(group: Group, kind: Kind) -> Member:
    return group.join(kind, session_ms=SESSION_MS, count=MEMBERS_EACH, max_poll_ms=REBALANCE_TIMEOUT_MS)


def _is_settled(group: Group, living: list[Member], admin: AdminClient) -> bool:
    """Everything is owned, by fifty members, by their own account."""
    owned = [partition for member in living for partition in member.owned()]
    assert sorted(owned) == sorted(group.all_partitions()), f"{len(set(owned))} of {PARTITIONS}"
    state = admin.describe_consumer_groups([group.group_id])[group.group_id].result(10)
    assert state.state.name == "STABLE" and len(state.members) == PROCESSES * MEMBERS_EACH, (
        f"{state.state.name}, {len(state.members)} members"
    )
    return True


def _harm_one(group: Group, kind: Kind, living: list[Member], luck: random.Random) -> None:
    """Kills a process, and starts another; or stops one, for less than its session or for longer."""
    victim = luck.choice(living)
    if luck.random() < 0.5:
        victim.kill()
        living[living.index(victim)] = _join(group, kind)
        _let_pass(luck.random())
    else:
        victim.stop()
        _let_pass(luck.random() * 1.5 * SESSION_MS / 1000)
        victim.resume()


def _let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until, seconds + 5)
