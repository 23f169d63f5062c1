"""How a classic group gets from one generation to the next, whatever set it off.

Members join until all have, or until the longest of their rebalance timeouts is over; who is missing then is out. The
next generation begins, everybody is told the protocol and the leader, and has once more that long to ask for its
assignment. What a member waits for is always answered, if only with an error when it is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Decision, LogRecord, Now
from penstock.coordinators.group.classic_state import (
    NO_ASSIGNMENT,
    NO_MEMBER_ID,
    ClassicGroup,
    InitialDelay,
    Member,
    State,
)
from penstock.coordinators.group.records import GroupMetadataRecord, encode
from penstock.coordinators.group.state import Group
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

SESSION, JOIN, SYNC = "classic-session", "classic-join", "classic-sync"
"""What timers are about; the group id comes next in their key, and for a session the member id."""

# A client that gives up waiting in its first join comes back as another new member; this ends the one it left behind.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


@dataclass(slots=True)
class Turn:
    """One group's part in a decision: what the functions of the classic protocol work on."""

    machine: GroupMachine
    group: Group
    classic: ClassicGroup
    now: Now
    decision: Decision
    has_written: bool = False

    def write(self, record: LogRecord) -> None:
        self.decision.records.append(record)
        self.has_written = True

    def set_timer(self, kind: str, after_ms: int, member_id: str | None = None) -> None:
        self.machine.timers.set(self._timer(kind, member_id), self.now.monotonic_ms + after_ms)

    def cancel_timer(self, kind: str, member_id: str | None = None) -> None:
        self.machine.timers.cancel(self._timer(kind, member_id))

    def _timer(self, kind: str, member_id: str | None) -> tuple[str, ...]:
        group_id = self.group.group_id
        return (kind, group_id) if member_id is None else (kind, group_id, member_id)

    def start_session(self, member: Member) -> None:
        """Or go on with it: what is heard of a member moves its end."""
        self.set_timer(SESSION, member.session_timeout_ms, member.member_id)


# Answers


def answer_join(turn: Turn, member: Member, response: JoinGroupResponse) -> None:
    ticket = turn.classic.stop_waiting_for_join(member)
    if ticket is not None:
        turn.decision.answer(ticket, response)


def answer_sync(turn: Turn, member: Member, code: ErrorCode) -> None:
    """With the member's assignment, if there is no error. It may have been silent for long: its session starts anew."""
    ticket, member.sync_ticket = member.sync_ticket, None
    if ticket is not None:
        turn.decision.answer(ticket, sync_response(turn.classic, member) if not code else sync_error(code))
        turn.start_session(member)


def refuse_all_waiting(turn: Turn, member: Member, code: ErrorCode, member_id: str) -> None:
    """`member_id` is what the join's answer shall name."""
    answer_join(turn, member, JoinGroupResponse(error_code=code, member_id=member_id))
    answer_sync(turn, member, code)


def joined_response(classic: ClassicGroup, member: Member, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The current generation. Only the leader is told about the others."""
    is_leader = classic.leader == member.member_id
    return JoinGroupResponse(
        generation_id=classic.generation,
        protocol_type=classic.protocol_type,
        protocol_name=classic.protocol or "",
        leader=classic.leader or NO_MEMBER_ID,
        member_id=member.member_id,
        skip_assignment=skip_assignment,
        members=_members_for_leader(classic) if is_leader else [],
    )


def _members_for_leader(classic: ClassicGroup) -> list[JoinGroupResponseMember]:
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata(classic.protocol),
        )
        for member in classic.members.values()
    ]


def sync_response(classic: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=classic.protocol_type, protocol_name=classic.protocol, assignment=member.assignment
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


# Who may speak


def member_error(classic: ClassicGroup, member_id: str, group_instance_id: str | None) -> ErrorCode:
    if group_instance_id is not None:
        current = classic.static_members.get(group_instance_id)
        if current is not None and current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member_id in classic.members else ErrorCode.UNKNOWN_MEMBER_ID


# Removing


def remove_member(turn: Turn, member: Member, code: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
    """Only this; what follows from it, the caller decides when all that have to go are gone."""
    refuse_all_waiting(turn, member, code, NO_MEMBER_ID)
    turn.cancel_timer(SESSION, member.member_id)
    turn.classic.remove(member.member_id)


def remove_pending(turn: Turn, member_id: str) -> None:
    turn.classic.pending_members.discard(member_id)
    turn.cancel_timer(SESSION, member_id)


# Join phase


def rebalance(turn: Turn) -> None:
    """Somebody joined, changed or left: a new join phase begins, or the one under way may be over."""
    if turn.classic.state is State.PREPARING_REBALANCE:
        complete_join_if_all_joined(turn)
    else:
        prepare(turn)


def prepare(turn: Turn) -> None:
    classic = turn.classic
    if classic.state is State.COMPLETING_REBALANCE:
        drop_assignment(turn, ErrorCode.REBALANCE_IN_PROGRESS)
    classic.unsynced.clear()
    turn.cancel_timer(SYNC)
    is_initial = classic.state is State.EMPTY
    classic.move_to(State.PREPARING_REBALANCE, turn.now.wall_ms)
    if is_initial:
        _wait_for_more_members(turn)
    elif classic.has_all_joined():
        complete_join(turn)
    else:
        turn.set_timer(JOIN, classic.rebalance_timeout_ms())


def drop_assignment(turn: Turn, code: ErrorCode) -> None:
    """The generation will not become stable: who waits for its assignment has to join again."""
    for member in turn.classic.members.values():
        member.assignment = NO_ASSIGNMENT
        answer_sync(turn, member, code)


def _wait_for_more_members(turn: Turn) -> None:
    delay_ms = turn.machine.config.group_initial_rebalance_delay_ms
    turn.classic.initial_delay = InitialDelay(delay_ms, max(0, turn.classic.rebalance_timeout_ms() - delay_ms))
    turn.classic.has_joined_in_delay = False
    turn.set_timer(JOIN, delay_ms)


def join_phase_is_due(turn: Turn) -> None:
    classic = turn.classic
    delay = classic.initial_delay
    if classic.state is not State.PREPARING_REBALANCE:
        return
    if delay is None or not classic.has_joined_in_delay or not delay.remaining_ms:
        complete_join(turn)
        return
    next_ms = min(turn.machine.config.group_initial_rebalance_delay_ms, delay.remaining_ms)
    classic.initial_delay = InitialDelay(next_ms, max(0, delay.remaining_ms - delay.delay_ms))
    classic.has_joined_in_delay = False
    turn.set_timer(JOIN, next_ms)


def complete_join_if_all_joined(turn: Turn) -> None:
    """Not before an initial delay is over: all that have joined so far need not be all that are about to."""
    classic = turn.classic
    if classic.state is State.PREPARING_REBALANCE and classic.initial_delay is None and classic.has_all_joined():
        complete_join(turn)


def complete_join(turn: Turn) -> None:
    """Static members that did not come are kept: that they may be away for a while is what they are for. Their
    sessions end as everybody's, and they have to ask for their assignment in time.
    """
    classic = turn.classic
    turn.cancel_timer(JOIN)
    classic.initial_delay = None
    for member in [each for each in classic.members.values() if each.join_ticket is None and not each.is_static]:
        remove_member(turn, member)
    if classic.members and not _elect_a_leader_that_joined(classic):
        # None but absent static members: wait for one of them, or for the end of their sessions.
        turn.set_timer(JOIN, classic.rebalance_timeout_ms())
        return
    classic.generation += 1
    if classic.members:
        _begin_generation(turn)
    else:
        _become_empty(turn)


def _elect_a_leader_that_joined(classic: ClassicGroup) -> bool:
    assert classic.leader is not None
    if classic.members[classic.leader].join_ticket is None:
        joined = next((each for each in classic.members.values() if each.join_ticket is not None), None)
        if joined is None:
            return False
        classic.leader = joined.member_id
    return True


def _begin_generation(turn: Turn) -> None:
    classic = turn.classic
    classic.protocol = classic.elected_protocol()
    classic.move_to(State.COMPLETING_REBALANCE, turn.now.wall_ms)
    for member in classic.members.values():
        answer_join(turn, member, joined_response(classic, member))
        member.is_new = False
        turn.start_session(member)
    classic.unsynced.update(classic.members)
    turn.set_timer(SYNC, classic.rebalance_timeout_ms())


def _become_empty(turn: Turn) -> None:
    classic = turn.classic
    classic.protocol = classic.leader = None
    classic.move_to(State.EMPTY, turn.now.wall_ms)
    turn.write(encode(classic.record(turn.group.group_id, (), leader=None)))


# Sync phase


def synced(turn: Turn, member: Member) -> None:
    turn.classic.unsynced.discard(member.member_id)
    if not turn.classic.unsynced:
        turn.cancel_timer(SYNC)


def sync_phase_is_due(turn: Turn) -> None:
    """Whoever has not asked for its assignment, the leader maybe, keeps the others from working: it is out."""
    classic = turn.classic
    missing = [classic.members[member_id] for member_id in classic.unsynced]
    if not missing or classic.state not in (State.COMPLETING_REBALANCE, State.STABLE):
        return
    for member in missing:
        remove_member(turn, member)
    prepare(turn)


def become_stable(turn: Turn, assignments: dict[str, bytes]) -> None:
    """The leader has planned. Members it forgot get nothing."""
    classic = turn.classic
    stored = classic.record(
        turn.group.group_id, classic.members.values(), leader=classic.leader, assignments=assignments
    )
    record = encode_if_it_fits(turn, stored)
    if record is None:
        drop_assignment(turn, ErrorCode.UNKNOWN_SERVER_ERROR)
        rebalance(turn)
        return
    turn.write(record)
    for member in classic.members.values():
        member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
        answer_sync(turn, member, ErrorCode.NONE)
    classic.move_to(State.STABLE, turn.now.wall_ms)


def encode_if_it_fits(turn: Turn, record: GroupMetadataRecord) -> LogRecord | None:
    encoded = encode(record)
    size = len(encoded.key) + len(encoded.value or b"")
    return encoded if size <= turn.machine.config.max_record_bytes else None
