"""Partitions that move from broker to broker while they are written to: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.controller.commands import AlterOperation, ResourceType
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.cluster import MetadataResponsePartition
from penstock.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from penstock.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
)
from tests.cli.conftest import QuickTools
from tests.cluster.finding import (
    all_are_known,
    create_topic_over,
    gauge,
    leader_of,
    states_of,
    until_readable,
    write_to_leader,
)
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import fetch, values_of

pytestmark = pytest.mark.xdist_group("reassignment")

DEADLINE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared: whoever kills a broker lets it come back."""
    with Cluster.start(tmp_path_factory.mktemp("cluster"), brokers=4) as cluster:
        yield cluster


def reassign(
    cluster: Cluster, topic: str, replicas: Sequence[int] | None, *, at: int = 1, may_change_factor: bool = True
) -> ReassignablePartitionResponse:
    """Its first partition; None gives up what is under way."""
    partition = ReassignablePartition(partition_index=0, replicas=None if replicas is None else list(replicas))
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])],
        allow_replication_factor_change=may_change_factor,
        timeout_ms=30_000,
    )
    with RawClient(cluster[at].address) as client:
        answer = client.exchange(request, 1, AlterPartitionReassignmentsResponse)
    assert (answer.error_code, answer.allow_replication_factor_change) == (0, may_change_factor)
    (answered,) = answer.responses
    (row,) = answered.partitions
    assert (answered.name, row.partition_index) == (topic, 0)
    return row


def moving(cluster: Cluster, topic: str, at: int = 1) -> OngoingPartitionReassignment | None:
    asked = ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 1])
    with RawClient(cluster[at].address) as client:
        request = ListPartitionReassignmentsRequest(topics=[asked])
        answer = client.exchange(request, 0, ListPartitionReassignmentsResponse)
    assert answer.error_code == 0
    rows = [row for listed in answer.topics for row in listed.partitions if listed.name == topic]
    return rows[0] if rows else None


def state_of(cluster: Cluster, topic: str) -> MetadataResponsePartition:
    return states_of(cluster, topic)[0]


def until_moved(cluster: Cluster, topic: str, *replicas: int) -> None:
    def has_moved() -> bool:
        state = state_of(cluster, topic)
        is_there = state.replica_nodes == list(replicas) and sorted(state.isr_nodes) == sorted(replicas)
        return is_there and moving(cluster, topic) is None

    eventually(has_moved, DEADLINE_S, f"{topic} is not on {replicas}")


def holders(cluster: Cluster, topic: str) -> set[int]:
    """Who has files of it, set aside or not."""
    return {number for number, broker in enumerate(cluster, 1) if any(broker.data.glob(f"{topic}-0*"))}


class Writing:
    """An idempotent producer that never stops, with acks=all."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acknowledged: list[bytes] = []
        self.sent: list[bytes] = []
        self.failures: list[KafkaError] = []
        self._topic = topic
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1}
        self._producer = Producer({**settings, "topic.metadata.refresh.interval.ms": 1_000})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.is_set():
            value = b"%d" % len(self.sent)
            self.sent.append(value)
            self._producer.produce(self._topic, value, partition=0, on_delivery=self._delivered)
            self._producer.poll(0.002)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.failures.append(error)

    def until_more(self, count: int = 20) -> None:
        target = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= target, DEADLINE_S, "nothing was acknowledged any more")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(DEADLINE_S) == 0


@contextmanager
def writing(cluster: Cluster, topic: str) -> Iterator[Writing]:
    writer = Writing(cluster, topic)
    writer.start()
    try:
        writer.until_more()
        yield writer
    finally:
        writer.stop()
    assert writer.failures == []
    assert writer.acknowledged == writer.sent
    until_readable(cluster, topic, writer.sent)


def test_given_a_partition_that_is_written_to_when_it_moves_leader_and_all_then_nothing_is_lost_or_left_behind(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    with writing(cluster, topic_name) as writer:
        assert reassign(cluster, topic_name, (3, 4)).error_code == 0
        until_moved(cluster, topic_name, 3, 4)
        writer.until_more()
        assert leader_of(cluster, topic_name) in (3, 4)

        # And back, perhaps before the old files are gone.
        assert reassign(cluster, topic_name, (2, 3), at=4).error_code == 0
        until_moved(cluster, topic_name, 2, 3)
        writer.until_more()

    eventually(lambda: holders(cluster, topic_name) == {2, 3}, DEADLINE_S, "files were left behind")
    logs = [(cluster[number].data / f"{topic_name}-0" / f"{0:020}.log") for number in (2, 3)]
    eventually(lambda: logs[0].read_bytes() == logs[1].read_bytes(), DEADLINE_S)


def test_given_one_replica_when_there_are_to_be_three_and_then_one_again_then_writing_goes_on(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2, 3))  # so it has min.insync.replicas=2
    with writing(cluster, topic_name) as writer:
        for replicas in ((2,), (2, 3, 4), (4,), (1, 2, 3)):
            assert reassign(cluster, topic_name, replicas).error_code == 0
            until_moved(cluster, topic_name, *replicas)
            writer.until_more()

    eventually(lambda: holders(cluster, topic_name) == {1, 2, 3}, DEADLINE_S, "files were left behind")


def test_given_a_broker_that_is_not_there_when_the_move_is_given_up_then_all_is_as_it_was(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    write_to_leader(cluster, topic_name, b"before")
    cluster[3].kill()

    assert reassign(cluster, topic_name, (3, 2)).error_code == 0
    under_way = moving(cluster, topic_name)
    elsewhere = eventually(lambda: moving(cluster, topic_name, at=2))
    write_to_leader(cluster, topic_name, b"meanwhile")
    assert reassign(cluster, topic_name, None).error_code == 0

    assert under_way is not None
    assert under_way == elsewhere
    assert (under_way.replicas, under_way.adding_replicas, under_way.removing_replicas) == ([3, 2, 1], [3], [1])
    assert moving(cluster, topic_name) is None
    assert set(state_of(cluster, topic_name).replica_nodes) == {1, 2}
    until_readable(cluster, topic_name, [b"before", b"meanwhile"])
    cluster[3].restart(same_port=True)
    assert holders(cluster, topic_name) == {1, 2}


@pytest.mark.parametrize("killed", [1, 3], ids=["the-leader", "the-new-replica"])
def test_given_a_move_when_a_broker_is_killed_and_comes_back_then_it_ends_and_nothing_is_lost(
    cluster: Cluster, topic_name: str, killed: int
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    with writing(cluster, topic_name) as writer:
        assert reassign(cluster, topic_name, (3, 4), at=2).error_code == 0
        cluster[killed].kill()
        writer.until_more()
        cluster[killed].restart(same_port=True)
        until_moved(cluster, topic_name, 3, 4)
        writer.until_more()

    eventually(lambda: holders(cluster, topic_name) == {3, 4}, DEADLINE_S, "files were left behind")


def test_given_a_broker_that_was_away_when_its_partition_moved_then_it_removes_it_at_its_start(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (4, 2))
    write_to_leader(cluster, topic_name, b"before")
    cluster[4].kill()
    eventually(lambda: state_of(cluster, topic_name).isr_nodes == [2], DEADLINE_S)
    assert reassign(cluster, topic_name, (2, 3)).error_code == 0
    until_moved(cluster, topic_name, 2, 3)
    assert holders(cluster, topic_name) == {2, 3, 4}

    cluster[4].restart(same_port=True)

    eventually(lambda: holders(cluster, topic_name) == {2, 3}, DEADLINE_S)
    assert "on other brokers now" in cluster[4].log_tail()
    until_readable(cluster, topic_name, [b"before"])


def test_given_what_cannot_be_done_then_it_is_refused_and_nothing_changes(cluster: Cluster, topic_name: str) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    before = state_of(cluster, topic_name)

    def refusal(replicas: Sequence[int] | None, **more: bool) -> int:
        row = reassign(cluster, topic_name, replicas, at=3, **more)
        assert row.error_message
        return row.error_code

    assert refusal(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert refusal(()) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal((1, 1)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal((1, -1)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal((1, 9)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refusal((1, 2, 3), may_change_factor=False) == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, "nowhere", (1,)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert state_of(cluster, topic_name) == before
    assert moving(cluster, "nowhere") is None


def test_given_no_time_at_all_then_the_request_has_timed_out(cluster: Cluster, topic_name: str) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    partition = ReassignablePartition(partition_index=0, replicas=[1])
    topic = ReassignableTopic(name=topic_name, partitions=[partition])
    with RawClient(cluster[2].address) as client:
        request = AlterPartitionReassignmentsRequest(timeout_ms=0, topics=[topic])
        answer = client.exchange(request, 0, AlterPartitionReassignmentsResponse)

    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


def configure(cluster: Cluster, kind: ResourceType, resource: str, name: str, value: str | None) -> None:
    """None takes it back."""
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    change = IncrementallyAlterableConfig(name=name, config_operation=operation, value=value)
    changed = IncrementalAlterConfigsResource(resource_type=kind, resource_name=resource, configs=[change])
    with RawClient(cluster[1].address) as client:
        request = IncrementalAlterConfigsRequest(resources=[changed])
        (row,) = client.exchange(request, 1, IncrementalAlterConfigsResponse).responses
    assert row.error_code == 0, row


@pytest.mark.parametrize(("side", "throttled"), [("leader", "0:1"), ("follower", "0:3")])
def test_given_a_throttle_when_replicas_are_named_then_only_those_that_are_not_in_sync_wait_for_it(
    cluster: Cluster, topic_name: str, side: str, throttled: str
) -> None:
    slow, fast = f"{topic_name}-slow", f"{topic_name}-fast"
    rate = f"{side}.replication.throttled.rate"
    configure(cluster, ResourceType.BROKER, "", rate, "0")
    create_topic_over(cluster, slow, (1, 2), **{f"{side}.replication.throttled.replicas": throttled})
    create_topic_over(cluster, fast, (1, 2))
    for topic in (slow, fast):
        write_to_leader(cluster, topic, b"before")

    assert reassign(cluster, slow, (1, 2, 3)).error_code == 0
    assert reassign(cluster, fast, (1, 2, 3)).error_code == 0
    until_moved(cluster, fast, 1, 2, 3)

    write_to_leader(cluster, slow, b"meanwhile")  # which is acknowledged by both that are in sync
    waiting = moving(cluster, slow)
    assert waiting is not None
    assert waiting.adding_replicas == [3]
    assert gauge(cluster[1], "penstock_reassigned_partitions") == 1
    eventually(lambda: gauge(cluster[1], "penstock_under_replicated_partitions") == 0)  # it has all that it had
    eventually(lambda: (cluster[3].data / f"{slow}-0").exists())
    assert (cluster[3].data / f"{slow}-0" / f"{0:020}.log").stat().st_size == 0
    configure(cluster, ResourceType.BROKER, "", rate, None)
    until_moved(cluster, slow, 1, 2, 3)
    until_readable(cluster, slow, [b"before", b"meanwhile"])


def test_given_a_topic_deleted_and_made_anew_while_a_replica_was_away_then_its_old_log_is_kept_aside_and_never_read(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (1, 2, 3))
        write_to_leader(cluster, topic_name, b"old")
        cluster[3].kill()
        tools = QuickTools(cluster.bootstrap)
        tools.output("topic", "delete", topic_name)
        create_topic_over(cluster, topic_name, (1, 2))
        write_to_leader(cluster, topic_name, b"new")

        cluster[3].restart()
        reassign(cluster, topic_name, (3, 1, 2))
        until_moved(cluster, topic_name, 3, 1, 2)
        for broker_id in (1, 2):
            cluster[broker_id].kill()
        eventually(lambda: leader_of(cluster, topic_name) == 3, 30)

        with RawClient(cluster[3].address) as client:
            assert eventually(lambda: values_of(fetch(client, topic_name, 0)), 30) == [b"new"]
        (kept,) = cluster[3].data.glob(f"{topic_name}-0.*-stray")
        assert b"old" in (kept / f"{0:020}.log").read_bytes()
