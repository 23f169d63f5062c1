"""Consumer groups of the new protocol (KIP-848), as the machine sees them.

A member asks with ConsumerGroupHeartbeat (`consumer_heartbeat`); what it subscribes to (`subscriptions`) makes the
target (`assignors`), towards which each member is led step by step (`reconciliation`). `consumer_records` is what is
kept of it. Members of the classic protocol may be in such a group for as long as it takes to move all of them
(`migration`, `consumer_classic`).

A topic that comes, grows or goes bumps the epoch of the groups that subscribe to it at their next heartbeat, and writes
nothing before: a thousand groups must not write at once because of one topic, and a group whose members are all gone
has no use for it. A coordinator that takes over looks at all topics with a group's first heartbeat, so none is missed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group import consumer_state
from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.consumer_fencing import fence_members
from penstock.coordinators.group.consumer_heartbeat import heartbeat
from penstock.coordinators.group.consumer_members import JOIN, REBALANCE, SESSION, SYNC
from penstock.coordinators.group.consumer_records import apply, group_tombstones
from penstock.coordinators.group.consumer_state import (
    LEAVING_FOR_NOW,
    ConsumerGroup,
    Member,
    MemberState,
    preferred_assignor,
)
from penstock.coordinators.group.records import encode
from penstock.coordinators.group.state import Group
from penstock.core.errors import ErrorCode, message_of
from penstock.core.ids import TopicId
from penstock.protocol.messages.consumer_groups import (
    CLASSIC_MEMBER_TYPE,
    CONSUMER_MEMBER_TYPE,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)
from penstock.protocol.messages.group_offsets import OffsetCommitRequest, OffsetFetchRequestGroup
from penstock.protocol.messages.transactions import TxnOffsetCommitRequest

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

__all__ = [
    "apply",
    "check_commit",
    "check_commit_in_transaction",
    "check_fetch",
    "delete",
    "describe",
    "due",
    "empty_since_ms",
    "heartbeat",
    "is_empty",
    "loaded",
    "state_name",
    "subscribed_topics",
    "topics_changed",
    "was_changed_at",
]

MEMBER_EPOCHS_SINCE = 9
"""The version of OffsetCommit that says member epoch and no longer generation."""


def _of(group: Group) -> ConsumerGroup:
    assert group.consumer is not None, f"{group.group_id} is not a consumer group"
    return group.consumer


# Questions


def is_empty(group: Group) -> bool:
    return not _of(group).members


def empty_since_ms(group: Group) -> int:
    """Of an empty group, by the wall clock: its last member's going was the last change of its epoch."""
    return _of(group).changed_ms


def was_changed_at(group: Group, timestamp: int) -> None:
    """Kafka's record of an epoch has no time in it, but the log has when it was written."""
    _of(group).changed_ms = timestamp


def state_name(group: Group) -> str:
    return consumer_state.state_name(_of(group))


def subscribed_topics(group: Group) -> set[str]:
    return set(consumer_state.subscribed_topics(_of(group)))


def check_commit(
    machine: GroupMachine, group: Group, request: OffsetCommitRequest, caller: Caller, now: Now
) -> ErrorCode:
    """Whether the sender may move the group's offsets: a member at its epoch, or anybody while there is no member."""
    consumer, epoch = _of(group), request.generation_id_or_member_epoch
    if epoch < 0 and not consumer.members:
        return ErrorCode.NONE
    member = consumer.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and caller.api_version < MEMBER_EPOCHS_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    return _check_epoch(member, epoch)


def check_commit_in_transaction(group: Group, request: TxnOffsetCommitRequest) -> ErrorCode:
    """As `check_commit`, for producers, which know generations only."""
    consumer = _of(group)
    if request.generation_id < 0 and not consumer.members:
        return ErrorCode.NONE
    member = consumer.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.generation_id == member.member_epoch else ErrorCode.ILLEGAL_GENERATION


def check_fetch(
    machine: GroupMachine, group: Group, request: OffsetFetchRequestGroup, caller: Caller, now: Now
) -> ErrorCode:
    """Who says that it is a member has to be one; who does not may read."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = _of(group).members.get(request.member_id or "")
    return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _check_epoch(member, request.member_epoch)


def _check_epoch(member: Member, epoch: int) -> ErrorCode:
    if epoch == member.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def describe(machine: GroupMachine, group_id: str) -> DescribedConsumerGroup:
    group = machine.groups.get(group_id)
    if group is None or group.consumer is None:
        kind = "does not exist" if group is None else "is no consumer group"
        return DescribedConsumerGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=message_of(f"the group {group_id!r} {kind}"),
        )
    consumer = group.consumer
    names = {facts.topic_id: name for name, facts in machine.topics.items()}
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=consumer_state.state_name(consumer),
        group_epoch=consumer.epoch,
        assignment_epoch=consumer.target_epoch,
        assignor_name=preferred_assignor(consumer.members.values(), machine.config.consumer_assignors),
        members=[
            _described(member, consumer.targets.get(member.member_id, NOTHING), names)
            for member in consumer.members.values()
        ],
    )


def _described(member: Member, target: Assignment, names: Mapping[TopicId, str]) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_described_assignment(member.assigned, names),
        target_assignment=_described_assignment(target, names),
        member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
    )


def _described_assignment(assignment: Assignment, names: Mapping[TopicId, str]) -> DescribedAssignment:
    """Without topics that are gone: they have no name any more."""
    return DescribedAssignment(
        topic_partitions=[
            DescribedTopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(assignment[topic_id])
            )
            for topic_id in sorted(assignment)
            if topic_id in names
        ]
    )


# Changes


def delete(group: Group, decision: Decision) -> None:
    """Of a group without members."""
    decision.records += [encode(record) for record in group_tombstones(_of(group))]


def topics_changed(machine: GroupMachine, names: Collection[str], now: Now, decision: Decision) -> None:
    changed = frozenset(names)
    for group in machine.groups.values():
        consumer = group.consumer
        if consumer is None:
            continue
        if consumer.regexes:
            consumer.changed_topics |= changed
            consumer.metadata_is_current = False
        elif not changed.isdisjoint(consumer_state.subscribed_topics(consumer)):
            consumer.metadata_is_current = False


def due(machine: GroupMachine, key: tuple[str, ...], now: Now, decision: Decision) -> None:
    """Whatever a member was late with, it is out; its own timers are all the coordinator has against it."""
    kind, group_id, member_id = key
    assert kind in (SESSION, REBALANCE, JOIN, SYNC)
    group = machine.groups.get(group_id)
    if group is None or group.consumer is None or member_id not in group.consumer.members:
        return
    fence_members(machine, group.consumer, [group.consumer.members[member_id]], now, decision)


def loaded(machine: GroupMachine, group: Group, now: Now) -> None:
    """Restored members get a whole session, and those that were revoking a whole rebalance timeout."""
    for member in _of(group).members.values():
        session_ms = machine.config.consumer_session_timeout_ms
        if member.classic is not None:
            session_ms = member.classic.session_timeout_ms
        machine.timers.set((SESSION, group.group_id, member.member_id), now.monotonic_ms + session_ms)
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.member_epoch != LEAVING_FOR_NOW:
            deadline_ms = now.monotonic_ms + member.rebalance_timeout_ms
            machine.timers.set((REBALANCE, group.group_id, member.member_id), deadline_ms)
