"""Committed offsets: who may commit, what is fetched, and when they go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.group import offsets
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)

GROUP = "billing"
WALL_MS = 1_700_000_000_000
SESSION_MS = 30 * 60 * 1000
DAY_MS = 24 * 60 * 60 * 1000
ORDERS, REFUNDS = TopicId(b"orders".ljust(16)), TopicId(b"refunds".ljust(16))


@dataclass
class Coordinator:
    """A machine whose decisions are made durable at once, in a list."""

    config: GroupConfig = field(default_factory=lambda: GroupConfig(group_initial_rebalance_delay_ms=0))
    topics: dict[str, TopicFacts] = field(
        default_factory=lambda: {"orders": TopicFacts(ORDERS, 3), "refunds": TopicFacts(REFUNDS, 3)}
    )
    log: list[LogRecord] = field(default_factory=list)
    now: Now = field(default_factory=lambda: Now(WALL_MS, 0))
    tickets: int = 0

    def __post_init__(self) -> None:
        self.machine = GroupMachine(self.config, self.topics)
        self._decide(lambda decision: self.machine.loaded(self.now, decision))

    def ask(self, work: Any, request: object, version: int = 9) -> Any:
        self.tickets += 1
        caller = Caller(self.tickets, version, "client", "/127.0.0.1", lambda: "unique")
        answers = self._decide(lambda decision: work(self.machine, request, caller, self.now, decision))
        return answers.get(caller.ticket)

    def _decide(self, work: Any) -> dict[int, Any]:
        decision = Decision()
        work(decision)
        self.log += decision.records
        for record in decision.records:
            self.machine.apply(record)
        return dict(decision.answers)

    def pass_ms(self, duration_ms: int, *, heartbeats_of: str | None = None) -> None:
        until = self.now.monotonic_ms + duration_ms
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= until:
            self._set_clock(max(deadline, self.now.monotonic_ms))
            if heartbeats_of is not None:
                self.ask(
                    GroupMachine.heartbeat, HeartbeatRequest(group_id=GROUP, generation_id=1, member_id=heartbeats_of)
                )
            self._decide(lambda decision: self.machine.due(self.now, decision))
        self._set_clock(until)

    def _set_clock(self, monotonic_ms: int) -> None:
        self.now = Now(WALL_MS + monotonic_ms, monotonic_ms)

    def restart(self) -> None:
        self.machine = GroupMachine(self.config, self.topics)
        for record in self.log:
            self.machine.apply(LogRecord(record.key, record.value))
        self._decide(lambda decision: self.machine.loaded(self.now, decision))

    # What clients do

    def commit(
        self,
        offset: int = 7,
        *,
        topic: str = "orders",
        member_id: str = "",
        generation: int = -1,
        metadata: str | None = "",
        topic_id: TopicId | None = None,
        version: int = 9,
        group: str = GROUP,
        retention_ms: int = -1,
    ) -> ErrorCode:
        facts = self.topics.get(topic)
        partition = OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_leader_epoch=5, committed_metadata=metadata
        )
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member_id,
            generation_id_or_member_epoch=generation,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=topic_id or (NO_TOPIC_ID if facts is None else facts.topic_id),
                    partitions=[partition],
                )
            ],
        )
        response = self.ask(offsets.commit, request, version)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def fetch(self, topic: str = "orders", group: str = GROUP) -> tuple[int, int, str | None]:
        asked = OffsetFetchRequestTopic(name=topic, partition_indexes=[1])
        answer = self.ask(offsets.fetch, OffsetFetchRequestGroup(group_id=group, topics=[asked]))
        assert not answer.error_code
        [fetched] = answer.topics[0].partitions
        return fetched.committed_offset, fetched.committed_leader_epoch, fetched.metadata

    def fetch_all(self) -> dict[tuple[str, int], int]:
        answer = self.ask(offsets.fetch, OffsetFetchRequestGroup(group_id=GROUP, topics=None))
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in answer.topics
            for partition in topic.partitions
        }

    def delete_offsets(self, topic: str) -> tuple[ErrorCode, list[ErrorCode]]:
        partitions = [OffsetDeleteRequestPartition(partition_index=1)]
        request = OffsetDeleteRequest(
            group_id=GROUP, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )
        answer = self.ask(offsets.delete, request)
        codes = [ErrorCode(each.error_code) for topic in answer.topics for each in topic.partitions]
        return ErrorCode(answer.error_code), codes

    def delete_group(self) -> ErrorCode:
        return ErrorCode(self.ask(GroupMachine.delete_group, GROUP).error_code)

    def become_member(self, *topics: str, protocol_type: str = "consumer") -> str:
        """Of a stable group, generation 1."""
        subscription = encode_subscription(ConsumerProtocolSubscription(topics=list(topics)), 1)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=10_000,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        request.member_id = self.ask(GroupMachine.join_group, request).member_id
        self.ask(GroupMachine.join_group, request)
        self.pass_ms(0)
        self.ask(
            GroupMachine.sync_group,
            SyncGroupRequest(
                group_id=GROUP,
                generation_id=1,
                member_id=request.member_id,
                protocol_type=protocol_type,
                protocol_name="range",
            ),
            5,
        )
        return request.member_id

    def leave(self, member_id: str) -> None:
        self.ask(
            GroupMachine.leave_group,
            LeaveGroupRequest(group_id=GROUP, members=[MemberIdentity(member_id=member_id)]),
            5,
        )

    def topics_changed(self, *names: str) -> None:
        self._decide(lambda decision: self.machine.topics_changed(set(names), self.now, decision, deleted=True))

    def listed(self) -> list[tuple[str, str, str]]:
        answer = self.ask(GroupMachine.list_groups, ListGroupsRequest())
        return [(each.group_id, each.group_state, each.group_type) for each in answer.groups]


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# Committing and fetching


def test_given_a_commit_then_it_is_fetched_with_metadata_and_epoch_also_after_a_restart(
    coordinator: Coordinator,
) -> None:
    assert coordinator.commit(7, metadata="half way") is ErrorCode.NONE
    assert coordinator.commit(9, topic="refunds", metadata=None) is ErrorCode.NONE

    for _ in range(2):
        assert coordinator.fetch() == (7, 5, "half way")
        assert coordinator.fetch_all() == {("orders", 1): 7, ("refunds", 1): 9}
        assert coordinator.fetch(group="another") == (-1, -1, "")
        coordinator.restart()


def test_given_metadata_that_is_too_long_then_only_that_partition_is_refused(coordinator: Coordinator) -> None:
    longest = "x" * coordinator.config.offset_metadata_max_bytes

    assert coordinator.commit(1, metadata=longest) is ErrorCode.NONE
    assert coordinator.commit(2, metadata=longest + "x") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert coordinator.commit(3, metadata="ä" * (len(longest) // 2 + 1)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert coordinator.fetch()[0] == 1


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_given_a_generation_of_a_group_that_is_not_there_then_the_commit_is_refused(
    coordinator: Coordinator, version: int, code: ErrorCode
) -> None:
    assert coordinator.commit(member_id="m", generation=3, version=version) is code
    assert coordinator.machine.groups == {}


def test_given_a_group_with_members_then_only_they_commit_and_only_in_their_generation(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")

    assert coordinator.commit(1, member_id=member_id, generation=1) is ErrorCode.NONE
    assert coordinator.commit(2, member_id=member_id, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.commit(3, member_id="stranger", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(4) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[0] == 1


def test_given_a_member_whose_session_is_over_then_its_late_commit_moves_nothing(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(5, member_id=member_id, generation=1)

    coordinator.pass_ms(SESSION_MS + 1)

    assert coordinator.commit(3, member_id=member_id, generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[0] == 5


# Topics that go


def test_given_a_topic_that_is_deleted_then_its_offsets_go_and_others_stay(coordinator: Coordinator) -> None:
    coordinator.commit(7)
    coordinator.commit(9, topic="refunds")

    del coordinator.topics["orders"]
    coordinator.topics_changed("orders")

    assert coordinator.fetch_all() == {("refunds", 1): 9}
    coordinator.restart()
    assert coordinator.fetch_all() == {("refunds", 1): 9}


def test_given_a_topic_created_anew_while_the_coordinator_was_down_then_old_offsets_do_not_count_for_it(
    coordinator: Coordinator,
) -> None:
    coordinator.commit(7)

    coordinator.topics["orders"] = TopicFacts(TopicId(b"other orders".ljust(16)), 3)
    coordinator.restart()

    assert coordinator.fetch() == (-1, -1, "")
    assert coordinator.listed() == []


# Expiring


def test_given_offsets_without_members_then_they_expire_after_the_retention(coordinator: Coordinator) -> None:
    coordinator.commit(7)
    coordinator.pass_ms(27 * DAY_MS)
    assert coordinator.fetch()[0] == 7

    coordinator.pass_ms(DAY_MS + coordinator.config.offsets_retention_check_interval_ms)

    assert coordinator.fetch()[0] == -1
    assert coordinator.listed() == []


def test_given_a_group_with_a_live_member_then_its_offsets_stay_for_ever(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)

    coordinator.pass_ms(60 * DAY_MS, heartbeats_of=member_id)

    assert coordinator.fetch()[0] == 7


def test_given_a_live_group_then_offsets_of_topics_it_no_longer_subscribes_to_expire(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.commit(9, topic="refunds", member_id=member_id, generation=1)

    coordinator.pass_ms(29 * DAY_MS, heartbeats_of=member_id)

    assert coordinator.fetch_all() == {("orders", 1): 7}


def test_given_a_group_that_loses_its_last_member_then_the_retention_counts_from_then(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.pass_ms(20 * DAY_MS, heartbeats_of=member_id)
    coordinator.leave(member_id)

    coordinator.pass_ms(27 * DAY_MS)
    coordinator.restart()
    assert coordinator.fetch()[0] == 7
    coordinator.pass_ms(2 * DAY_MS)

    assert coordinator.fetch()[0] == -1
    assert coordinator.listed() == []


def test_given_an_old_client_that_names_a_retention_then_that_counts(coordinator: Coordinator) -> None:
    coordinator.commit(7, version=4, retention_ms=DAY_MS)

    coordinator.pass_ms(2 * DAY_MS)

    assert coordinator.fetch()[0] == -1


# Deleting


def test_given_a_group_without_members_when_it_is_deleted_then_nothing_is_left_also_after_a_restart(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    assert coordinator.delete_group() is ErrorCode.NON_EMPTY_GROUP
    coordinator.leave(member_id)
    assert coordinator.listed() == [(GROUP, "Empty", "classic")]

    assert coordinator.delete_group() is ErrorCode.NONE

    assert coordinator.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.restart()
    assert coordinator.listed() == []
    assert coordinator.fetch()[0] == -1


def test_given_offsets_to_delete_then_those_of_subscribed_topics_are_kept(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.commit(9, topic="refunds", member_id=member_id, generation=1)

    assert coordinator.delete_offsets("orders") == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert coordinator.delete_offsets("refunds") == (ErrorCode.NONE, [ErrorCode.NONE])

    assert coordinator.fetch_all() == {("orders", 1): 7}


def test_given_members_that_are_no_consumers_then_no_offsets_of_theirs_are_deleted(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders", protocol_type="connect")
    coordinator.commit(7, member_id=member_id, generation=1)

    assert coordinator.delete_offsets("orders") == (ErrorCode.NON_EMPTY_GROUP, [])
    coordinator.leave(member_id)
    assert coordinator.delete_offsets("orders") == (ErrorCode.NONE, [ErrorCode.NONE])


def test_given_no_such_group_then_deleting_its_offsets_says_so(coordinator: Coordinator) -> None:
    assert coordinator.delete_offsets("orders") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
