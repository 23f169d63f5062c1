"""SyncGroup to a classic group: how the leader's plan reaches the members, and the log."""

from __future__ import annotations

import pytest
from tests.machines.group.classic_dialogue import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Dialogue,
    Join,
    all_sync,
    assignment_of,
    new_member,
    stable_group,
)

from penstock.coordinators.group.state import GroupConfig


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


def completing(talk: Dialogue, *clients: str) -> list[Join]:
    joins = [new_member(talk, client=client) for client in clients]
    talk.pass_ms(DELAY_MS if len(clients) == 1 else 2 * DELAY_MS)
    assert talk.state == "CompletingRebalance"
    return joins


def test_given_followers_that_wait_when_the_leader_syncs_then_each_gets_what_is_for_it(talk: Dialogue) -> None:
    leader, one, other = completing(talk, "a", "b", "c")
    first = talk.sync(one.member_id, 1)
    assert first.waits
    plan = {leader.member_id: b"0", one.member_id: b"1", other.member_id: b"2"}

    planned = talk.sync(leader.member_id, 1, plan)
    late = talk.sync(other.member_id, 1)

    assert [sync.assignment for sync in (planned, first, late)] == [b"0", b"1", b"2"]
    assert talk.state == "Stable"


def test_given_a_plan_when_the_leader_syncs_then_the_generation_is_written(talk: Dialogue) -> None:
    leader, follower = completing(talk, "a", "b")
    assert not talk.log, "not before"

    talk.sync(leader.member_id, 1, {follower.member_id: b"all"})

    record = talk.last_record
    assert len(talk.log) == 1
    assert (record.generation, record.protocol_type, record.protocol) == (1, "consumer", "range")
    assert record.leader == leader.member_id
    assert record.current_state_timestamp == WALL_MS + 2 * DELAY_MS
    first, second = record.members
    assert (first.member_id, first.assignment) == (leader.member_id, b"")
    assert (second.member_id, second.assignment) == (follower.member_id, b"all")
    assert (second.client_id, second.client_host) == ("b", "/b.example")
    assert (second.session_timeout, second.rebalance_timeout) == (SESSION_MS, REBALANCE_MS)
    assert (second.subscription, second.group_instance_id) == (b"range-metadata", None)


def test_given_a_plan_that_misses_members_when_it_comes_then_they_get_nothing_and_strangers_are_left_out(
    talk: Dialogue,
) -> None:
    leader, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)

    planned = talk.sync(leader.member_id, 1, {"stranger": b"x"})

    assert planned.assignment == waiting.assignment == b""
    assert [member.member_id for member in talk.last_record.members] == [leader.member_id, follower.member_id]


def test_given_an_assignment_of_the_generation_before_when_the_next_plan_misses_the_member_then_it_has_none(
    talk: Dialogue,
) -> None:
    leader, follower = stable_group(talk, "a", "b")
    talk.join(leader)
    talk.join(follower)

    planned = talk.sync(leader, 2, {})

    assert planned.assignment == talk.sync(follower, 2).assignment == b""


def test_given_a_stable_group_when_the_leader_syncs_once_more_then_its_plan_does_not_count(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")

    again = talk.sync(leader, 1, {leader: b"everything"})

    assert again.assignment == assignment_of(leader, 1)
    assert talk.sync(follower, 1).assignment == assignment_of(follower, 1)
    assert len(talk.log) == 1


# Refusals


def test_given_no_group_id_when_a_member_syncs_then_that_is_invalid(talk: Dialogue) -> None:
    assert talk.sync("a", 1, group="").error == "INVALID_GROUP_ID"


def test_given_no_such_group_or_member_when_it_syncs_then_it_is_unknown(talk: Dialogue) -> None:
    assert talk.sync("a", 1).error == "UNKNOWN_MEMBER_ID"
    (member,) = stable_group(talk, "a")
    assert talk.sync("a", 1).error == "UNKNOWN_MEMBER_ID"
    assert talk.sync(member, 1, instance="one").error == "UNKNOWN_MEMBER_ID"
    talk.leave(member)
    assert talk.sync(member, 1).error == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("generation", [-1, 0, 2])
def test_given_another_generation_when_a_member_syncs_then_it_is_illegal(talk: Dialogue, generation: int) -> None:
    (member,) = stable_group(talk, "a")

    assert talk.sync(member, generation).error == "ILLEGAL_GENERATION"


def test_given_another_protocol_or_type_when_a_member_syncs_then_it_is_inconsistent(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")

    assert talk.sync(member, 1, protocol_type="connect").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.sync(member, 1, protocol_name="sticky").error == "INCONSISTENT_GROUP_PROTOCOL"


def test_given_no_protocol_when_a_member_syncs_then_it_may_before_v5_only(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")

    assert talk.sync(member, 1, protocol_type=None, version=5).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.sync(member, 1, protocol_name=None, version=5).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.sync(member, 1, protocol_type=None, protocol_name=None, version=4).error == "ok"


def test_given_a_preparing_group_when_a_member_syncs_then_it_has_to_join_again(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    talk.join(leader)

    assert talk.sync(follower, 1).error == "REBALANCE_IN_PROGRESS"


def test_given_a_member_that_waits_for_its_assignment_when_it_syncs_again_then_its_first_request_is_answered_too(
    talk: Dialogue,
) -> None:
    leader, follower = completing(talk, "a", "b")
    first = talk.sync(follower.member_id, 1)

    second = talk.sync(follower.member_id, 1)

    assert first.error == "REBALANCE_IN_PROGRESS"
    talk.sync(leader.member_id, 1, {follower.member_id: b"all"})
    assert second.assignment == b"all"


# When somebody is missing


def test_given_a_leader_that_never_plans_when_the_time_is_over_then_it_is_out_and_the_others_join_again(
    talk: Dialogue,
) -> None:
    leader, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)

    talk.pass_ms_while_all_live(REBALANCE_MS - 1_000, 1, leader.member_id)
    assert waiting.waits
    talk.pass_ms(1_000)

    assert waiting.error == "REBALANCE_IN_PROGRESS"
    again = talk.join(follower.member_id)
    assert again.leads
    assert (again.generation, again.told_of) == (2, [follower.member_id])
    assert talk.heartbeat(leader.member_id, 1) == "UNKNOWN_MEMBER_ID"


def test_given_a_leader_that_dies_before_it_plans_when_its_session_ends_then_the_others_join_again(
    talk: Dialogue,
) -> None:
    _, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)

    talk.pass_ms(SESSION_MS)

    assert waiting.error == "REBALANCE_IN_PROGRESS"
    assert talk.join(follower.member_id).leads


def test_given_a_follower_that_never_asks_when_the_time_is_over_then_it_is_out(talk: Dialogue) -> None:
    leader, follower = completing(talk, "a", "b")
    talk.sync(leader.member_id, 1, {})
    assert talk.state == "Stable"

    talk.pass_ms_while_all_live(REBALANCE_MS, 1, leader.member_id, follower.member_id)

    assert talk.state == "PreparingRebalance"
    assert set(talk.classic.members) == {leader.member_id}


def test_given_all_have_asked_when_the_time_is_over_then_nothing_happens(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")

    talk.pass_ms_while_all_live(2 * REBALANCE_MS, 1, leader, follower)

    assert talk.state == "Stable"


def test_given_members_that_wait_for_their_assignment_when_their_sessions_pass_then_they_stay(talk: Dialogue) -> None:
    leader, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)
    talk.pass_ms_while_all_live(3 * SESSION_MS, 1, leader.member_id)

    talk.sync(leader.member_id, 1, {follower.member_id: b"all"})

    assert waiting.assignment == b"all"
    talk.pass_ms(SESSION_MS - 1)
    assert talk.heartbeat(follower.member_id, 1) == "ok", "its session began with the answer"


def test_given_one_that_waits_for_its_assignment_when_it_leaves_then_it_is_answered(talk: Dialogue) -> None:
    _, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)

    talk.leave(follower.member_id)

    assert waiting.error == "UNKNOWN_MEMBER_ID"


# Plans that do not fit


def test_given_a_plan_too_large_for_the_log_when_it_comes_then_all_fail_and_may_join_again() -> None:
    talk = Dialogue(GroupConfig(max_record_bytes=1_000))
    leader, follower = completing(talk, "a", "b")
    waiting = talk.sync(follower.member_id, 1)

    planned = talk.sync(leader.member_id, 1, {follower.member_id: bytes(1_000)})

    assert planned.error == waiting.error == "UNKNOWN_SERVER_ERROR"
    assert talk.state == "PreparingRebalance"
    assert not talk.log
    joins = [talk.join(leader.member_id), talk.join(follower.member_id)]
    assert [join.generation for join in joins] == [2, 2]
    all_sync(talk, joins)
