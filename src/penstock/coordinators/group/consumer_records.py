"""Between the state of a consumer group and its records: what is written of it, and `apply`, which reads it again.

Applying never refuses. A log that was cut or compacted anywhere gives some state, and the records that come after it
put it right; a coordinator that could not load for the sake of one group would be the worse failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.consumer_state import LEAVING, ConsumerGroup, Member, MemberState, ResolvedRegex
from penstock.coordinators.group.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupCurrentMemberAssignmentTombstone,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMemberMetadataTombstone,
    ConsumerGroupMetadata,
    ConsumerGroupMetadataTombstone,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupPartitionMetadataTombstone,
    ConsumerGroupRegularExpression,
    ConsumerGroupRegularExpressionTombstone,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMemberTombstone,
    ConsumerGroupTargetAssignmentMetadata,
    ConsumerGroupTargetAssignmentMetadataTombstone,
    Record,
    TopicPartitions,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine


# Writing


def member_record(group_id: str, member: Member) -> ConsumerGroupMemberMetadata:
    return ConsumerGroupMemberMetadata(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic,
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> ConsumerGroupTargetAssignmentMember:
    return ConsumerGroupTargetAssignmentMember(group_id, member_id, _to_record(target))


def current_record(group_id: str, member: Member) -> ConsumerGroupCurrentMemberAssignment:
    return ConsumerGroupCurrentMemberAssignment(
        group_id=group_id,
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=_to_record(member.assigned),
        partitions_pending_revocation=_to_record(member.pending_revocation),
    )


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex | None) -> Record:
    if resolved is None:
        return ConsumerGroupRegularExpressionTombstone(group_id, regex)
    return ConsumerGroupRegularExpression(
        group_id, regex, tuple(sorted(resolved.topics)), resolved.version, resolved.timestamp
    )


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """What it has goes first and itself last: cut anywhere, no partition is held by one who is not there."""
    return [
        ConsumerGroupCurrentMemberAssignmentTombstone(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberTombstone(group_id, member_id),
        ConsumerGroupMemberMetadataTombstone(group_id, member_id),
    ]


def group_tombstones(group: ConsumerGroup, member_ids: Iterable[str] = ()) -> list[Record]:
    """Takes the whole group away, and members that earlier records of the same decision bring into it.

    The group's own record goes last. As long as it is there the group is, with whatever is left of it; once it is gone
    nothing else is left that a replay would make a group of.
    """
    group_id = group.group_id
    members = dict.fromkeys((*group.members, *group.targets, *member_ids))
    return [
        *(record for member_id in members for record in member_tombstones(group_id, member_id)),
        ConsumerGroupTargetAssignmentMetadataTombstone(group_id),
        *(ConsumerGroupRegularExpressionTombstone(group_id, regex) for regex in group.regexes),
        ConsumerGroupPartitionMetadataTombstone(group_id),
        ConsumerGroupMetadataTombstone(group_id),
    ]


def _to_record(assignment: Assignment) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic_id, tuple(sorted(assignment[topic_id]))) for topic_id in sorted(assignment))


# Reading

_Tombstones = (
    ConsumerGroupMetadataTombstone
    | ConsumerGroupPartitionMetadataTombstone
    | ConsumerGroupMemberMetadataTombstone
    | ConsumerGroupTargetAssignmentMetadataTombstone
    | ConsumerGroupTargetAssignmentMemberTombstone
    | ConsumerGroupCurrentMemberAssignmentTombstone
    | ConsumerGroupRegularExpressionTombstone
)


def apply(machine: GroupMachine, record: Record) -> None:
    if isinstance(record, _Tombstones):
        found = machine.groups.get(record.group_id)
        if found is None or found.consumer is None:
            return  # what it takes away is already gone
        if isinstance(record, ConsumerGroupMetadataTombstone):
            found.consumer = None
            machine.forget_if_empty(found)
            return
        apply_tombstone(found.consumer, record)
        return
    group = machine.group_or_new(record.group_id)
    if group.consumer is None:
        group.consumer = ConsumerGroup(record.group_id)
    apply_value(group.consumer, record)


def apply_value(group: ConsumerGroup, record: Record) -> None:
    match record:
        case ConsumerGroupMetadata():
            group.epoch = record.epoch
            group.metadata_hash = record.metadata_hash
        case ConsumerGroupMemberMetadata():
            group.put_member(_with_metadata(_member(group, record.member_id), record))
        case ConsumerGroupTargetAssignmentMetadata():
            group.target_epoch = record.assignment_epoch
        case ConsumerGroupTargetAssignmentMember():
            group.targets[record.member_id] = _from_record(record.topic_partitions)
        case ConsumerGroupCurrentMemberAssignment():
            group.put_member(_with_assignment(_member(group, record.member_id), record))
        case ConsumerGroupRegularExpression():
            resolved = ResolvedRegex(frozenset(record.topics), record.version, record.timestamp)
            group.put_regex(record.regular_expression, resolved)
        case ConsumerGroupPartitionMetadata():
            group.has_old_metadata_record = True
        case _:
            raise AssertionError(f"not a record of a consumer group: {record}")


def apply_tombstone(group: ConsumerGroup, record: _Tombstones) -> None:
    match record:
        case ConsumerGroupMemberMetadataTombstone():
            group.remove_member(record.member_id)
        case ConsumerGroupTargetAssignmentMetadataTombstone():
            group.target_epoch = -1
        case ConsumerGroupTargetAssignmentMemberTombstone():
            group.targets.pop(record.member_id, None)
        case ConsumerGroupCurrentMemberAssignmentTombstone():
            member = group.members.get(record.member_id)
            if member is not None:
                gone = replace(member, member_epoch=LEAVING, previous_member_epoch=LEAVING)
                group.put_member(replace(gone, assigned=NOTHING, pending_revocation=NOTHING))
        case ConsumerGroupRegularExpressionTombstone():
            group.put_regex(record.regular_expression, None)
        case ConsumerGroupPartitionMetadataTombstone():
            group.has_old_metadata_record = False
        case _:
            pass


def _member(group: ConsumerGroup, member_id: str) -> Member:
    return group.members.get(member_id) or Member(member_id)


def _with_metadata(member: Member, record: ConsumerGroupMemberMetadata) -> Member:
    names = frozenset(record.subscribed_topic_names)
    return replace(
        member,
        instance_id=record.instance_id,
        rack_id=record.rack_id,
        client_id=record.client_id,
        client_host=record.client_host,
        subscribed_topic_names=names if names != member.subscribed_topic_names else member.subscribed_topic_names,
        subscribed_topic_regex=record.subscribed_topic_regex or "",
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        server_assignor=record.server_assignor,
        classic=record.classic_member_metadata,
    )


def _with_assignment(member: Member, record: ConsumerGroupCurrentMemberAssignment) -> Member:
    return replace(
        member,
        member_epoch=record.member_epoch,
        previous_member_epoch=record.previous_member_epoch,
        state=_state(record.state),
        assigned=_from_record(record.assigned_partitions),
        pending_revocation=_from_record(record.partitions_pending_revocation),
    )


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:  # of a later Kafka
        return MemberState.UNKNOWN


def _from_record(topics: Iterable[TopicPartitions]) -> Assignment:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}
