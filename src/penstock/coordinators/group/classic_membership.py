"""What members say between two joins: SyncGroup, Heartbeat, LeaveGroup, and the commits of offsets that only they may
make. Each names the generation it believes in; a member that missed a rebalance is told so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group.classic_rebalance import (
    Turn,
    answer_sync,
    become_stable,
    complete_join_if_all_joined,
    member_error,
    rebalance,
    remove_member,
    remove_pending,
    sync_error,
    sync_response,
    synced,
)
from penstock.coordinators.group.classic_state import NO_MEMBER_ID, ClassicGroup, State
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

PROTOCOL_IS_MANDATORY_SINCE = 5
SEVERAL_MEMBERS_SINCE = 3


def turn_of(machine: GroupMachine, group_id: str, now: Now, decision: Decision) -> Turn | None:
    """None when there is no such classic group."""
    group = machine.groups.get(group_id)
    if group is None or group.classic is None:
        return None
    return Turn(machine, group, group.classic, now, decision)


# SyncGroup


def sync(machine: GroupMachine, request: SyncGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    turn = turn_of(machine, request.group_id, now, decision)
    code = _sync_error(turn, request, caller)
    if code or turn is None:
        decision.answer(caller.ticket, sync_error(code))
        return
    classic, member = turn.classic, turn.classic.members[request.member_id]
    synced(turn, member)
    if classic.state is State.STABLE:
        decision.answer(caller.ticket, sync_response(classic, member))
        return
    answer_sync(turn, member, ErrorCode.REBALANCE_IN_PROGRESS)  # one on a connection that broke, most likely
    member.sync_ticket = caller.ticket
    if classic.leader == member.member_id:
        become_stable(turn, {each.member_id: each.assignment for each in request.assignments})


def _sync_error(turn: Turn | None, request: SyncGroupRequest, caller: Caller) -> ErrorCode:
    is_told = request.protocol_type is not None and request.protocol_name is not None
    if caller.api_version >= PROTOCOL_IS_MANDATORY_SINCE and not is_told:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    code = _standing_error(turn, request)
    if code or turn is None:
        return code
    classic = turn.classic
    if _differs(request.protocol_type, classic.protocol_type) or _differs(request.protocol_name, classic.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if classic.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _standing_error(turn: Turn | None, request: SyncGroupRequest | HeartbeatRequest) -> ErrorCode:
    """NONE for who is a member, and knows the generation."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if turn is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = member_error(turn.classic, request.member_id, request.group_instance_id)
    if code:
        return code
    return ErrorCode.NONE if request.generation_id == turn.classic.generation else ErrorCode.ILLEGAL_GENERATION


def _differs(asked: str | None, chosen: str | None) -> bool:
    return asked is not None and chosen is not None and asked != chosen


# Heartbeat


def heartbeat(machine: GroupMachine, request: HeartbeatRequest, caller: Caller, now: Now, decision: Decision) -> None:
    code = _heard_of(turn_of(machine, request.group_id, now, decision), request)
    decision.answer(caller.ticket, HeartbeatResponse(error_code=code))


def _heard_of(turn: Turn | None, request: HeartbeatRequest) -> ErrorCode:
    code = _standing_error(turn, request)
    if code or turn is None:
        return code
    classic = turn.classic
    turn.start_session(classic.members[request.member_id])
    if classic.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


# LeaveGroup


def leave(machine: GroupMachine, request: LeaveGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    if not request.group_id:
        decision.answer(caller.ticket, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        return
    is_batched = caller.api_version >= SEVERAL_MEMBERS_SINCE
    leavers = request.members if is_batched else [MemberIdentity(member_id=request.member_id)]
    turn = turn_of(machine, request.group_id, now, decision)
    members_before = 0 if turn is None else len(turn.classic.members)
    codes = [ErrorCode.UNKNOWN_MEMBER_ID if turn is None else _leave(turn, leaver) for leaver in leavers]
    decision.answer(
        caller.ticket, _left_response(leavers, codes) if is_batched else LeaveGroupResponse(error_code=codes[0])
    )
    if turn is None:
        return
    if len(turn.classic.members) < members_before:
        rebalance(turn)
    else:  # but a pending member may have been all that was waited for
        complete_join_if_all_joined(turn)
    forget_if_unused(turn)


def _leave(turn: Turn, leaver: MemberIdentity) -> ErrorCode:
    """An administrator knows the instance ids of static members only."""
    classic, member_id, instance_id = turn.classic, leaver.member_id, leaver.group_instance_id
    if member_id == NO_MEMBER_ID and instance_id is not None:
        member_id = classic.static_members.get(instance_id, NO_MEMBER_ID)
    if member_id in classic.pending_members:
        remove_pending(turn, member_id)
        return ErrorCode.NONE
    code = member_error(classic, member_id, instance_id)
    if not code:
        remove_member(turn, classic.members[member_id])
    return code


def _left_response(leavers: list[MemberIdentity], codes: list[ErrorCode]) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=code)
            for leaver, code in zip(leavers, codes, strict=True)
        ]
    )


def forget_if_unused(turn: Turn) -> None:
    """A group of which nothing is stored, and that no member came of, leaves nothing behind."""
    classic = turn.classic
    if classic.state is State.EMPTY and not classic.pending_members and classic.stored is None and not turn.has_written:
        turn.group.classic = None
        turn.machine.forget_if_empty(turn.group)


# Commits


def commit_error(
    classic: ClassicGroup,
    member_id: str,
    group_instance_id: str | None,
    generation: int,
    *,
    is_transactional: bool = False,
) -> ErrorCode:
    """Who does not claim to be a member (an administrator, or a consumer that assigns partitions to itself) may commit
    while there are none. Transactional producers of old versions do not say for whom they commit.
    """
    if generation < 0 and classic.state is State.EMPTY:
        return ErrorCode.NONE
    if generation >= 0 or member_id != NO_MEMBER_ID or group_instance_id is not None:
        code = member_error(classic, member_id, group_instance_id)
        if code:
            return code
        if generation != classic.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not is_transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if classic.state is State.COMPLETING_REBALANCE and not is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
