"""ConsumerGroupHeartbeat: with it a member of a consumer group joins, stays, changes and leaves (KIP-848).

v0: the coordinator names a member that has no id    v1: the member names itself (KIP-1082), and may subscribe by a
regular expression

Null and -1 fields mean that nothing has changed. The answer names the assignment only when it has changed or when the
member does not know it: after joining, and after a full request, which a member sends when an answer did not reach it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group import migration
from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.consumer_fencing import fence_members
from penstock.coordinators.group.consumer_members import (
    REBALANCE,
    SESSION,
    Change,
    replacement,
    replacement_records,
    settle,
    update_member,
)
from penstock.coordinators.group.consumer_records import current_record
from penstock.coordinators.group.consumer_state import (
    JOINING,
    LEAVING,
    LEAVING_FOR_NOW,
    ConsumerGroup,
    Member,
)
from penstock.coordinators.group.reconciliation import Owned, is_within
from penstock.coordinators.group.records import Record, encode
from penstock.coordinators.group.state import Group, GroupConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId
from penstock.protocol.messages.consumer_groups import (
    Assignment as AssignmentAnswer,
)
from penstock.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

MEMBERS_NAME_THEMSELVES_SINCE = 1
# What a record of a batch takes beside its key and value, at most.
_RECORD_OVERHEAD_BYTES = 32


def heartbeat(
    machine: GroupMachine, request: ConsumerGroupHeartbeatRequest, caller: Caller, now: Now, decision: Decision
) -> None:
    try:
        check_request(request, caller.api_version, machine.config)
        if request.member_epoch in (LEAVING, LEAVING_FOR_NOW):
            response = _leave(machine, request, now, decision)
        else:
            response = _stay(machine, request, caller, now, decision)
    except BrokerError as error:
        response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
    decision.answer(caller.ticket, response)


def check_request(request: ConsumerGroupHeartbeatRequest, api_version: int, config: GroupConfig) -> None:
    epoch = request.member_epoch
    if api_version >= MEMBERS_NAME_THEMSELVES_SINCE or epoch > JOINING or epoch == LEAVING:
        _refuse_if(not request.member_id, "a member needs an id")
    _refuse_if(not request.group_id, "a group needs a name")
    _refuse_if(request.instance_id == "", "an instance id is a name, or null")
    _refuse_if(request.rack_id == "", "a rack is a name, or null")
    _refuse_if(epoch < LEAVING_FOR_NOW, f"there is no member epoch {epoch}")
    if epoch == JOINING:
        _refuse_if(request.rebalance_timeout_ms == -1, "who joins has to say its rebalance timeout")
        _refuse_if(request.topic_partitions != [], "who joins owns no partitions yet: an empty list, not null")
        _refuse_if(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "who joins has to say what it subscribes to: names or a regular expression",
        )
    if epoch == LEAVING_FOR_NOW:
        _refuse_if(request.instance_id is None, "only a static member, with an instance id, leaves for a while")
    if request.server_assignor is not None and request.server_assignor not in config.consumer_assignors:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"no assignor {request.server_assignor!r} here; there are {', '.join(config.consumer_assignors)}",
        )


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise BrokerError(ErrorCode.INVALID_REQUEST, message)


# Joining and staying


def _stay(
    machine: GroupMachine, request: ConsumerGroupHeartbeatRequest, caller: Caller, now: Now, decision: Decision
) -> ConsumerGroupHeartbeatResponse:
    records: list[Record] = []
    group_id = request.group_id
    found = machine.groups.get(group_id)
    if request.member_epoch == JOINING:
        group = _group_to_join(machine, found, group_id, records)
    else:
        group = consumer_group(found, group_id)
    refuse_if_full(group, request.member_id, machine.config)
    owned = None if request.topic_partitions is None else owned_from(request.topic_partitions)
    before, replaced = _find_member(group, request, request.member_id or caller.new_id(), owned)
    if replaced is not None:
        records += replacement_records(group, replaced, before)
    after = _updated(before, request, caller)
    change = Change(machine, group, now, records, before, after, replaced, group.regexes)
    member = update_member(change, owned)
    write(records, decision, machine.config)
    if found is not None and found.classic is not None:
        migration.finish_upgrade(machine, found, group, now, decision)
    settle(change, member)
    deadline_ms = now.monotonic_ms + machine.config.consumer_session_timeout_ms
    machine.timers.set((SESSION, group_id, member.member_id), deadline_ms)
    return _answer(request, before, member, machine.config)


def _group_to_join(machine: GroupMachine, found: Group | None, group_id: str, records: list[Record]) -> ConsumerGroup:
    """A group that is not there yet is made by its first member's records."""
    if found is not None and found.consumer is not None:
        return found.consumer
    if found is not None and found.classic is not None:
        return migration.upgraded(machine, found, records)
    return ConsumerGroup(group_id)


def consumer_group(found: Group | None, group_id: str) -> ConsumerGroup:
    if found is None or (found.consumer is None and found.classic is None):
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
    if found.consumer is None:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is no consumer group")
    return found.consumer


def refuse_if_full(group: ConsumerGroup, member_id: str, config: GroupConfig) -> None:
    if len(group.members) >= config.consumer_max_size and member_id not in group.members:
        raise BrokerError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the group is full: {config.consumer_max_size} members (group.consumer.max.size)",
        )


def _find_member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Owned | None
) -> tuple[Member, Member | None]:
    """The member as it was, and the one it replaces, if any."""
    if request.instance_id is None:
        member = group.members.get(member_id)
        if member is None and request.member_epoch == JOINING:
            return Member(member_id), None
        known = known_member(group, member_id, None)
        _check_epoch(known, request.member_epoch, owned)
        return known, None
    static = group.static_member(request.instance_id)
    if request.member_epoch != JOINING:
        known = known_member(group, member_id, request.instance_id)
        _check_epoch(known, request.member_epoch, owned)
        return known, None
    if static is None:
        return group.members.get(member_id) or Member(member_id), None
    if static.classic is None and static.member_epoch != LEAVING_FOR_NOW:
        raise BrokerError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"the instance id {request.instance_id!r} is in use by the member {static.member_id!r}, which has not left",
        )
    return replacement(static, member_id), static


def known_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    """For a static member only its newest id counts."""
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            message = f"{member_id!r} is no member of {group.group_id!r}"
            raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member
    member = group.static_member(instance_id)
    if member is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id!r}")
    if member.member_id != member_id:
        raise BrokerError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"the instance id {instance_id!r} now belongs to {member.member_id!r}, not to {member_id!r}",
        )
    return member


def _check_epoch(member: Member, epoch: int, owned: Owned | None) -> None:
    if epoch == member.member_epoch:
        return
    # The answer that took it to the new epoch may have been lost. Then it cannot own more than it was given.
    if epoch < member.member_epoch and epoch == member.previous_member_epoch and is_within(owned, member.assigned):
        return
    comparison = "greater" if epoch > member.member_epoch else "smaller"
    raise BrokerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member's epoch {epoch} is {comparison} than {member.member_epoch}, where the group knows it to be:"
        " it has to give up all its partitions and join again",
    )


def _updated(member: Member, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> Member:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        rebalance_timeout_ms=_unless(request.rebalance_timeout_ms, -1, member.rebalance_timeout_ms),
        server_assignor=request.server_assignor or member.server_assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def _unless(value: int, missing: int, otherwise: int) -> int:
    return otherwise if value == missing else value


def owned_from(topics: list[TopicPartitions]) -> dict[TopicId, set[int]]:
    owned: dict[TopicId, set[int]] = {}
    for topic in topics:
        owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {topic_id: partitions for topic_id, partitions in owned.items() if partitions}


def _answer(
    request: ConsumerGroupHeartbeatRequest, before: Member, member: Member, config: GroupConfig
) -> ConsumerGroupHeartbeatResponse:
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=config.consumer_heartbeat_interval_ms,
    )
    is_full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    if request.member_epoch == JOINING or is_full or before.assigned != member.assigned:
        response.assignment = _assignment_answer(member.assigned)
    return response


def _assignment_answer(assigned: Assignment) -> AssignmentAnswer:
    return AssignmentAnswer(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(assigned[topic_id])) for topic_id in sorted(assigned)
        ]
    )


def write(records: list[Record], decision: Decision, config: GroupConfig) -> None:
    """All or nothing: an assignment that the partition would not take is refused here, where nothing has happened."""
    encoded = [encode(record) for record in records]
    size = sum(len(each.key) + len(each.value or b"") + _RECORD_OVERHEAD_BYTES for each in encoded)
    if size > config.max_record_bytes:
        message = f"the group's change takes {size} bytes, more than {config.max_record_bytes}"
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
    decision.records += encoded


# Leaving


def _leave(
    machine: GroupMachine, request: ConsumerGroupHeartbeatRequest, now: Now, decision: Decision
) -> ConsumerGroupHeartbeatResponse:
    group_id = request.group_id
    group = consumer_group(machine.groups.get(group_id), group_id)
    member = known_member(group, request.member_id, request.instance_id)
    if request.member_epoch == LEAVING_FOR_NOW:
        resting = replace(member, member_epoch=LEAVING_FOR_NOW, pending_revocation=NOTHING)
        write([current_record(group_id, resting)], decision, machine.config)
        machine.timers.cancel((REBALANCE, group_id, member.member_id))
    else:
        fence_members(machine, group, [member], now, decision)
    return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)
