"""The server's assignors: everything to exactly one subscriber, evenly, and with as few moves as that takes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinators.group.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSpec,
    assign_range,
    assign_uniform,
)
from penstock.core.ids import TopicId


def topic(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


A, B, C = topic(1), topic(2), topic(3)


def member(*topics: TopicId, instance_id: str | None = None, **target: set[int]) -> MemberSpec:
    had = {{"a": A, "b": B, "c": C}[name]: frozenset(partitions) for name, partitions in target.items()}
    return MemberSpec(frozenset(topics), had, instance_id)


def size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


# Range


def test_given_topics_of_the_same_size_when_assigned_by_range_then_they_are_co_partitioned() -> None:
    members = {"m1": member(A, B), "m2": member(A, B)}

    assigned = assign_range(members, {A: 3, B: 3})

    assert assigned == {"m1": {A: {0, 1}, B: {0, 1}}, "m2": {A: {2}, B: {2}}}


def test_given_more_members_than_partitions_when_assigned_by_range_then_the_last_get_nothing() -> None:
    assigned = assign_range({"m1": member(A), "m2": member(A), "m3": member(A)}, {A: 2})

    assert assigned == {"m1": {A: {0}}, "m2": {A: {1}}, "m3": {}}


def test_given_members_with_different_topics_when_assigned_by_range_then_each_topic_goes_to_its_subscribers() -> None:
    assigned = assign_range({"m1": member(A, B), "m2": member(A), "m3": member(B, C)}, {A: 3, B: 3, C: 2})

    assert assigned == {"m1": {A: {0, 1}, B: {0, 1}}, "m2": {A: {2}}, "m3": {B: {2}, C: {0, 1}}}


def test_given_static_members_when_they_come_back_under_other_ids_then_range_gives_them_the_same() -> None:
    before = assign_range({"m1": member(A, instance_id="x"), "m2": member(A, instance_id="y"), "m0": member(A)}, {A: 5})
    after = assign_range({"z9": member(A, instance_id="x"), "a1": member(A, instance_id="y"), "m0": member(A)}, {A: 5})

    assert before["m1"] == after["z9"] == {A: {0, 1}}
    assert before["m2"] == after["a1"] == {A: {2, 3}}
    assert before["m0"] == after["m0"] == {A: {4}}


# Uniform


def test_given_nothing_when_assigned_uniformly_then_nobody_gets_anything() -> None:
    assert assign_uniform({}, {}) == {}
    assert assign_uniform({"m1": member()}, {}) == {"m1": {}}


def test_given_several_topics_when_dealt_uniformly_then_each_is_spread_over_the_members() -> None:
    assigned = assign_uniform({"m1": member(A, B), "m2": member(A, B)}, {A: 2, B: 2})

    assert all(set(assigned[name]) == {A, B} for name in assigned)


def test_given_a_new_member_when_assigned_uniformly_then_it_takes_only_what_the_others_have_too_much() -> None:
    members = {"m1": member(A, a={0, 1, 2}), "m2": member(A, a={3, 4, 5}), "m3": member(A)}

    assigned = assign_uniform(members, {A: 6})

    assert assigned["m1"][A] < {0, 1, 2} and assigned["m2"][A] < {3, 4, 5}
    assert [size(assigned[name]) for name in ("m1", "m2", "m3")] == [2, 2, 2]


def test_given_a_member_that_left_when_assigned_uniformly_then_the_others_keep_what_they_had() -> None:
    members = {"m1": member(A, a={0, 1}), "m2": member(A, a={2, 3})}

    assigned = assign_uniform(members, {A: 6})

    assert assigned["m1"][A] > {0, 1} and assigned["m2"][A] > {2, 3}


def test_given_one_too_many_partitions_when_a_member_has_the_larger_share_then_it_keeps_it() -> None:
    assigned = assign_uniform({"m1": member(A, a={0}), "m2": member(A, a={1, 2})}, {A: 3})

    assert assigned == {"m1": {A: {0}}, "m2": {A: {1, 2}}}


def test_given_a_topic_that_only_one_may_have_when_assigned_uniformly_then_the_others_take_the_rest() -> None:
    assigned = assign_uniform({"m1": member(A, B), "m2": member(A)}, {A: 3, B: 3})

    assert assigned["m1"] == {B: {0, 1, 2}} and assigned["m2"] == {A: {0, 1, 2}}


def test_given_two_members_with_the_same_partition_when_assigned_then_it_goes_to_one_of_them() -> None:
    for topics in ((A,), (A, B)):
        assigned = assign_uniform({"m1": member(A, a={0, 1}), "m2": member(*topics, a={0, 1})}, {A: 2, B: 1})
        assert sum(len(each.get(A, ())) for each in assigned.values()) == 2


# Properties

counts = st.dictionaries(st.integers(1, 5).map(topic), st.integers(0, 9), min_size=1, max_size=5)


@st.composite
def groups(draw: st.DrawFn, alike: bool = False) -> tuple[dict[str, MemberSpec], dict[TopicId, int]]:
    """With targets of an earlier time: topics may have been others, and partitions more or fewer."""
    partition_counts = draw(counts)
    subscriptions = st.frozensets(st.sampled_from(sorted(partition_counts)))
    common = draw(subscriptions)
    names = draw(st.lists(st.sampled_from([f"m{i}" for i in range(9)]), min_size=1, max_size=7, unique=True))
    members = {name: MemberSpec(common if alike else draw(subscriptions)) for name in names}
    for number in range(1, 6):
        for partition in range(draw(st.integers(0, 9))):
            owner = draw(st.sampled_from([*names, None]))
            if owner is not None:
                had = dict(members[owner].target)
                had[topic(number)] = had.get(topic(number), frozenset()) | {partition}
                members[owner] = members[owner]._replace(target=had)
    return members, partition_counts


def check_everything_is_assigned_once(
    members: dict[str, MemberSpec], partition_counts: dict[TopicId, int], assigned: dict[str, Assignment]
) -> None:
    assert assigned.keys() == members.keys()
    given_out = Counter((t, p) for each in assigned.values() for t, partitions in each.items() for p in partitions)
    subscribed = frozenset().union(*(each.topics for each in members.values()))
    assert given_out == Counter((t, p) for t in subscribed for p in range(partition_counts[t]))
    for name, each in assigned.items():
        assert each.keys() <= members[name].topics
        assert all(each.values()), "a topic without partitions is not named"


@given(group=groups() | groups(alike=True))
@settings(max_examples=150, deadline=None)
def test_given_any_group_when_assigned_then_every_partition_goes_to_one_subscriber_and_again_to_the_same(
    group: tuple[dict[str, MemberSpec], dict[TopicId, int]],
) -> None:
    members, partition_counts = group
    for assign in ASSIGNORS.values():
        assigned = assign(members, partition_counts)

        check_everything_is_assigned_once(members, partition_counts, assigned)
        assert assign(dict(reversed(members.items())), partition_counts) == assigned
        settled = {name: spec._replace(target=assigned[name]) for name, spec in members.items()}
        assert assign(settled, partition_counts) == assigned, "nothing moves when nothing has changed"


@given(group=groups(alike=True))
@settings(max_examples=150, deadline=None)
def test_given_equal_subscriptions_when_assigned_uniformly_then_it_is_even_and_moves_no_more_than_that_takes(
    group: tuple[dict[str, MemberSpec], dict[TopicId, int]],
) -> None:
    members, partition_counts = group
    assigned = assign_uniform(members, partition_counts)

    sizes = sorted(map(size, assigned.values()))
    assert sizes[-1] - sizes[0] <= 1
    topics = next(iter(members.values())).topics
    had = {
        name: {(t, p) for t, each in spec.target.items() if t in topics for p in each if p < partition_counts[t]}
        for name, spec in members.items()
    }
    kept = sum(len(had[name] & {(t, p) for t, each in assigned[name].items() for p in each}) for name in members)
    # What could be kept at most: shares as large as they end up, the largest ones with those that had most.
    possible = sum(map(min, sorted(len(each) for each in had.values()), sizes))
    assert kept == possible


@given(group=groups())
@settings(max_examples=150, deadline=None)
def test_given_different_subscriptions_when_assigned_uniformly_then_no_single_move_makes_it_more_even(
    group: tuple[dict[str, MemberSpec], dict[TopicId, int]],
) -> None:
    members, partition_counts = group
    assigned = assign_uniform(members, partition_counts)

    for giver, share in assigned.items():
        for topic_id in share:
            for taker, spec in members.items():
                if topic_id in spec.topics:
                    assert size(share) - size(assigned[taker]) < 2, f"{giver} could give to {taker}"
