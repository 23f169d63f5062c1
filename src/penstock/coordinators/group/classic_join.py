"""JoinGroup: becoming a member, and taking part in the next generation.

A new dynamic member is first told its id (v4), so that a client which loses the answer does not leave a dead member
behind. A static member that comes back with its instance id takes over from the one it was before, whose id is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group.classic_rebalance import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    SESSION,
    Turn,
    answer_join,
    complete_join_if_all_joined,
    encode_if_it_fits,
    joined_response,
    member_error,
    prepare,
    rebalance,
    refuse_all_waiting,
    remove_member,
    remove_pending,
)
from penstock.coordinators.group.classic_state import NO_MEMBER_ID, ClassicGroup, Member, Protocols, State
from penstock.coordinators.group.classic_subscription import subscription_topics
from penstock.coordinators.group.state import Group
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from penstock.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
LONGEST_NAME_IN_MEMBER_ID = 255


def join(machine: GroupMachine, request: JoinGroupRequest, caller: Caller, now: Now, decision: Decision) -> None:
    """`machine.groups` may or may not have the group; if it does, it is not one of the consumer protocol."""
    code = _request_error(machine, request)
    group = machine.groups.get(request.group_id)
    classic = None if group is None else group.classic
    if not code and classic is None and request.member_id != NO_MEMBER_ID:
        code = ErrorCode.UNKNOWN_MEMBER_ID
    if code:
        decision.answer(caller.ticket, JoinGroupResponse(error_code=code, member_id=request.member_id))
        return
    group = group or Group(request.group_id)
    classic = classic or ClassicGroup()
    turn = Turn(machine, group, classic, now, decision)
    code = _join(turn, request, _protocols(request), caller)
    if code:
        member_id = NO_MEMBER_ID if code is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        decision.answer(caller.ticket, JoinGroupResponse(error_code=code, member_id=member_id))
    if classic.members or classic.pending_members:
        group.classic = classic
        machine.groups[request.group_id] = group


def _request_error(machine: GroupMachine, request: JoinGroupRequest) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    config = machine.config
    shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    return ErrorCode.NONE


def _protocols(request: JoinGroupRequest) -> Protocols:
    """A name that is given twice counts once, or its support would be overcounted."""
    first: dict[str, bytes] = {}
    for protocol in request.protocols:
        first.setdefault(protocol.name, protocol.metadata)
    return tuple(first.items())


def _join(turn: Turn, request: JoinGroupRequest, protocols: Protocols, caller: Caller) -> ErrorCode:
    """Has answered, or let the request wait, unless there is an error."""
    classic, member_id = turn.classic, request.member_id
    if not _has_room(turn, member_id):
        _turn_away(turn, member_id)
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not classic.supports(request.protocol_type, protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if member_id == NO_MEMBER_ID:
        return _join_without_id(turn, request, protocols, caller)
    if member_id in classic.pending_members and request.group_instance_id is None:
        _add(turn, _new_member(member_id, request, protocols, caller), request.protocol_type)
        return ErrorCode.NONE
    code = member_error(classic, member_id, request.group_instance_id)
    if not code:
        _rejoin(turn, classic.members[member_id], request, protocols, caller)
    return code


# Room


def _has_room(turn: Turn, member_id: str) -> bool:
    """While members join, those that have joined again are counted: a group that is over a lowered limit loses those
    that come last.
    """
    classic, limit = turn.classic, turn.machine.config.group_max_size
    if classic.state is State.EMPTY:
        return True
    member = classic.members.get(member_id)
    if classic.state is State.PREPARING_REBALANCE:
        return (member is not None and member.join_ticket is not None) or classic.joins_waiting < limit
    return member is not None or len(classic.members) < limit


def _turn_away(turn: Turn, member_id: str) -> None:
    member = turn.classic.members.get(member_id)
    if member is not None:
        remove_member(turn, member)
    elif member_id in turn.classic.pending_members:
        remove_pending(turn, member_id)
    complete_join_if_all_joined(turn)


# New members


def _join_without_id(turn: Turn, request: JoinGroupRequest, protocols: Protocols, caller: Caller) -> ErrorCode:
    classic, instance_id = turn.classic, request.group_instance_id
    member_id = new_member_id(request, caller)
    new = _new_member(member_id, request, protocols, caller)
    if instance_id is not None and instance_id in classic.static_members:
        return _replace_static(turn, classic.members[classic.static_members[instance_id]], new, caller)
    if instance_id is None and caller.api_version >= MEMBER_ID_REQUIRED_SINCE:
        classic.pending_members.add(member_id)
        turn.set_timer(SESSION, request.session_timeout_ms, member_id)
        response = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        turn.decision.answer(caller.ticket, response)
        return ErrorCode.NONE
    _add(turn, new, request.protocol_type)
    return ErrorCode.NONE


def new_member_id(request: JoinGroupRequest, caller: Caller) -> str:
    name = caller.client_id if request.group_instance_id is None else request.group_instance_id
    # A client may have a name that fills a string of the protocol; its member id has to fit in one, too.
    return f"{name[:LONGEST_NAME_IN_MEMBER_ID]}-{caller.new_id()}"


def _new_member(member_id: str, request: JoinGroupRequest, protocols: Protocols, caller: Caller) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=_rebalance_timeout_ms(request, caller),
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols,
        is_new=True,
        join_ticket=caller.ticket,
    )


def _rebalance_timeout_ms(request: JoinGroupRequest, caller: Caller) -> int:
    return request.session_timeout_ms if caller.api_version == 0 else request.rebalance_timeout_ms


def _add(turn: Turn, member: Member, protocol_type: str) -> None:
    classic = turn.classic
    classic.protocol_type = protocol_type
    classic.has_joined_in_delay = True
    classic.add(member)
    turn.set_timer(SESSION, NEW_MEMBER_JOIN_TIMEOUT_MS, member.member_id)
    rebalance(turn)


# Members that come back


def _rejoin(turn: Turn, member: Member, request: JoinGroupRequest, protocols: Protocols, caller: Caller) -> None:
    """At once with the current generation, if that is all the member can need: it may have missed the answer. Not for
    the leader of a stable group, which asks for a rebalance when it sees that topics changed.
    """
    classic = turn.classic
    is_unchanged = member.protocols == protocols
    is_waiting_for_leader = classic.state is State.COMPLETING_REBALANCE
    is_stable_follower = classic.state is State.STABLE and classic.leader != member.member_id
    if is_unchanged and (is_waiting_for_leader or is_stable_follower):
        turn.decision.answer(caller.ticket, joined_response(classic, member))
        return
    _give_up_earlier_join(turn, member)
    classic.set_protocols(member, protocols)
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request, caller)
    member.session_timeout_ms = request.session_timeout_ms
    classic.wait_for_join(member, caller.ticket)
    rebalance(turn)


def _give_up_earlier_join(turn: Turn, member: Member) -> None:
    """Its connection broke, most likely, and nobody hears this; a client that does may join again."""
    response = JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
    answer_join(turn, member, response)


def _replace_static(turn: Turn, old: Member, new: Member, caller: Caller) -> ErrorCode:
    """It inherits the assignment. While the group is stable that is all, and nobody else notices."""
    classic = turn.classic
    new.assignment, new.is_new = old.assignment, False
    if classic.state is State.STABLE and not _would_change_the_plan(classic, old, new):
        return _replace_quietly(turn, old, new, caller)
    _take_over(turn, old, new)
    if classic.state is State.PREPARING_REBALANCE:
        complete_join_if_all_joined(turn)
    else:
        # Also when the leader is just planning: its plan would be for the old id.
        prepare(turn)
    return ErrorCode.NONE


def _would_change_the_plan(classic: ClassicGroup, old: Member, new: Member) -> bool:
    return _has_other_topics(classic, old, new) or classic.elected_protocol(instead=(old, new)) != classic.protocol


def _has_other_topics(classic: ClassicGroup, old: Member, new: Member) -> bool:
    """Kafka does not look, and leaves newly subscribed topics unread (KAFKA-12759). The rest of the metadata does not
    count: that a restarted consumer owns no partitions yet is just what must not cause a rebalance.
    """
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    before = subscription_topics(old.metadata(classic.protocol))
    after = subscription_topics(new.metadata(classic.protocol))
    return before is not None and after is not None and before != after


def _replace_quietly(turn: Turn, old: Member, new: Member, caller: Caller) -> ErrorCode:
    """Before v9 it is told that the old id leads, if it was the leader: as a leader it would plan (KIP-814)."""
    classic = turn.classic
    was_leader = classic.leader == old.member_id
    members = [new if member is old else member for member in classic.members.values()]
    leader = new.member_id if was_leader else classic.leader
    record = encode_if_it_fits(turn, classic.record(turn.group.group_id, members, leader=leader))
    if record is None:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    turn.write(record)
    _take_over(turn, old, new)
    can_skip = caller.api_version >= SKIP_ASSIGNMENT_SINCE
    response = joined_response(classic, new, skip_assignment=was_leader and can_skip)
    if was_leader and not can_skip:
        response.leader, response.members = old.member_id, []
    answer_join(turn, new, response)
    return ErrorCode.NONE


def _take_over(turn: Turn, old: Member, new: Member) -> None:
    refuse_all_waiting(turn, old, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
    turn.cancel_timer(SESSION, old.member_id)
    turn.classic.replace(old, new)
    turn.start_session(new)
