"""Offsets committed in transactions: who may, when they count, who may read, and what survives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machines.group.offsets_world import DAY_MS, GROUP, Coordinator, Ended, Written

from penstock.coordinators.group.records import OffsetCommitRecord, OffsetTombstone, decode
from penstock.coordinators.group.state import GroupConfig
from penstock.core.errors import ErrorCode


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# Pending, real, dropped


def test_given_a_commit_in_a_transaction_then_it_counts_when_the_transaction_is_committed(
    coordinator: Coordinator,
) -> None:
    coordinator.commit(3)

    assert coordinator.commit_in_transaction(7, metadata="half way") is ErrorCode.NONE
    assert coordinator.fetch()[0] == 3
    coordinator.end()

    for _ in range(2):
        assert coordinator.fetch() == (7, 5, "half way")
        coordinator.restart()


def test_given_an_abort_then_the_offset_before_it_stands(coordinator: Coordinator) -> None:
    coordinator.commit(3)
    coordinator.commit_in_transaction(7)

    coordinator.end(committed=False)

    for _ in range(2):
        assert coordinator.fetch_stable() == (ErrorCode.NONE, 3)
        coordinator.restart()


def test_given_an_abort_of_all_that_a_group_had_then_the_group_is_gone(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    assert coordinator.listed() == [(GROUP, "Empty", "classic")]

    coordinator.end(committed=False)

    assert coordinator.listed() == []
    assert coordinator.machine.open_transactions == {}


def test_given_a_restart_while_a_transaction_is_open_then_it_is_still_pending(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    coordinator.commit_in_transaction(9, topic="refunds", group="another")

    coordinator.restart()

    assert coordinator.fetch_stable() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    coordinator.end()
    assert coordinator.fetch()[0] == 7
    assert coordinator.fetch("refunds", "another")[0] == 9


def test_given_several_commits_of_one_transaction_then_the_last_counts(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    coordinator.commit_in_transaction(8)

    coordinator.end()

    assert coordinator.fetch()[0] == 8


def test_given_a_plain_commit_behind_a_pending_one_then_the_marker_does_not_undo_it(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    coordinator.commit(20)
    assert coordinator.fetch_stable() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)

    coordinator.end()

    assert coordinator.fetch_stable() == (ErrorCode.NONE, 20)


def test_given_two_transactions_then_the_later_record_counts_whichever_ends_first(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7, producer_id=1)
    coordinator.commit_in_transaction(8, producer_id=2)
    coordinator.end(2)
    coordinator.end(1)
    assert coordinator.fetch()[0] == 8

    coordinator.commit_in_transaction(9, producer_id=1)
    coordinator.commit_in_transaction(10, producer_id=2)
    coordinator.commit_in_transaction(11, producer_id=1)
    coordinator.end(2)
    coordinator.end(1)
    assert coordinator.fetch()[0] == 11


def test_given_a_marker_of_a_producer_that_committed_nothing_here_then_nothing_happens(
    coordinator: Coordinator,
) -> None:
    coordinator.commit_in_transaction(7, producer_id=1)

    coordinator.end(2)

    assert coordinator.fetch_stable() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)


# Reading what is stable


def test_given_pending_offsets_then_only_who_wants_stable_ones_is_told_and_only_of_those_partitions(
    coordinator: Coordinator,
) -> None:
    coordinator.commit(3)
    coordinator.commit(4, topic="refunds")
    coordinator.commit_in_transaction(7)

    assert coordinator.fetch()[0] == 3
    assert coordinator.fetch_stable() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert coordinator.fetch_stable("refunds") == (ErrorCode.NONE, 4)
    assert coordinator.fetch_stable(group="another") == (ErrorCode.NONE, -1)
    assert coordinator.fetch_all() == {("orders", 1): 3, ("refunds", 1): 4}
    assert coordinator.fetch_all_stable() == {
        ("orders", 1): (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1),
        ("refunds", 1): (ErrorCode.NONE, 4),
    }


# Who may commit


def test_given_no_such_group_then_only_who_claims_no_membership_commits(coordinator: Coordinator) -> None:
    assert coordinator.commit_in_transaction(member_id="m", generation=3) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.machine.groups == {}
    assert coordinator.commit_in_transaction() is ErrorCode.NONE


def test_given_offsets_without_members_then_a_member_is_unknown(coordinator: Coordinator) -> None:
    coordinator.commit(3)

    assert coordinator.commit_in_transaction(member_id="m", generation=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit_in_transaction() is ErrorCode.NONE


def test_given_a_classic_group_then_members_commit_in_their_generation_and_old_producers_always(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")

    for member, instance, generation, code in (
        (member_id, None, 1, ErrorCode.NONE),
        (member_id, None, 0, ErrorCode.ILLEGAL_GENERATION),
        (member_id, None, -1, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (member_id, "unknown instance", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", None, -1, ErrorCode.NONE),
    ):
        asked = coordinator.commit_in_transaction(member_id=member, instance_id=instance, generation=generation)
        assert asked is code, (member, instance, generation)


def test_given_a_static_member_that_was_replaced_then_its_commit_is_fenced(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders", instance_id="till-1")

    fenced = coordinator.commit_in_transaction(member_id="older", instance_id="till-1", generation=1)

    assert fenced is ErrorCode.FENCED_INSTANCE_ID
    ours = coordinator.commit_in_transaction(member_id=member_id, instance_id="till-1", generation=1)
    assert ours is ErrorCode.NONE


def test_given_a_consumer_group_then_members_commit_at_their_epoch_only(coordinator: Coordinator) -> None:
    member_id, epoch = coordinator.become_consumer_member("orders")

    for member, generation, code in (
        (member_id, epoch, ErrorCode.NONE),
        (member_id, epoch - 1, ErrorCode.ILLEGAL_GENERATION),
        (member_id, epoch + 1, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", epoch, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert coordinator.commit_in_transaction(member_id=member, generation=generation) is code, (member, generation)


def test_given_metadata_that_is_too_long_then_it_is_refused(coordinator: Coordinator) -> None:
    longest = "x" * coordinator.config.offset_metadata_max_bytes

    assert coordinator.commit_in_transaction(metadata=longest) is ErrorCode.NONE
    assert coordinator.commit_in_transaction(metadata=longest + "x") is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_given_a_commit_in_a_transaction_then_it_is_no_heartbeat(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    before = coordinator.machine.next_deadline_ms()
    coordinator.pass_ms(1_000)

    coordinator.commit_in_transaction(member_id=member_id, generation=1)

    assert coordinator.machine.next_deadline_ms() == before


# What goes


def test_given_pending_offsets_when_the_group_is_deleted_then_their_commit_brings_nothing_back(
    coordinator: Coordinator,
) -> None:
    coordinator.commit(3)
    coordinator.commit_in_transaction(7)
    coordinator.commit_in_transaction(8, topic="refunds")

    assert coordinator.delete_group() is ErrorCode.NONE
    assert coordinator.machine.open_transactions == {}
    coordinator.end()

    for _ in range(2):
        assert coordinator.listed() == []
        coordinator.restart()


def test_given_a_pending_offset_when_it_is_deleted_then_only_that_is_gone(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    coordinator.commit_in_transaction(8, topic="refunds")

    assert coordinator.delete_offsets("orders") == (ErrorCode.NONE, [ErrorCode.NONE])
    assert coordinator.fetch_stable() == (ErrorCode.NONE, -1)
    coordinator.end()

    assert coordinator.fetch_all() == {("refunds", 1): 8}


def test_given_a_topic_that_is_deleted_then_pending_offsets_of_it_are_gone(coordinator: Coordinator) -> None:
    coordinator.commit_in_transaction(7)
    coordinator.commit_in_transaction(8, topic="refunds")

    del coordinator.topics["orders"]
    coordinator.topics_changed("orders")
    coordinator.end()

    assert coordinator.fetch_all() == {("refunds", 1): 8}


def test_given_pending_offsets_then_neither_the_partition_nor_the_group_expires(coordinator: Coordinator) -> None:
    coordinator.commit(3)
    coordinator.commit(4, topic="refunds")
    coordinator.commit_in_transaction(7)

    coordinator.pass_ms(30 * DAY_MS)
    assert coordinator.fetch_all() == {("orders", 1): 3}
    coordinator.end(committed=False)
    coordinator.pass_ms(DAY_MS)

    assert coordinator.listed() == []


def test_given_a_group_that_members_left_with_pending_offsets_then_it_stays_until_the_transaction_ends(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit_in_transaction(7, member_id=member_id, generation=1)
    coordinator.leave(member_id)

    coordinator.pass_ms(30 * DAY_MS)
    assert coordinator.machine.groups[GROUP].classic is not None
    coordinator.end()

    assert coordinator.fetch()[0] == 7


# Against a model

GROUPS = ("a", "b")
TOPICS = ("orders", "refunds")
PRODUCERS = (1, 2, 3)
Place = tuple[str, str]

group, topic, producer = st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.sampled_from(PRODUCERS)
steps = st.one_of(
    st.tuples(st.just("commit"), group, topic),
    st.tuples(st.just("commit in transaction"), group, topic, producer),
    st.tuples(st.just("end"), producer, st.booleans()),
    st.tuples(st.just("delete offset"), group, topic),
    st.tuples(st.just("delete group"), group),
    st.tuples(st.just("restart")),
    st.tuples(st.just("compact")),
)


@settings(max_examples=300)
@given(st.lists(steps, max_size=40))
def test_given_any_story_then_the_last_record_in_the_log_counts_of_those_that_took_effect(
    story: list[tuple[str | int | bool, ...]],
) -> None:
    coordinator = Coordinator(GroupConfig(group_initial_rebalance_delay_ms=0))
    for offset, step in enumerate(story):
        take(coordinator, offset, step)

        offsets, pending = told_by(coordinator.log)
        for place in ((group, topic) for group in GROUPS for topic in TOPICS):
            expected = offsets.get(place, -1)
            assert coordinator.fetch(place[1], place[0])[0] == expected
            stable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1) if place in pending else (ErrorCode.NONE, expected)
            assert coordinator.fetch_stable(place[1], place[0]) == stable
        assert {name for name, _, _ in coordinator.listed()} == {group for group, _ in {*offsets, *pending}}


def take(coordinator: Coordinator, offset: int, step: tuple[str | int | bool, ...]) -> None:
    match step:
        case "commit", str(group), str(topic):
            coordinator.commit(offset, group=group, topic=topic)
        case "commit in transaction", str(group), str(topic), int(producer):
            coordinator.commit_in_transaction(offset, group=group, topic=topic, producer_id=producer)
        case "end", int(producer), bool(committed):
            coordinator.end(producer, committed=committed)
        case "delete offset", str(group), str(topic):
            coordinator.delete_offsets(topic, group)
        case "delete group", str(group):
            coordinator.delete_group(group)
        case _:
            if step == ("compact",):
                coordinator.log = list(compacted(coordinator.log))
            coordinator.restart()


def told_by(log: list[Written | Ended]) -> tuple[dict[Place, int], set[Place]]:
    """What is committed and what is pending, from nothing but the order of the log."""
    fates = fates_of(log)
    offsets: dict[Place, int] = {}
    pending: set[Place] = set()
    for entry, fate in zip(log, fates, strict=True):
        record = decode(entry.record) if isinstance(entry, Written) else None
        if isinstance(record, OffsetTombstone):
            offsets.pop((record.group_id, record.topic), None)
            pending.discard((record.group_id, record.topic))
        elif isinstance(record, OffsetCommitRecord) and fate is None:
            pending.add((record.group_id, record.topic))
        elif isinstance(record, OffsetCommitRecord) and fate:
            offsets[record.group_id, record.topic] = record.offset
    return offsets, pending


def fates_of(log: list[Written | Ended]) -> list[bool | None]:
    """Whether each entry took effect; None: not decided."""
    fates: list[bool | None] = []
    ends: dict[int, bool] = {}
    for entry in reversed(log):
        if isinstance(entry, Ended):
            ends[entry.producer_id] = entry.committed
            fates.append(True)
        else:
            fates.append(True if entry.producer_id < 0 else ends.get(entry.producer_id))
    return fates[::-1]


def compacted(log: list[Written | Ended]) -> Iterator[Written | Ended]:
    """Below the first open transaction: of each key the last record that took effect, none that was aborted."""
    fates = fates_of(log)
    stable = next((at for at, fate in enumerate(fates) if fate is None), len(log))
    last = {entry.record.key: at for at, entry in enumerate(log[:stable]) if isinstance(entry, Written) and fates[at]}
    for at, entry in enumerate(log):
        if at >= stable or isinstance(entry, Ended) or last.get(entry.record.key) == at:
            yield entry
