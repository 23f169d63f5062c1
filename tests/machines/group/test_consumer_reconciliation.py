"""One member's steps towards its target, state by state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.coordinators.group.assignors import Assignment
from penstock.coordinators.group.consumer_state import Member, MemberState
from penstock.coordinators.group.reconciliation import Goal, Owned, is_within, reconcile
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)
STABLE, UNREVOKED, UNRELEASED = (
    MemberState.STABLE,
    MemberState.UNREVOKED_PARTITIONS,
    MemberState.UNRELEASED_PARTITIONS,
)


def a(*partitions: int) -> dict[TopicId, frozenset[int]]:
    return {A: frozenset(partitions)} if partitions else {}


def member(state: MemberState, epoch: int, assigned: Assignment, pending: Assignment | None = None) -> Member:
    start = Member("m", member_epoch=epoch, previous_member_epoch=epoch - 1, state=state)
    return replace(start, assigned=assigned, pending_revocation=pending or {})


def goal(
    epoch: int, target: Assignment, others: Assignment | None = None, subscribed: set[TopicId] | None = None
) -> Goal:
    """`others` is what is held by other members, or by this one and on its way out."""
    held = others or {}
    return Goal(
        epoch, target, {A, B} if subscribed is None else subscribed, lambda topic, p: p in held.get(topic, frozenset())
    )


def facts(member: Member) -> tuple[MemberState, int, int, Assignment, Assignment]:
    return (
        member.state,
        member.member_epoch,
        member.previous_member_epoch,
        member.assigned,
        member.pending_revocation,
    )


@pytest.mark.parametrize(
    ("before", "to", "owned", "expected"),
    [
        pytest.param(member(STABLE, 1, a(0)), goal(1, a(0)), a(0), (STABLE, 1, 0, a(0), {}), id="it is there"),
        pytest.param(
            member(STABLE, 1, a(0)), goal(2, a(0)), None, (STABLE, 2, 1, a(0), {}), id="nothing but the epoch"
        ),
        pytest.param(member(STABLE, 1, a(0)), goal(2, a(0, 1)), a(0), (STABLE, 2, 1, a(0, 1), {}), id="more"),
        pytest.param(
            member(STABLE, 1, a(0)),
            goal(2, a(0, 1, 2), others=a(1)),
            a(0),
            (UNRELEASED, 2, 1, a(0, 2), {}),
            id="more, of which one is still held",
        ),
        pytest.param(
            member(STABLE, 1, a(0, 1)),
            goal(2, a(0)),
            a(0, 1),
            (UNREVOKED, 1, 1, a(0), a(1)),
            id="less: at its old epoch",
        ),
        pytest.param(
            member(STABLE, 1, a(0, 1)),
            goal(2, a(0)),
            None,
            (UNREVOKED, 1, 1, a(0), a(1)),
            id="less, and it says nothing",
        ),
        pytest.param(
            member(STABLE, 1, a(0, 1)),
            goal(2, a(0)),
            a(0),
            (STABLE, 2, 1, a(0), {}),
            id="less, which it has not anyway",
        ),
        pytest.param(
            member(STABLE, 1, a(0)),
            goal(2, a(1)),
            a(0),
            (UNREVOKED, 1, 1, {}, a(0)),
            id="another: first it gives up, and gets nothing",
        ),
        pytest.param(
            member(UNREVOKED, 1, a(0), a(1)),
            goal(2, a(0, 2), others=a(0, 1)),
            a(0, 1),
            (UNREVOKED, 1, 0, a(0), a(1)),
            id="it still has it",
        ),
        pytest.param(
            member(UNREVOKED, 1, a(0), a(1)),
            goal(2, a(0, 2), others=a(0, 1)),
            None,
            (UNREVOKED, 1, 0, a(0), a(1)),
            id="it does not say",
        ),
        pytest.param(
            member(UNREVOKED, 1, a(0), a(1)),
            goal(2, a(0, 2), others=a(0, 1)),
            a(0),
            (STABLE, 2, 1, a(0, 2), {}),
            id="it gave it up",
        ),
        pytest.param(
            member(UNREVOKED, 1, a(0), a(1)),
            goal(3, a(0, 1), others=a(0, 1)),
            a(0),
            (STABLE, 3, 1, a(0, 1), {}),
            id="it gave it up, and is meant to have it again",
        ),
        pytest.param(
            member(UNREVOKED, 1, a(0, 2), a(1)),
            goal(5, a(0), others=a(0, 1, 2)),
            a(0, 2),
            (UNREVOKED, 2, 1, a(0), a(2)),
            id="it gave it up, and has to give up more: one epoch on",
        ),
        pytest.param(
            member(UNREVOKED, 2, a(0, 2), a(1)),
            goal(2, a(0), others=a(0, 1, 2)),
            a(0, 2),
            (UNREVOKED, 2, 2, a(0), a(2)),
            id="it gave it up, and has to give up more: never beyond the target",
        ),
        pytest.param(
            member(UNRELEASED, 2, a(0)),
            goal(2, a(0, 1, 2), others=a(0, 2)),
            a(0),
            (UNRELEASED, 2, 2, a(0, 1), {}),
            id="one of two is free now",
        ),
        pytest.param(
            member(UNRELEASED, 2, a(0)),
            goal(2, a(0, 1), others=a(0)),
            None,
            (STABLE, 2, 2, a(0, 1), {}),
            id="all are free now",
        ),
        pytest.param(
            member(UNRELEASED, 2, a(0)), goal(3, a(1)), a(0), (UNREVOKED, 2, 2, {}, a(0)), id="a new target in between"
        ),
        pytest.param(
            member(STABLE, 1, a(0)),
            goal(2, {**a(0, 1), B: frozenset({0})}, subscribed={B}),
            a(),
            (STABLE, 2, 1, {B: frozenset({0})}, {}),
            id="a target from before it changed its subscription",
        ),
        pytest.param(
            member(MemberState.UNKNOWN, 1, a(0)), goal(4, a(0)), a(), (STABLE, 4, 1, a(0), {}), id="from scratch"
        ),
    ],
)
def test_given_a_member_when_it_takes_a_step_then_it_is_where_the_protocol_says(
    before: Member, to: Goal, owned: Owned | None, expected: object
) -> None:
    assert facts(reconcile(before, to, owned)) == expected


@pytest.mark.parametrize(
    ("before", "owned", "expected"),
    [
        pytest.param(member(STABLE, 1, a(0)), a(0), (UNREVOKED, 1, 0, {}, a(0)), id="to be given up"),
        pytest.param(member(STABLE, 1, a(0)), a(), (STABLE, 1, 0, {}, {}), id="it has it no more"),
        pytest.param(
            member(UNREVOKED, 1, a(0), a(1)),
            a(0, 1),
            (UNREVOKED, 1, 0, {}, a(0, 1)),
            id="besides what it gives up already",
        ),
        pytest.param(
            member(STABLE, 1, {B: frozenset({0})}), None, (STABLE, 1, 0, {B: frozenset({0})}, {}), id="none of it"
        ),
    ],
)
def test_given_no_new_target_when_a_member_unsubscribes_then_it_gives_up_at_its_epoch(
    before: Member, owned: Owned | None, expected: object
) -> None:
    step = reconcile(before, goal(1, {}, subscribed={B}), owned, subscription_changed=True)

    assert facts(step) == expected


def test_given_a_state_nobody_knows_when_the_member_may_have_partitions_then_it_is_fenced() -> None:
    for owned in (None, a(0)):
        with pytest.raises(BrokerError) as error:
            reconcile(member(MemberState.UNKNOWN, 1, a(0)), goal(2, a(0)), owned)
        assert error.value.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_given_what_a_member_owns_when_compared_then_nothing_said_is_not_within_anything() -> None:
    assert is_within(a(0), a(0, 1)) and is_within({}, {})
    assert not is_within(a(2), a(0, 1)) and not is_within({B: {0}}, a(0)) and not is_within(None, a(0))
