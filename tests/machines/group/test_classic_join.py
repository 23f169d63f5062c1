"""JoinGroup to a classic group, as a dialogue between members and coordinator."""

from __future__ import annotations

import pytest
from tests.machines.group.classic_dialogue import (
    DELAY_MS,
    GROUP,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Dialogue,
    all_sync,
    assignment_of,
    new_member,
    stable_group,
)

from penstock.coordinators.group.classic_rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from penstock.coordinators.group.state import GroupConfig

STICKY_THEN_RANGE = (("sticky", b"s"), ("range", b"r"))
RANGE_THEN_STICKY = (("range", b"r"), ("sticky", b"s"))


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


# Becoming a member


@pytest.mark.parametrize("version", range(10))
def test_given_a_dynamic_member_without_id_when_it_joins_then_it_is_told_its_id_first_since_v4(
    talk: Dialogue, version: int
) -> None:
    joined = talk.join(version=version, client="app")

    if version < 4:
        assert joined.waits
    else:
        assert joined.error == "MEMBER_ID_REQUIRED"
        assert joined.member_id == "app-u1"
        assert talk.classic.pending_members == {"app-u1"}


def test_given_an_id_when_the_member_joins_with_it_then_it_leads_the_first_generation(talk: Dialogue) -> None:
    joined = new_member(talk)
    assert joined.waits

    talk.pass_ms(DELAY_MS)

    assert joined.error == "ok"
    assert joined.leads
    assert joined.told_of == [joined.member_id]
    assert joined.response.members[0].metadata == b"range-metadata"
    assert (joined.generation, joined.response.protocol_name, joined.response.protocol_type) == (1, "range", "consumer")
    assert talk.state == "CompletingRebalance"


def test_given_two_members_when_they_have_joined_then_only_the_leader_is_told_of_both(talk: Dialogue) -> None:
    one, other = new_member(talk), new_member(talk)

    talk.pass_ms(2 * DELAY_MS)

    assert one.leads and not other.leads
    assert one.told_of == [one.member_id, other.member_id]
    assert other.told_of == []
    assert other.response.leader == one.member_id


def test_given_a_client_name_that_fills_a_string_when_it_joins_then_its_member_id_still_fits(talk: Dialogue) -> None:
    joined = talk.join(client="x" * 32_767)

    assert len(joined.member_id) < 1_000


def test_given_an_id_that_nobody_gave_out_when_it_joins_then_it_is_unknown(talk: Dialogue) -> None:
    assert talk.join("made-up").error == "UNKNOWN_MEMBER_ID"
    assert talk.group is None, "and no group comes of it"

    stable_group(talk, "a")

    assert talk.join("made-up").error == "UNKNOWN_MEMBER_ID"
    assert talk.join("made-up", instance="made-up").error == "UNKNOWN_MEMBER_ID"


def test_given_a_pending_member_when_its_session_passes_then_its_id_is_forgotten_and_so_is_the_group(
    talk: Dialogue,
) -> None:
    asked = talk.join()

    talk.pass_ms(SESSION_MS)

    assert talk.group is None
    assert not talk.timers()
    assert talk.join(asked.member_id).error == "UNKNOWN_MEMBER_ID"


def test_given_a_pending_member_when_it_joins_with_an_instance_id_then_it_is_unknown(talk: Dialogue) -> None:
    asked = talk.join()

    assert talk.join(asked.member_id, instance="static").error == "UNKNOWN_MEMBER_ID"


def test_given_a_new_member_when_it_waits_longer_than_any_client_would_then_it_is_given_up(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    joined = talk.join(version=3, rebalance_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)

    talk.pass_ms_while_all_live(NEW_MEMBER_JOIN_TIMEOUT_MS, 1, leader, follower)

    assert joined.error == "UNKNOWN_MEMBER_ID"
    assert joined.member_id == ""
    assert set(talk.classic.members) == {leader, follower}


# Bad requests


def test_given_no_group_id_when_a_member_joins_then_that_is_invalid(talk: Dialogue) -> None:
    assert talk.join(group="").error == "INVALID_GROUP_ID"


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
def test_given_a_session_timeout_out_of_bounds_when_a_member_joins_then_it_is_refused(
    talk: Dialogue, session_ms: int
) -> None:
    assert talk.join(session_ms=session_ms).error == "INVALID_SESSION_TIMEOUT"


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_given_a_session_timeout_at_a_bound_when_a_member_joins_then_it_may(talk: Dialogue, session_ms: int) -> None:
    assert talk.join(session_ms=session_ms).error == "MEMBER_ID_REQUIRED"


def test_given_no_protocol_or_type_when_a_member_joins_an_empty_group_then_it_is_refused(talk: Dialogue) -> None:
    assert talk.join(protocols=()).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.join(protocol_type="").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.group is None


def test_given_members_when_one_with_another_type_or_no_common_protocol_joins_then_it_is_refused(
    talk: Dialogue,
) -> None:
    stable_group(talk, "a")

    assert talk.join(protocol_type="connect").error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.join(protocols=(("sticky", b""),)).error == "INCONSISTENT_GROUP_PROTOCOL"
    assert talk.join(protocols=()).error == "INCONSISTENT_GROUP_PROTOCOL"


def test_given_a_protocol_named_twice_when_another_member_lacks_it_then_it_is_not_chosen(talk: Dialogue) -> None:
    one = talk.join(version=3, protocols=(("sticky", b"1"), ("sticky", b"2"), ("range", b"")))
    other = talk.join(version=3, protocols=RANGE)

    talk.pass_ms(2 * DELAY_MS)

    assert one.response.protocol_name == other.response.protocol_name == "range"


def test_given_an_emptied_group_when_members_of_another_type_join_then_they_may(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.leave(member)

    joined = talk.join(version=3, protocol_type="connect", protocols=(("default", b""),))
    talk.pass_ms(DELAY_MS)

    assert (joined.response.protocol_type, joined.response.protocol_name) == ("connect", "default")


# The choice of a protocol


def test_given_protocols_that_all_know_when_they_vote_then_the_most_wanted_is_chosen(talk: Dialogue) -> None:
    joins = [
        talk.join(version=3, protocols=protocols)
        for protocols in (RANGE_THEN_STICKY, STICKY_THEN_RANGE, STICKY_THEN_RANGE)
    ]

    talk.pass_ms(4 * DELAY_MS)

    assert {join.response.protocol_name for join in joins} == {"sticky"}
    assert [member.metadata for member in joins[0].response.members] == [b"s"] * 3


def test_given_a_most_wanted_protocol_that_one_lacks_when_they_vote_then_it_does_not_count(talk: Dialogue) -> None:
    joins = [talk.join(version=3, protocols=protocols) for protocols in (STICKY_THEN_RANGE, STICKY_THEN_RANGE, RANGE)]

    talk.pass_ms(4 * DELAY_MS)

    assert {join.response.protocol_name for join in joins} == {"range"}


# How many


def test_given_a_full_group_when_another_joins_then_it_is_turned_away(talk: Dialogue) -> None:
    talk = Dialogue(GroupConfig(group_max_size=2))
    one, other = stable_group(talk, "a", "b")

    refused = talk.join()

    assert (refused.error, refused.member_id) == ("GROUP_MAX_SIZE_REACHED", "")
    assert talk.heartbeat(one, 1) == talk.heartbeat(other, 1) == "ok"


def test_given_more_new_members_than_there_is_room_for_when_they_join_then_the_last_are_turned_away() -> None:
    talk = Dialogue(GroupConfig(group_max_size=2))
    asked = [talk.join() for _ in range(3)]

    joins = [talk.join(each.member_id) for each in asked]

    assert [join.error for join in joins] == ["waits", "waits", "GROUP_MAX_SIZE_REACHED"]
    assert not talk.classic.pending_members
    talk.pass_ms(2 * DELAY_MS)
    assert [join.error for join in joins] == ["ok", "ok", "GROUP_MAX_SIZE_REACHED"]


def test_given_a_limit_that_was_lowered_when_the_group_is_loaded_then_it_rebalances_and_the_last_is_out() -> None:
    talk = Dialogue()
    members = stable_group(talk, "a", "b", "c")
    talk.config = GroupConfig(group_max_size=2)
    talk.crash()
    assert talk.state == "PreparingRebalance"
    assert [talk.heartbeat(member, 1) for member in members] == ["REBALANCE_IN_PROGRESS"] * 3

    joins = [talk.join(member) for member in members]

    assert [join.error for join in joins] == ["ok", "ok", "GROUP_MAX_SIZE_REACHED"]
    assert talk.state == "CompletingRebalance"


# The initial delay


def test_given_an_empty_group_when_one_joins_then_the_delay_passes_before_the_first_generation(talk: Dialogue) -> None:
    joined = new_member(talk)

    talk.pass_ms(DELAY_MS - 1)
    assert joined.waits

    talk.pass_ms(1)
    assert joined.generation == 1


def test_given_the_delay_when_another_joins_then_it_is_extended_once_for_all_that_did(talk: Dialogue) -> None:
    first = new_member(talk)
    talk.pass_ms(DELAY_MS - 1)
    second, third = new_member(talk), new_member(talk)

    talk.pass_ms(DELAY_MS)
    assert first.waits

    talk.pass_ms(1)
    assert [join.generation for join in (first, second, third)] == [1, 1, 1]


def test_given_members_that_keep_coming_when_the_rebalance_timeout_is_over_then_the_delay_is(talk: Dialogue) -> None:
    first = talk.join(version=3, rebalance_ms=8_000)
    for _ in range(7):
        talk.pass_ms(1_000)
        talk.join(version=3)
    assert first.waits

    talk.pass_ms(1_000)

    assert first.generation == 1


def test_given_no_delay_when_one_joins_then_it_has_its_generation_at_once() -> None:
    talk = Dialogue(GroupConfig(group_initial_rebalance_delay_ms=0))

    joined = new_member(talk)
    talk.pass_ms(0)

    assert joined.generation == 1


def test_given_the_delay_when_all_leave_then_the_group_is_empty_after_it(talk: Dialogue) -> None:
    joined = talk.join(version=3)
    (member_id,) = talk.classic.members

    talk.leave(member_id)
    assert joined.error == "UNKNOWN_MEMBER_ID"

    talk.pass_ms(DELAY_MS)
    assert talk.state == "Empty"
    assert talk.last_record.generation == 1
    assert not talk.timers()


# Later rebalances


def test_given_a_stable_group_when_another_joins_then_it_waits_until_the_others_have_joined_again(
    talk: Dialogue,
) -> None:
    one, other = stable_group(talk, "a", "b")

    third = new_member(talk)
    assert talk.state == "PreparingRebalance"
    assert talk.heartbeat(one, 1) == "REBALANCE_IN_PROGRESS"
    first, second = talk.join(one), talk.join(other)

    assert [join.generation for join in (first, second, third)] == [2, 2, 2]
    assert first.leads
    all_sync(talk, [first, second, third])


def test_given_a_pending_member_when_the_others_have_joined_then_they_wait_for_it_too(talk: Dialogue) -> None:
    (leader,) = stable_group(talk, "a")
    asked = talk.join()
    assert talk.heartbeat(leader, 1) == "ok", "an id alone does not disturb the group"
    again = talk.join(leader)
    assert again.waits

    joined = talk.join(asked.member_id)

    assert again.generation == joined.generation == 2


def test_given_a_pending_member_when_it_leaves_or_expires_then_the_others_need_not_wait(talk: Dialogue) -> None:
    (leader,) = stable_group(talk, "a")
    asked = talk.join()
    again = talk.join(leader)
    talk.leave(asked.member_id)
    assert again.generation == 2
    all_sync(talk, [again])

    talk.join()
    again = talk.join(leader)
    talk.pass_ms(SESSION_MS)
    assert again.generation == 3


def test_given_members_that_do_not_join_again_when_the_rebalance_timeout_is_over_then_they_are_out(
    talk: Dialogue,
) -> None:
    leader, follower, silent = stable_group(talk, "a", "b", "c")
    again = talk.join(leader)
    first = talk.join(follower)

    talk.pass_ms_while_all_live(REBALANCE_MS - 1_000, 1, silent)
    assert first.waits
    talk.pass_ms(1_000)

    assert again.generation == first.generation == 2
    assert again.told_of == [leader, follower]
    assert talk.heartbeat(silent, 1) == "UNKNOWN_MEMBER_ID"
    assert talk.join(silent).error == "UNKNOWN_MEMBER_ID"


def test_given_a_leader_that_does_not_join_again_when_the_time_is_over_then_another_leads(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    joined = new_member(talk)
    again = talk.join(follower)

    talk.pass_ms_while_all_live(REBALANCE_MS, 1, leader)

    assert again.leads and not joined.leads
    assert again.told_of == [follower, joined.member_id]


def test_given_different_rebalance_timeouts_when_one_is_missing_then_the_longest_counts(talk: Dialogue) -> None:
    joins = [talk.join(version=3, rebalance_ms=timeout_ms) for timeout_ms in (10_000, 40_000)]
    talk.pass_ms(2 * DELAY_MS)
    all_sync(talk, joins)
    again = talk.join(joins[0].member_id, rebalance_ms=10_000)

    talk.pass_ms_while_all_live(39_000, 1, joins[1].member_id)
    assert again.waits

    talk.pass_ms(1_000)
    assert again.generation == 2


def test_given_version_0_when_a_member_joins_then_its_session_timeout_is_its_rebalance_timeout(talk: Dialogue) -> None:
    talk.join(version=0, session_ms=7_000, rebalance_ms=-1)

    assert [member.rebalance_timeout_ms for member in talk.classic.members.values()] == [7_000]


def test_given_members_that_wait_to_join_when_their_sessions_pass_then_they_stay(talk: Dialogue) -> None:
    leader, silent = stable_group(talk, "a", "b")
    again = talk.join(leader)

    talk.pass_ms_while_all_live(2 * SESSION_MS, 1, silent)

    assert again.waits
    assert set(talk.classic.members) == {leader, silent}


def test_given_one_that_is_dead_when_its_session_ends_then_the_join_phase_need_not_time_out(talk: Dialogue) -> None:
    leader, _dead = stable_group(talk, "a", "b")
    again = talk.join(leader)

    talk.pass_ms(SESSION_MS)

    assert again.generation == 2


# Joining again


def test_given_a_stable_group_when_a_follower_joins_unchanged_then_it_is_answered_at_once(talk: Dialogue) -> None:
    _leader, follower = stable_group(talk, "a", "b")

    again = talk.join(follower)

    assert (again.generation, again.told_of) == (1, [])
    assert talk.state == "Stable"
    assert talk.sync(follower, 1).assignment == assignment_of(follower, 1)


def test_given_a_stable_group_when_a_follower_joins_with_other_metadata_then_there_is_a_rebalance(
    talk: Dialogue,
) -> None:
    leader, follower = stable_group(talk, "a", "b")

    changed = talk.join(follower, protocols=(("range", b"more topics"),))

    assert changed.waits
    again = talk.join(leader)
    assert [member.metadata for member in again.response.members if member.member_id == follower] == [b"more topics"]


def test_given_a_stable_group_when_its_leader_joins_unchanged_then_there_is_a_rebalance(talk: Dialogue) -> None:
    leader, _ = stable_group(talk, "a", "b")

    assert talk.join(leader).waits
    assert talk.state == "PreparingRebalance"


def test_given_a_completing_group_when_members_join_unchanged_then_they_are_answered_at_once(talk: Dialogue) -> None:
    one, other = new_member(talk), new_member(talk)
    talk.pass_ms(2 * DELAY_MS)

    leader_again, follower_again = talk.join(one.member_id), talk.join(other.member_id)

    assert leader_again.generation == follower_again.generation == 1
    assert leader_again.told_of == [one.member_id, other.member_id]
    assert follower_again.told_of == []
    assert talk.state == "CompletingRebalance"


def test_given_a_completing_group_when_one_joins_changed_then_who_waits_for_its_assignment_joins_again(
    talk: Dialogue,
) -> None:
    one, other = new_member(talk), new_member(talk)
    talk.pass_ms(2 * DELAY_MS)
    synced = talk.sync(other.member_id, 1)

    talk.join(one.member_id, protocols=(("range", b"changed"),))

    assert synced.error == "REBALANCE_IN_PROGRESS"
    assert talk.state == "PreparingRebalance"


def test_given_a_member_that_waits_to_join_when_it_joins_again_then_its_first_request_is_answered_too(
    talk: Dialogue,
) -> None:
    leader, follower = stable_group(talk, "a", "b")
    first = talk.join(leader)

    second = talk.join(leader)

    assert (first.error, first.member_id) == ("REBALANCE_IN_PROGRESS", leader)
    assert second.waits
    talk.join(follower)
    assert second.generation == 2


def test_given_an_emptied_group_when_an_old_member_joins_then_it_is_unknown(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.leave(member)

    assert talk.join(member).error == "UNKNOWN_MEMBER_ID"


def test_given_two_groups_when_a_member_id_of_one_joins_the_other_then_it_is_unknown(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    other = talk.join(version=3, group="others")

    assert talk.join(member, group="others").error == "UNKNOWN_MEMBER_ID"
    assert other.waits
    assert GROUP in talk.machine.groups
