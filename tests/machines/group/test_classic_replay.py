"""What a new coordinator finds of a classic group, and what it does with those that the old one left waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.machines.group.classic_dialogue import (
    DELAY_MS,
    GROUP,
    SESSION_MS,
    Dialogue,
    all_sync,
    assignment_of,
    new_member,
    stable_group,
    stable_static_group,
)

from penstock.coordinators.group.classic_state import ClassicGroup
from penstock.coordinators.group.records import GroupMetadataMember, GroupMetadataRecord, encode


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


def test_given_a_stable_group_when_another_coordinator_takes_over_then_its_members_go_on(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")

    talk.crash()

    assert talk.state == "Stable"
    assert talk.heartbeat(leader, 1) == talk.heartbeat(follower, 1) == "ok"
    assert talk.commit(follower, 1) == "ok"
    assert talk.sync(follower, 1).assignment == assignment_of(follower, 1)
    assert talk.join(follower).generation == 1, "with unchanged metadata"


def test_given_a_coordinator_that_took_long_to_load_when_it_has_then_sessions_begin_anew(talk: Dialogue) -> None:
    leader, silent = stable_group(talk, "a", "b")
    talk.machine.timers.cancel(("classic-session", GROUP, leader))
    talk.machine.timers.cancel(("classic-session", GROUP, silent))
    talk.pass_ms(10 * SESSION_MS)

    talk.crash()

    talk.pass_ms(SESSION_MS - 1)
    assert talk.heartbeat(leader, 1) == "ok"
    talk.pass_ms(1)
    assert set(talk.classic.members) == {leader}


def test_given_an_emptied_group_when_another_coordinator_takes_over_then_generations_go_on(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.leave(member)

    talk.crash()

    assert talk.state == "Empty"
    assert talk.heartbeat(member, 1) == "UNKNOWN_MEMBER_ID"
    joined = new_member(talk)
    talk.pass_ms(DELAY_MS)
    assert joined.generation == 3


def test_given_a_join_phase_when_the_coordinator_dies_then_the_generation_before_stands(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    talk.join(leader)

    talk.crash()

    assert talk.state == "Stable"
    assert talk.heartbeat(leader, 1) == talk.heartbeat(follower, 1) == "ok"
    assert talk.join(leader).waits


def test_given_a_generation_without_a_plan_when_the_coordinator_dies_then_whoever_believes_in_it_is_refused(
    talk: Dialogue,
) -> None:
    (old,) = stable_group(talk, "a")
    joined = new_member(talk)
    again = talk.join(old)
    assert again.generation == joined.generation == 2

    talk.crash()

    assert talk.sync(old, 2).error == "ILLEGAL_GENERATION"
    assert talk.commit(old, 2) == "ILLEGAL_GENERATION"
    assert talk.heartbeat(old, 2) == "ILLEGAL_GENERATION"
    assert talk.sync(joined.member_id, 2).error == "UNKNOWN_MEMBER_ID"
    assert talk.commit(joined.member_id, 2) == "UNKNOWN_MEMBER_ID"
    assert talk.commit(old, 1) == "ok", "its partitions were not given to anybody else"


def test_given_a_lost_generation_when_its_number_is_given_out_again_then_a_late_commit_waits_for_the_plan(
    talk: Dialogue,
) -> None:
    (old,) = stable_group(talk, "a")
    lost = new_member(talk)
    talk.join(old)
    talk.crash()

    joined = new_member(talk)
    again = talk.join(old)

    assert again.generation == joined.generation == 2
    assert talk.commit(old, 2) == "REBALANCE_IN_PROGRESS"
    assert talk.commit(lost.member_id, 2) == "UNKNOWN_MEMBER_ID"
    all_sync(talk, [again, joined])
    assert talk.commit(lost.member_id, 2) == "UNKNOWN_MEMBER_ID"


def test_given_only_pending_members_when_the_coordinator_dies_then_the_group_is_forgotten(talk: Dialogue) -> None:
    asked = talk.join()

    talk.crash()

    assert talk.group is None
    assert talk.join(asked.member_id).error == "UNKNOWN_MEMBER_ID"


def test_given_static_members_when_the_coordinator_dies_then_their_instances_are_known(talk: Dialogue) -> None:
    leader, follower = stable_static_group(talk, "one", "two")
    talk.crash()

    back = talk.join(instance="two")

    assert back.error == "ok"
    assert talk.heartbeat(follower, 1, instance="two") == "FENCED_INSTANCE_ID"
    assert talk.heartbeat(leader, 1, instance="one") == "ok"


def test_given_a_record_of_the_oldest_schema_when_it_is_restored_then_the_session_is_the_rebalance_timeout(
    talk: Dialogue,
) -> None:
    (leader,) = stable_group(talk, "a")
    old = replace(
        talk.last_record, members=tuple(replace(each, rebalance_timeout=-1) for each in talk.last_record.members)
    )
    talk.log = [encode(old)]

    talk.crash()

    assert talk.classic.members[leader].rebalance_timeout_ms == SESSION_MS


def test_given_a_record_that_no_sane_coordinator_wrote_when_it_is_restored_then_the_group_can_be_used(
    talk: Dialogue,
) -> None:
    def member(member_id: str, instance: str) -> GroupMetadataMember:
        return GroupMetadataMember(member_id, instance, "c", "/h", 60_000, 10_000, b"", b"")

    odd = GroupMetadataRecord(GROUP, "consumer", 7, None, "nobody", -1, (member("x", "one"), member("y", "one")))
    restored = ClassicGroup.restored(odd)

    assert set(restored.members) == {"y"}
    assert restored.leader == "y"
    talk.log = [encode(odd)]
    talk.crash()
    assert talk.heartbeat("y", 7, instance="one") == "ok"
    talk.pass_ms(SESSION_MS)
    assert talk.state == "Empty"


def test_given_an_instance_id_that_is_empty_when_it_is_restored_then_it_is_nobody_elses() -> None:
    static = GroupMetadataMember("one", "", "client", "/host", 1000, 1000, b"", b"")
    record = GroupMetadataRecord(
        GROUP, "consumer", 1, "range", "one", 0, (static, replace(static, member_id="two", group_instance_id=None))
    )

    assert set(ClassicGroup.restored(record).members) == {"one", "two"}
