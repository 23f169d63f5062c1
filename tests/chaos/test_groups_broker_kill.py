"""SIGKILL of the broker under commits: what was acknowledged is there, and groups come back as they were.

From the first moment that the broker answers again it is asked for offsets: "not yet" is fine, "none" would send a
consumer back to the beginning.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from penstock.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from tests.chaos.conftest import rounds
from tests.compat.members import Feeder, Group, Kind, group_settings
from tests.testkit import Broker, RawClient, eventually

pytestmark = pytest.mark.xdist_group("chaos-groups")

TOPIC = "committed"
PARTITIONS = 12
COMMITTERS = 6
NO_OFFSET = -1
# Members must outlive the time without a broker.
SESSION_MS = 30_000
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Committer:
    """Commits ever larger offsets for a group of its own, and remembers the last one that was acknowledged."""

    def __init__(self, bootstrap: str, group_id: str) -> None:
        self.group_id = group_id
        self.acknowledged = NO_OFFSET
        self.tried = 0
        self._stop = threading.Event()
        fast = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 20, "log_level": 0}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id, **fast})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.tried += 1
            wanted = [TopicPartition(TOPIC, partition, self.tried) for partition in range(PARTITIONS)]
            with suppress(KafkaException):
                answered = self._consumer.commit(offsets=wanted, asynchronous=False)
                if all(partition.error is None for partition in answered or ()):
                    self.acknowledged = self.tried

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> None:
        """Returns when what was tried last is answered."""
        self._thread.join(30)
        assert not self._thread.is_alive(), f"a commit of {self.group_id} was never answered"
        self._consumer.close()


@pytest.mark.timeout(900)
def test_given_commits_when_the_broker_is_killed_again_and_again_then_none_acknowledged_is_lost_and_groups_come_back(
    tmp_path: Path, luck: random.Random
) -> None:
    settings = group_settings(**{"group.consumer.session.timeout.ms": SESSION_MS})
    broker = Broker.start(tmp_path / "data", **settings)
    broker.restart(same_port=True)
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(10)
        classic = Group(broker, "classic", [TOPIC], tmp_path)
        consumer = Group(broker, "consumer", [TOPIC], tmp_path)
        committers = [Committer(broker.bootstrap, f"committer-{number}") for number in range(COMMITTERS)]
        try:
            with classic, consumer, Feeder(broker.bootstrap, [TOPIC]) as feeder:
                for _ in range(2):
                    classic.join(Kind("confluent-kafka", "classic", ("range",)), session_ms=SESSION_MS)
                    consumer.join(Kind("confluent-kafka", "consumer", ()))
                for group in (classic, consumer):
                    group.wait_until_shared_by(*group.members)
                joined = _assignments(classic, consumer)
                members = _classic_members(broker)

                for _ in range(rounds(short=3, full=20)):
                    _kill_in_the_middle(broker, committers, luck)
                    _check_offsets(broker, committers)
                    assert _classic_members(broker) == members

                assert _assignments(classic, consumer) == joined, "members had to join again"
                for group in (classic, consumer):
                    group.wait_until_processed(feeder.stop())
        finally:
            for committer in committers:
                committer.stop()
        for committer in committers:
            committer.finish()
        _check_offsets(broker, committers)
        for group in (classic, consumer):
            group.check()


def _kill_in_the_middle(broker: Broker, committers: list[Committer], luck: random.Random) -> None:
    before = [committer.acknowledged for committer in committers]
    eventually(
        lambda: all(each.acknowledged > old for each, old in zip(committers, before, strict=True)), 60, "no progress"
    )
    until = time.monotonic() + luck.random() * 0.3
    eventually(lambda: time.monotonic() >= until)
    broker.kill()
    broker.restart(same_port=True)


def _check_offsets(broker: Broker, committers: list[Committer]) -> None:
    """Until every group was answered; an answer is at least what was acknowledged before it was asked for."""
    with RawClient(broker.address) as client:
        for committer in committers:
            eventually(lambda each=committer: _is_there(client, each), 30, f"no offsets of {committer.group_id}")  # type: ignore[misc]


def _is_there(client: RawClient, committer: Committer) -> bool:
    promised = committer.acknowledged
    asked = OffsetFetchRequestGroup(
        group_id=committer.group_id,
        topics=[OffsetFetchRequestTopic(name=TOPIC, partition_indexes=list(range(PARTITIONS)))],
    )
    (answer,) = client.exchange(OffsetFetchRequest(groups=[asked]), 8, OffsetFetchResponse).groups
    if answer.error_code:
        assert answer.error_code in NOT_YET
        return False
    (topic,) = answer.topics
    found = [partition.committed_offset for partition in topic.partitions]
    if min(found) < promised:
        # Not an AssertionError, which would count as "not yet".
        raise LostCommit(f"{committer.group_id}: {promised} was acknowledged, {found} is there")
    assert max(found) <= committer.tried
    return True


class LostCommit(Exception):
    """A broker forgot what it had promised to remember, or answered before it had remembered it."""


def _classic_members(broker: Broker) -> set[str]:
    def ask() -> set[str]:
        with RawClient(broker.address) as client:
            (group,) = client.exchange(DescribeGroupsRequest(groups=["classic"]), 5, DescribeGroupsResponse).groups
        assert group.error_code not in NOT_YET
        return {member.member_id for member in group.members}

    return eventually(ask, 30)


def _assignments(*groups: Group) -> int:
    return sum(len(member.said("assigned")) for group in groups for member in group.members)
