"""Groups whose coordinator dies: the next one knows their offsets and generations, and members go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tests.cluster.finding import (
    GROUPS,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    STATE_TOPIC,
    State,
    a_cluster,
    a_name,
    clients_of,
    coordinator_of,
    create_topic_over,
    states_of,
    write_to_leader,
)
from tests.cluster.stores import on_both_stores
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, offset_at, produce
from tests.testkit.membership import commit, fetched, heartbeat, join, sync

LATEST = -1


@pytest.fixture
def cluster(tmp_path: Path, store: dict[str, Any]) -> Iterator[Cluster]:
    with a_cluster(tmp_path, **store) as cluster:
        yield cluster


def led_by(leader: int) -> Callable[[State], bool]:
    return lambda state: state.leader_id == leader


def test_given_internal_topics_then_they_have_three_replicas_and_every_broker_names_the_same_coordinators(
    cluster: Cluster,
) -> None:
    names = [f"group-{number}" for number in range(20)]

    def named_by(client: RawClient, kind: int) -> dict[str, int]:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=names)
        answer = client.exchange(request, 4, FindCoordinatorResponse)
        return {each.key: each.node_id for each in answer.coordinators}

    with clients_of(cluster) as clients:
        for kind in INTERNAL_TOPICS:
            leaders = {name: coordinator_of(cluster, kind, name) for name in names}
            for client in clients.values():
                assert named_by(client, kind) == leaders
            assert set(leaders.values()) == {1, 2, 3}
    for topic in (OFFSETS_TOPIC, STATE_TOPIC):
        assert all(sorted(state.replica_nodes) == [1, 2, 3] for state in states_of(cluster, topic))


@on_both_stores
def test_given_a_coordinator_that_is_killed_then_the_next_one_knows_offsets_and_generation(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (2, 3))
    group = a_name(cluster, GROUPS, topic_name, led_by(1))
    with clients_of(cluster) as clients:
        member = join(clients[1], group)
        assert sync(clients[1], group, member, b"mine").error_code == 0
        mine: dict[str, Any] = {"generation_id_or_member_epoch": member.generation_id, "member_id": member.member_id}
        assert commit(clients[1], group, topic=topic_name, offset=41, **mine) is ErrorCode.NONE
        others = (clients[2], clients[3])
        assert {heartbeat(client, group, member) for client in others} == {ErrorCode.NOT_COORDINATOR}

        cluster[1].kill()
        next_one = clients[eventually(lambda: after(cluster, group, 1), 20)]

        # Loading is waited for; "no offset" must never be said.
        offset = eventually(lambda: fetched(next_one, group, topic=topic_name), 20)
        assert offset == 41
        assert heartbeat(next_one, group, member) is ErrorCode.NONE
        assert commit(next_one, group, topic=topic_name, offset=42, **mine) is ErrorCode.NONE


def after(cluster: Cluster, group: str, before: int) -> int | None:
    coordinator = coordinator_of(cluster, GROUPS, group)
    return coordinator if coordinator != before else None


def test_given_a_group_that_reads_when_its_coordinators_are_killed_in_turn_then_it_reads_on_and_nothing_twice(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2, 3))
    group = a_name(cluster, GROUPS, topic_name, led_by(1))
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 30_000}
    read: list[bytes] = []
    with closing(Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **settings})) as consumer:
        consumer.subscribe([topic_name])

        def has_read(count: int) -> bool:
            for message in consumer.consume(100, 0.1):
                if message.error() is None:
                    read.append(message.value() or b"")
            return len(read) >= count

        for number in range(2):
            for each in range(10):
                producer.produce(topic_name, b"%d" % (10 * number + each))
            assert producer.flush(20) == 0
            eventually(lambda: has_read(10 * number + 10), 30, "the group stands still")  # noqa: B023 - called at once
            consumer.commit(asynchronous=False)
            coordinator = coordinator_of(cluster, GROUPS, group)
            cluster[coordinator].kill()
            eventually(lambda: after(cluster, group, coordinator), 20)  # noqa: B023 - called at once
            if number == 0:
                cluster[coordinator].restart(same_port=True)

    assert read == [b"%d" % number for number in range(20)]


def test_given_a_new_leader_that_does_not_know_what_is_committed_then_it_says_so_until_it_does(
    tmp_path: Path, topic_name: str
) -> None:
    """A replica that stands still, and is in sync, keeps it from knowing (trap A11)."""
    with a_cluster(tmp_path, of_the_third={"broker.session.timeout.ms": 60_000}) as cluster:
        create_topic_over(cluster, topic_name, (1, 2, 3))
        with clients_of(cluster) as clients:
            assert eventually(lambda: produce(clients[1], topic_name, a_batch(b"x")).error_code == 0)
            os.kill(cluster[3].pid, signal.SIGSTOP)
            cluster[1].kill()

            def asked(version: int) -> ErrorCode:
                return ErrorCode(offset_at(clients[2], topic_name, LATEST, version).error_code)

            eventually(lambda: asked(11) is not ErrorCode.NOT_LEADER_OR_FOLLOWER, 20)
            codes = asked(11), asked(4)
            os.kill(cluster[3].pid, signal.SIGCONT)

            assert codes == (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)
            eventually(lambda: asked(11) is ErrorCode.NONE, 20)
            assert offset_at(clients[2], topic_name, LATEST).offset == 1


def test_given_an_offset_committed_with_its_leader_epoch_when_the_coordinator_dies_then_the_next_one_knows_both(
    tmp_path: Path, topic_name: str
) -> None:
    """Trap A16: a consumer that goes on from there finds out whether the log was cut meanwhile."""
    with a_cluster(tmp_path) as cluster:
        create_topic_over(cluster, topic_name, (1, 2, 3))
        write_to_leader(cluster, topic_name, b"a", b"b", b"c")
        wanted = TopicPartition(topic_name, 0, 2, leader_epoch=0)
        settings = {"group.id": topic_name, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
        consumer.commit(offsets=[wanted], asynchronous=False)
        consumer.close()

        cluster[coordinator_of(cluster, GROUPS, topic_name)].kill()

        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
        (found,) = consumer.committed([TopicPartition(topic_name, 0)], 30)
        consumer.close()
        assert (found.offset, found.leader_epoch, found.error) == (2, 0, None)
