"""Committed offsets: who may commit, what is fetched, and when they go."""

from __future__ import annotations

import pytest
from tests.machines.group.offsets_world import DAY_MS, GROUP, SESSION_MS, Coordinator

from penstock.coordinators.group.state import TopicFacts
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicId


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


# Committing and fetching


def test_given_a_commit_then_it_is_fetched_with_metadata_and_epoch_also_after_a_restart(
    coordinator: Coordinator,
) -> None:
    assert coordinator.commit(7, metadata="half way") is ErrorCode.NONE
    assert coordinator.commit(9, topic="refunds", metadata=None) is ErrorCode.NONE

    for _ in range(2):
        assert coordinator.fetch() == (7, 5, "half way")
        assert coordinator.fetch_all() == {("orders", 1): 7, ("refunds", 1): 9}
        assert coordinator.fetch(group="another") == (-1, -1, "")
        coordinator.restart()


def test_given_metadata_that_is_too_long_then_only_that_partition_is_refused(coordinator: Coordinator) -> None:
    longest = "x" * coordinator.config.offset_metadata_max_bytes

    assert coordinator.commit(1, metadata=longest) is ErrorCode.NONE
    assert coordinator.commit(2, metadata=longest + "x") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert coordinator.commit(3, metadata="ä" * (len(longest) // 2 + 1)) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert coordinator.fetch()[0] == 1


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_given_a_generation_of_a_group_that_is_not_there_then_the_commit_is_refused(
    coordinator: Coordinator, version: int, code: ErrorCode
) -> None:
    assert coordinator.commit(member_id="m", generation=3, version=version) is code
    assert coordinator.machine.groups == {}


@pytest.mark.parametrize("version", [8, 9])
def test_given_offsets_without_members_when_one_of_a_generation_commits_then_it_is_unknown(
    coordinator: Coordinator, version: int
) -> None:
    assert coordinator.commit(1) is ErrorCode.NONE

    assert coordinator.commit(2, member_id="m", generation=3, version=version) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[0] == 1


def test_given_a_group_with_members_then_only_they_commit_and_only_in_their_generation(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")

    assert coordinator.commit(1, member_id=member_id, generation=1) is ErrorCode.NONE
    assert coordinator.commit(2, member_id=member_id, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.commit(3, member_id="stranger", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.commit(4) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[0] == 1


def test_given_a_member_whose_session_is_over_then_its_late_commit_moves_nothing(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(5, member_id=member_id, generation=1)

    coordinator.pass_ms(SESSION_MS + 1)

    assert coordinator.commit(3, member_id=member_id, generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.fetch()[0] == 5


# Topics that go


def test_given_a_topic_that_is_deleted_then_its_offsets_go_and_others_stay(coordinator: Coordinator) -> None:
    coordinator.commit(7)
    coordinator.commit(9, topic="refunds")

    del coordinator.topics["orders"]
    coordinator.topics_changed("orders")

    assert coordinator.fetch_all() == {("refunds", 1): 9}
    coordinator.restart()
    assert coordinator.fetch_all() == {("refunds", 1): 9}


def test_given_a_topic_created_anew_while_the_coordinator_was_down_then_old_offsets_do_not_count_for_it(
    coordinator: Coordinator,
) -> None:
    coordinator.commit(7)

    coordinator.topics["orders"] = TopicFacts(TopicId(b"other orders".ljust(16)), 3)
    coordinator.restart()

    assert coordinator.fetch() == (-1, -1, "")
    assert coordinator.listed() == []


# Expiring


def test_given_offsets_without_members_then_they_expire_after_the_retention(coordinator: Coordinator) -> None:
    coordinator.commit(7)
    coordinator.pass_ms(27 * DAY_MS)
    assert coordinator.fetch()[0] == 7

    coordinator.pass_ms(DAY_MS + coordinator.config.offsets_retention_check_interval_ms)

    assert coordinator.fetch()[0] == -1
    assert coordinator.listed() == []


def test_given_a_group_with_a_live_member_then_its_offsets_stay_for_ever(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)

    coordinator.pass_ms(60 * DAY_MS, heartbeats_of=member_id)

    assert coordinator.fetch()[0] == 7


def test_given_a_live_group_then_offsets_of_topics_it_no_longer_subscribes_to_expire(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.commit(9, topic="refunds", member_id=member_id, generation=1)

    coordinator.pass_ms(29 * DAY_MS, heartbeats_of=member_id)

    assert coordinator.fetch_all() == {("orders", 1): 7}


def test_given_a_group_that_loses_its_last_member_then_the_retention_counts_from_then(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.pass_ms(20 * DAY_MS, heartbeats_of=member_id)
    coordinator.leave(member_id)

    coordinator.pass_ms(27 * DAY_MS)
    coordinator.restart()
    assert coordinator.fetch()[0] == 7
    coordinator.pass_ms(2 * DAY_MS)

    assert coordinator.fetch()[0] == -1
    assert coordinator.listed() == []


def test_given_an_old_client_that_names_a_retention_then_that_counts(coordinator: Coordinator) -> None:
    coordinator.commit(7, version=4, retention_ms=DAY_MS)

    coordinator.pass_ms(2 * DAY_MS)

    assert coordinator.fetch()[0] == -1


# Deleting


def test_given_a_group_without_members_when_it_is_deleted_then_nothing_is_left_also_after_a_restart(
    coordinator: Coordinator,
) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    assert coordinator.delete_group() is ErrorCode.NON_EMPTY_GROUP
    coordinator.leave(member_id)
    assert coordinator.listed() == [(GROUP, "Empty", "classic")]

    assert coordinator.delete_group() is ErrorCode.NONE

    assert coordinator.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.restart()
    assert coordinator.listed() == []
    assert coordinator.fetch()[0] == -1


def test_given_offsets_to_delete_then_those_of_subscribed_topics_are_kept(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders")
    coordinator.commit(7, member_id=member_id, generation=1)
    coordinator.commit(9, topic="refunds", member_id=member_id, generation=1)

    assert coordinator.delete_offsets("orders") == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
    assert coordinator.delete_offsets("refunds") == (ErrorCode.NONE, [ErrorCode.NONE])

    assert coordinator.fetch_all() == {("orders", 1): 7}


def test_given_members_that_are_no_consumers_then_no_offsets_of_theirs_are_deleted(coordinator: Coordinator) -> None:
    member_id = coordinator.become_member("orders", protocol_type="connect")
    coordinator.commit(7, member_id=member_id, generation=1)

    assert coordinator.delete_offsets("orders") == (ErrorCode.NON_EMPTY_GROUP, [])
    coordinator.leave(member_id)
    assert coordinator.delete_offsets("orders") == (ErrorCode.NONE, [ErrorCode.NONE])


def test_given_no_such_group_then_deleting_its_offsets_says_so(coordinator: Coordinator) -> None:
    assert coordinator.delete_offsets("orders") == (ErrorCode.GROUP_ID_NOT_FOUND, [])
