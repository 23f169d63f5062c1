"""The classic rebalance protocol, as the rest of the coordinator sees it.

Requests are in `classic_join` and `classic_membership`, what they set off in `classic_rebalance`, and what a group is,
with the reasons why it is safe, in `classic_state`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group.classic_join import join
from penstock.coordinators.group.classic_membership import (
    commit_error,
    forget_if_unused,
    heartbeat,
    leave,
    sync,
    turn_of,
)
from penstock.coordinators.group.classic_rebalance import (
    JOIN,
    SESSION,
    SYNC,
    Turn,
    complete_join_if_all_joined,
    join_phase_is_due,
    prepare,
    rebalance,
    remove_member,
    remove_pending,
    sync_phase_is_due,
)
from penstock.coordinators.group.classic_state import ClassicGroup, Member, State
from penstock.coordinators.group.classic_subscription import subscription_topics
from penstock.coordinators.group.records import GroupMetadataRecord, GroupTombstone, encode
from penstock.coordinators.group.state import Group
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from penstock.protocol.messages.group_offsets import OffsetCommitRequest
from penstock.protocol.messages.groups import DescribedGroup, DescribedGroupMember

if TYPE_CHECKING:
    from penstock.coordinators.group.machine import GroupMachine

__all__ = [
    "apply",
    "check_commit",
    "delete",
    "describe",
    "due",
    "empty_since_ms",
    "forget_timers",
    "heartbeat",
    "is_empty",
    "join",
    "leave",
    "loaded",
    "protocol_type",
    "state_name",
    "subscribed_topics",
    "sync",
]


def check_commit(
    machine: GroupMachine, group: Group, request: OffsetCommitRequest, caller: Caller, now: Now
) -> ErrorCode:
    """NONE if the offsets may be committed, which then is as good as a heartbeat. For a commit in a transaction, which
    is not, ask `commit_error`.
    """
    classic = _of(group)
    code = commit_error(classic, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
    member = classic.members.get(request.member_id)
    if not code and member is not None:
        Turn(machine, group, classic, now, Decision()).start_session(member)
    return code


# Time


def due(machine: GroupMachine, timer_key: tuple[str, ...], now: Now, decision: Decision) -> None:
    kind, group_id, *rest = timer_key
    turn = turn_of(machine, group_id, now, decision)
    if turn is None:
        return
    if kind == SESSION:
        _session_is_over(turn, rest[0])
    elif kind == JOIN:
        join_phase_is_due(turn)
    elif kind == SYNC:
        sync_phase_is_due(turn)
    forget_if_unused(turn)


def _session_is_over(turn: Turn, member_id: str) -> None:
    classic, member = turn.classic, turn.classic.members.get(member_id)
    if member_id in classic.pending_members:
        remove_pending(turn, member_id)
        complete_join_if_all_joined(turn)
    elif member is not None and not member.is_excused_from_heartbeats:
        remove_member(turn, member)
        rebalance(turn)


def loaded(machine: GroupMachine, group: Group, now: Now) -> None:
    """After replay: who is there has a whole session's time to be heard of."""
    stored = _of(group).stored
    assert stored is not None, "what is not stored is not replayed"
    classic = group.classic = ClassicGroup.restored(stored)
    decision = Decision()
    turn = Turn(machine, group, classic, now, decision)
    for member in classic.members.values():
        turn.start_session(member)
    if len(classic.members) > machine.config.group_max_size:
        prepare(turn)  # the limit was lowered; who joins last is turned away
    assert not decision.records and not decision.answers, "nobody can be waiting yet"


# Durable state


def apply(machine: GroupMachine, record: GroupMetadataRecord | GroupTombstone) -> None:
    if isinstance(record, GroupTombstone):
        group = machine.groups.get(record.group_id)
        if group is not None and group.classic is not None:
            forget_timers(machine, group)
            group.classic = None
            machine.forget_if_empty(group)
        return
    group = machine.group_or_new(record.group_id)
    if group.classic is None:
        group.classic = ClassicGroup()
    group.classic.stored = record


def forget_timers(machine: GroupMachine, group: Group) -> None:
    classic = _of(group)
    for kind in (JOIN, SYNC):
        machine.timers.cancel((kind, group.group_id))
    for member_id in (*classic.members, *classic.pending_members):
        machine.timers.cancel((SESSION, group.group_id, member_id))


def delete(group: Group, decision: Decision) -> None:
    """Of an empty group; its offsets are not in here."""
    decision.records.append(encode(GroupTombstone(group.group_id)))


# Questions


def is_empty(group: Group) -> bool:
    """Whether it may be deleted."""
    return _of(group).state is State.EMPTY


def empty_since_ms(group: Group) -> int:
    """Of an empty group, by the wall clock; -1 when its record is too old to say."""
    return _of(group).current_state_timestamp


def state_name(group: Group) -> str:
    return _of(group).state.value


def protocol_type(group: Group) -> str:
    return _of(group).protocol_type or ""


def subscribed_topics(group: Group) -> set[str] | None:
    """None when the members do not say: they are no consumers, or write their metadata in a way of their own."""
    classic = _of(group)
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    topics: set[str] = set()
    for member in classic.members.values():
        subscribed = _topics_of(classic, member)
        if subscribed is None:
            return None
        topics |= subscribed
    return topics


def _topics_of(classic: ClassicGroup, member: Member) -> frozenset[str] | None:
    """Of the chosen protocol; before the first choice, of the one that the member wants most."""
    return subscription_topics(member.metadata(classic.protocol or member.protocols[0][0]))


def describe(group: Group) -> DescribedGroup:
    """Metadata and protocol only while stable: before, what the group will agree on is open."""
    classic = _of(group)
    is_stable = classic.state is State.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=classic.state.value,
        protocol_type=classic.protocol_type or "",
        protocol_data=(classic.protocol or "") if is_stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(classic.protocol) if is_stable else b"",
                member_assignment=member.assignment,
            )
            for member in classic.members.values()
        ],
    )


def _of(group: Group) -> ClassicGroup:
    assert group.classic is not None
    return group.classic
