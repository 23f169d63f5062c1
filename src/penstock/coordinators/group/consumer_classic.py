"""Members of the classic protocol in a consumer group: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup mean there.

The coordinator assigns, so there is no leader, and nobody waits for others to join. A generation is the member's epoch.
A join is one step of reconciliation with what the member says it owns; the following sync fetches what it then has; and
a heartbeat says REBALANCE_IN_PROGRESS when another step is due.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group import classic, migration
from penstock.coordinators.group.classic_join import new_member_id
from penstock.coordinators.group.classic_state import NO_MEMBER_ID
from penstock.coordinators.group.consumer_fencing import fence_members
from penstock.coordinators.group.consumer_heartbeat import known_member, refuse_if_full, write
from penstock.coordinators.group.consumer_members import (
    JOIN,
    SESSION,
    SYNC,
    Change,
    replacement,
    replacement_records,
    settle,
    update_member,
)
from penstock.coordinators.group.consumer_protocol import with_ids, write_assignment
from penstock.coordinators.group.consumer_records import group_tombstones
from penstock.coordinators.group.consumer_state import ConsumerGroup, Member, MemberState
from penstock.coordinators.group.records import ClassicMemberMetadata, ClassicProtocol, Record, encode
from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.messages.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    BadConsumerProtocol,
    ConsumerProtocolSubscription,
    blob_version,
    decode_subscription,
)
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

MEMBER_ID_REQUIRED_SINCE = 4
SEVERAL_MEMBERS_SINCE = 3


def _of(machine: GroupMachine, group_id: str) -> ConsumerGroup:
    consumer = machine.groups[group_id].consumer
    assert consumer is not None, f"{group_id} is not a consumer group"
    return consumer


# JoinGroup


def join(machine: GroupMachine, request: JoinGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    """Of a consumer group. One without members becomes a classic group by it."""
    group = _of(machine, request.group_id)
    if not group.members:
        classic.join(machine, request, caller, now, decision)
        if machine.groups[request.group_id].classic is not None:
            decision.records[:0] = [encode(record) for record in group_tombstones(group)]
        return
    try:
        response = _join(machine, group, request, caller, now, decision)
    except BrokerError as error:
        response = JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    if response is not None:
        decision.answer(caller.ticket, response)


def _join(
    machine: GroupMachine,
    group: ConsumerGroup,
    request: JoinGroupRequest,
    caller: Caller,
    now: Now,
    decision: Decision,
) -> JoinGroupResponse | None:
    """None when the request is answered otherwise."""
    refuse_if_full(group, request.member_id, machine.config)
    subscription = _check_join(machine, group, request)
    member_id = request.member_id or new_member_id(request, caller)
    if not request.member_id and not request.group_instance_id and caller.api_version >= MEMBER_ID_REQUIRED_SINCE:
        return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
    before, replaced = _find_member(group, request, member_id)
    if replaced is not None and _is_last_of_new_protocol(machine, group, replaced):
        _hand_over(machine, group, replaced, request, now, decision)
        classic.join(machine, request, caller, now, decision)
        return None
    records: list[Record] = [] if replaced is None else replacement_records(group, replaced, before)
    after = _updated(before, request, subscription, caller)
    change = Change(machine, group, now, records, before, after, replaced, group.regexes)
    member = update_member(change, with_ids(subscription.owned_partitions, machine.topics))
    write(records, decision, machine.config)
    settle(change, member)
    _expect_sync(machine, group.group_id, member, now)
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.member_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
    )


def _check_join(machine: GroupMachine, group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    config = machine.config
    if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
        raise BrokerError(ErrorCode.INVALID_SESSION_TIMEOUT)
    speakers = [member.classic for member in group.members.values() if member.classic is not None]
    known = [{protocol.name for protocol in facts.supported_protocols} for facts in speakers]
    common = [each.name for each in request.protocols if all(each.name in names for names in known)]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return decode_subscription(request.protocols[0].metadata)
    except BadConsumerProtocol as error:
        raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _find_member(group: ConsumerGroup, request: JoinGroupRequest, member_id: str) -> tuple[Member, Member | None]:
    """The member as it was, and the one it replaces, if any. A dynamic member with an id that is not known is new."""
    if request.group_instance_id is None:
        return group.members.get(member_id) or Member(member_id), None
    if request.member_id:
        return known_member(group, member_id, request.group_instance_id), None
    static = group.static_member(request.group_instance_id)
    return (Member(member_id), None) if static is None else (replacement(static, member_id), static)


def _updated(
    member: Member, request: JoinGroupRequest, subscription: ConsumerProtocolSubscription, caller: Caller
) -> Member:
    rebalance_timeout_ms = request.rebalance_timeout_ms
    protocols = tuple(ClassicProtocol(each.name, each.metadata) for each in request.protocols)
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=ClassicMemberMetadata(request.session_timeout_ms, protocols),
    )


def _expect_sync(machine: GroupMachine, group_id: str, member: Member, now: Now) -> None:
    timers = machine.timers
    timers.cancel((JOIN, group_id, member.member_id))
    timers.set((SYNC, group_id, member.member_id), now.monotonic_ms + member.rebalance_timeout_ms)
    _start_session(machine, group_id, member, now)


def _start_session(machine: GroupMachine, group_id: str, member: Member, now: Now) -> None:
    assert member.classic is not None
    deadline_ms = now.monotonic_ms + member.classic.session_timeout_ms
    machine.timers.set((SESSION, group_id, member.member_id), deadline_ms)


def _is_last_of_new_protocol(machine: GroupMachine, group: ConsumerGroup, replaced: Member) -> bool:
    if replaced.classic is not None:
        return False
    if len(group.members) == 1:
        return machine.config.consumer_migration_policy in migration.DOWNGRADE_POLICIES
    return migration.can_downgrade_without(machine, group, [replaced])


def _hand_over(
    machine: GroupMachine,
    group: ConsumerGroup,
    replaced: Member,
    request: JoinGroupRequest,
    now: Now,
    decision: Decision,
) -> None:
    """Makes a classic group in which the replaced member already speaks as the joining one does, to be replaced there.

    So what a static member's return means, rebalance or not, is decided by the classic protocol alone.
    """
    protocols = tuple(ClassicProtocol(each.name, each.metadata) for each in request.protocols)
    speaking = replace(replaced, classic=ClassicMemberMetadata(request.session_timeout_ms, protocols))
    members = {**group.members, replaced.member_id: speaking}
    migration.turn_into_classic(machine, group, members.values(), now, decision)


# SyncGroup


def sync(machine: GroupMachine, request: SyncGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    group = _of(machine, request.group_id)
    try:
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            protocol.name,
        ):
            raise BrokerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        _refuse_if_behind(machine, group, member, now)
    except BrokerError as error:
        decision.answer(caller.ticket, SyncGroupResponse(error_code=error.code))
        return
    machine.timers.cancel((SYNC, group.group_id, member.member_id))
    _start_session(machine, group.group_id, member, now)
    decision.answer(
        caller.ticket,
        SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=write_assignment(member.assigned, machine.topics, blob_version(protocol.metadata)),
        ),
    )


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    member = known_member(group, member_id, instance_id)
    if member.classic is None:
        raise BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} does not speak the classic protocol")
    if member.member_epoch != generation:
        raise BrokerError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _refuse_if_behind(machine: GroupMachine, group: ConsumerGroup, member: Member, now: Now) -> None:
    """One that has partitions to give up first gets to know them; the rest of the way comes after."""
    if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(machine, group.group_id, member, now)
        raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS)


def _expect_join(machine: GroupMachine, group_id: str, member: Member, now: Now) -> None:
    key = JOIN, group_id, member.member_id
    if machine.timers.deadline_ms(key) is None:
        machine.timers.set(key, now.monotonic_ms + member.rebalance_timeout_ms)


# Heartbeat


def heartbeat(machine: GroupMachine, request: HeartbeatRequest, caller: Caller, now: Now, decision: Decision) -> None:
    group = _of(machine, request.group_id)
    try:
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    except BrokerError as error:
        decision.answer(caller.ticket, HeartbeatResponse(error_code=error.code))
        return
    _start_session(machine, group.group_id, member, now)
    code = ErrorCode.NONE
    if _has_to_rejoin(group, member):
        code = ErrorCode.REBALANCE_IN_PROGRESS
        _expect_join(machine, group.group_id, member, now)
    decision.answer(caller.ticket, HeartbeatResponse(error_code=code))


def _has_to_rejoin(group: ConsumerGroup, member: Member) -> bool:
    if member.member_epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: Member) -> bool:
    return any(
        partition not in member.assigned.get(topic_id, ()) and group.is_owned(topic_id, partition)
        for topic_id, partitions in group.target_of(member).items()
        for partition in partitions
    )


# LeaveGroup


def leave(machine: GroupMachine, request: LeaveGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    """Members of the new protocol too: so an administrator removes them."""
    group = _of(machine, request.group_id)
    is_batched = caller.api_version >= SEVERAL_MEMBERS_SINCE
    leavers = request.members if is_batched else [MemberIdentity(member_id=request.member_id)]
    gone: dict[str, Member] = {}
    codes = [_leave(group, leaver, gone) for leaver in leavers]
    if is_batched:
        response = LeaveGroupResponse(
            members=[
                MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=code)
                for leaver, code in zip(leavers, codes, strict=True)
            ]
        )
    else:
        response = LeaveGroupResponse(error_code=codes[0])
    decision.answer(caller.ticket, response)
    fence_members(machine, group, list(gone.values()), now, decision)


def _leave(group: ConsumerGroup, leaver: MemberIdentity, gone: dict[str, Member]) -> ErrorCode:
    member_id = leaver.member_id
    if member_id == NO_MEMBER_ID and leaver.group_instance_id is not None:
        member_id = group.static_members.get(leaver.group_instance_id, NO_MEMBER_ID)
    try:
        member = known_member(group, member_id, leaver.group_instance_id)
    except BrokerError as error:
        return error.code
    gone[member.member_id] = member
    return ErrorCode.NONE
