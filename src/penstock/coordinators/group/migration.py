"""From one rebalance protocol to the other while the group works (KIP-848).

A classic group becomes a consumer group when the first member of the new protocol joins it: the classic members keep
what they have, and go on with JoinGroup and SyncGroup (`consumer_classic`). It becomes a classic group again when the
last member of the new protocol has gone. `group.consumer.migration.policy` says which of the two is allowed.

A decision may change a group's kind and go on with what it has become. As nothing is durable before its records are
applied, it goes on with a `ConsumerGroup` made of those records, which the applied ones then build once more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Decision, Now
from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.classic_rebalance import Turn, prepare, refuse_all_waiting
from penstock.coordinators.group.classic_state import ClassicGroup, State
from penstock.coordinators.group.classic_state import Member as ClassicMember
from penstock.coordinators.group.consumer_members import SESSION, cancel_timers
from penstock.coordinators.group.consumer_protocol import with_ids, write_assignment
from penstock.coordinators.group.consumer_records import (
    current_record,
    group_tombstones,
    member_record,
    target_record,
)
from penstock.coordinators.group.consumer_state import ConsumerGroup, Member
from penstock.coordinators.group.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMetadata,
    ConsumerGroupTargetAssignmentMetadata,
    GroupTombstone,
    Record,
    encode,
)
from penstock.coordinators.group.state import Group
from penstock.coordinators.group.subscriptions import all_topics, metadata_hash
from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    BadConsumerProtocol,
    blob_version,
    decode_assignment,
    decode_subscription,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

UPGRADE_POLICIES = frozenset({"bidirectional", "upgrade"})
DOWNGRADE_POLICIES = frozenset({"bidirectional", "downgrade"})


# Classic to consumer


def upgraded(machine: GroupMachine, group: Group, records: list[Record]) -> ConsumerGroup:
    """What the classic group becomes. Refused with GROUP_ID_NOT_FOUND, as Kafka does, when it must stay what it is."""
    classic = group.classic
    assert classic is not None
    records.append(GroupTombstone(group.group_id))
    if not classic.members:
        return ConsumerGroup(group.group_id)
    _check_upgrade(machine, group.group_id, classic)
    consumer = ConsumerGroup(group.group_id, epoch=classic.generation, target_epoch=classic.generation)
    try:
        for classic_member in classic.members.values():
            member = _consumer_member(machine, classic, classic_member)
            consumer.put_member(member)
            consumer.targets[member.member_id] = member.assigned
    except BadConsumerProtocol as error:
        raise _not_upgraded(group.group_id, f"the embedded consumer protocol is malformed: {error}") from None
    names = all_topics(consumer.members.values(), {})
    consumer.metadata_hash = metadata_hash(consumer, names, machine.topics)
    records += _all_records(consumer)
    return consumer


def _check_upgrade(machine: GroupMachine, group_id: str, classic: ClassicGroup) -> None:
    if machine.config.consumer_migration_policy not in UPGRADE_POLICIES:
        raise _not_upgraded(group_id, "group.consumer.migration.policy does not allow it")
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _not_upgraded(group_id, "its members are no consumers")
    if len(classic.members) > machine.config.consumer_max_size:
        raise _not_upgraded(group_id, "it has too many members (group.consumer.max.size)")


def _not_upgraded(group_id: str, reason: str) -> BrokerError:
    message = f"the classic group {group_id!r} cannot become a consumer group: {reason}"
    return BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _consumer_member(machine: GroupMachine, classic: ClassicGroup, member: ClassicMember) -> Member:
    """With what it has, at the generation as its epoch. In a first join phase no protocol is chosen yet."""
    metadata = member.metadata(classic.protocol) or member.protocols[0][1]
    subscription = decode_subscription(metadata)
    assigned: Assignment = NOTHING
    if member.assignment:
        assignment = decode_assignment(member.assignment)
        if assignment.user_data:
            raise BadConsumerProtocol("user data of an assignor of its own would be lost")
        assigned = with_ids(assignment.assigned_partitions, machine.topics)
    return Member(
        member_id=member.member_id,
        member_epoch=classic.generation,
        previous_member_epoch=classic.generation,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        classic=ClassicMemberMetadata(
            member.session_timeout_ms, tuple(ClassicProtocol(name, metadata) for name, metadata in member.protocols)
        ),
        assigned=assigned,
    )


def _all_records(group: ConsumerGroup) -> list[Record]:
    group_id, members = group.group_id, group.members.values()
    return [
        *(member_record(group_id, member) for member in members),
        ConsumerGroupMetadata(group_id, group.epoch, group.metadata_hash),
        *(target_record(group_id, member.member_id, member.assigned) for member in members),
        ConsumerGroupTargetAssignmentMetadata(group_id, group.target_epoch),
        *(current_record(group_id, member) for member in members),
    ]


def finish_upgrade(machine: GroupMachine, group: Group, consumer: ConsumerGroup, now: Now, decision: Decision) -> None:
    """Who waits in the classic group is told to join again, and finds the consumer group."""
    classic = group.classic
    assert classic is not None
    turn = Turn(machine, group, classic, now, decision)
    for member in classic.members.values():
        refuse_all_waiting(turn, member, ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
    for member_id, upgraded_member in consumer.members.items():
        if upgraded_member.classic is not None:
            deadline_ms = now.monotonic_ms + upgraded_member.classic.session_timeout_ms
            machine.timers.set((SESSION, group.group_id, member_id), deadline_ms)


# Consumer to classic


def can_downgrade_without(machine: GroupMachine, group: ConsumerGroup, gone: Collection[Member]) -> bool:
    ids = {member.member_id for member in gone}
    left = [member for member in group.members.values() if member.member_id not in ids]
    return (
        bool(left)
        and all(member.classic is not None for member in left)
        and machine.config.consumer_migration_policy in DOWNGRADE_POLICIES
        and len(left) <= machine.config.group_max_size
    )


def downgrade(
    machine: GroupMachine, consumer: ConsumerGroup, gone: Collection[Member], now: Now, decision: Decision
) -> None:
    """The members that stay keep their targets as assignments, and rebalance among themselves."""
    ids = {member.member_id for member in gone}
    left = [member for member in consumer.members.values() if member.member_id not in ids]
    prepare(turn_into_classic(machine, consumer, left, now, decision))


def turn_into_classic(
    machine: GroupMachine, consumer: ConsumerGroup, members: Collection[Member], now: Now, decision: Decision
) -> Turn:
    """`members` are those of the classic group, all of which have to speak its protocol."""
    group = machine.groups[consumer.group_id]
    classic = ClassicGroup(
        state=State.STABLE,
        current_state_timestamp=now.wall_ms,
        generation=consumer.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
    )
    for member in members:
        classic.add(_classic_member(member))
    classic.protocol = classic.elected_protocol()
    for member in members:
        mine = classic.members[member.member_id]
        version = blob_version(mine.metadata(classic.protocol))
        mine.assignment = write_assignment(consumer.target_of(member), machine.topics, version)
    decision.records += [encode(record) for record in group_tombstones(consumer)]
    decision.records.append(encode(classic.record(group.group_id, classic.members.values(), leader=classic.leader)))
    group.classic = classic
    turn = Turn(machine, group, classic, now, decision, has_written=True)
    for member in consumer.members.values():
        cancel_timers(machine, group.group_id, member.member_id)
    for each in classic.members.values():
        turn.start_session(each)
    return turn


def _classic_member(member: Member) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
    )
