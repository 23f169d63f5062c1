"""One step of a member from what it has towards what it is meant to have.

First it gives up what it is to lose, at its old epoch; then it moves to the target's epoch and gets what is free; what
others still hold it gets with a later heartbeat. A member gives up a partition by no longer naming it among those it
owns. Saying nothing about what it owns gives up nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from penstock.coordinators.group.assignors import NOTHING, Assignment
from penstock.coordinators.group.consumer_state import Member, MemberState
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId

Owned = Mapping[TopicId, Set[int]]


class Goal(NamedTuple):
    """Where a member is to go, and what stands in the way."""

    epoch: int
    target: Assignment
    subscribed: Set[TopicId]
    """Topics it still subscribes to; a target may be older than its subscription."""
    is_owned: Callable[[TopicId, int], bool]


def reconcile(member: Member, goal: Goal, owned: Owned | None, subscription_changed: bool = False) -> Member:
    if member.state is MemberState.STABLE:
        if member.member_epoch != goal.epoch:
            return _approach(member, goal, owned, member.member_epoch)
        return _drop_unsubscribed(member, goal, owned) if subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(owned, member.pending_revocation):
            return _drop_unsubscribed(member, goal, owned) if subscription_changed else member
        # One epoch on, but not beyond the target: what it gave up may have been for a subscription it changed before.
        return _approach(member, goal, owned, min(member.member_epoch + 1, goal.epoch))
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        return _approach(member, goal, owned, member.member_epoch)
    if owned is None or owned:
        raise BrokerError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member {member.member_id} is in a state this broker does not know; it has to give up all and rejoin",
        )
    return _approach(member, goal, owned, goal.epoch)


def _approach(member: Member, goal: Goal, owned: Owned | None, epoch: int) -> Member:
    keep: dict[TopicId, frozenset[int]] = {}
    revoke: dict[TopicId, frozenset[int]] = {}
    take: dict[TopicId, frozenset[int]] = {}
    unreleased = False
    for topic_id in goal.target.keys() | member.assigned.keys():
        current = member.assigned.get(topic_id, frozenset())
        target = goal.target.get(topic_id, frozenset()) if topic_id in goal.subscribed else frozenset()
        new = target - current
        # What it has just given up itself is free for it.
        own = member.pending_revocation.get(topic_id, frozenset())
        free = frozenset(p for p in new if p in own or not goal.is_owned(topic_id, p))
        unreleased = unreleased or free != new
        keep[topic_id] = current & target
        revoke[topic_id] = current - target
        take[topic_id] = (current & target) | free
    if _still_owns(owned, to_revoke := _without_empty(revoke)):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            member_epoch=epoch,
            previous_member_epoch=member.member_epoch,
            assigned=_without_empty(keep),
            pending_revocation=to_revoke,
        )
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        member_epoch=goal.epoch,
        previous_member_epoch=member.member_epoch,
        assigned=_without_empty(take),
        pending_revocation=NOTHING,
    )


def _drop_unsubscribed(member: Member, goal: Goal, owned: Owned | None) -> Member:
    """It stays at its epoch, but what it no longer subscribes to it has to give up at once."""
    dropped = {topic_id: parts for topic_id, parts in member.assigned.items() if topic_id not in goal.subscribed}
    if not dropped:
        return member
    assigned = {topic_id: parts for topic_id, parts in member.assigned.items() if topic_id not in dropped}
    revoke = {
        topic_id: dropped.get(topic_id, frozenset()) | member.pending_revocation.get(topic_id, frozenset())
        for topic_id in dropped.keys() | member.pending_revocation.keys()
    }
    if _still_owns(owned, revoke):
        return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, pending_revocation=revoke)
    return replace(member, assigned=assigned)


def _still_owns(owned: Owned | None, revoked: Assignment) -> bool:
    if owned is None:
        return bool(revoked)
    return any(not partitions.isdisjoint(owned.get(topic_id, ())) for topic_id, partitions in revoked.items())


def _without_empty(assignment: dict[TopicId, frozenset[int]]) -> Assignment:
    return {topic_id: partitions for topic_id, partitions in assignment.items() if partitions}


def is_within(owned: Owned | None, assigned: Assignment) -> bool:
    if owned is None:
        return False
    return all(partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items())
