"""Heartbeats, leaving, fenced commits, and what others see of a classic group."""

from __future__ import annotations

import struct

import pytest
from tests.machines.group.classic_dialogue import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    WALL_MS,
    Dialogue,
    all_sync,
    assignment_of,
    new_member,
    stable_group,
    stable_static_group,
)

from penstock.coordinators.decision import Decision
from penstock.coordinators.group import classic
from penstock.coordinators.group.classic_membership import commit_error
from penstock.coordinators.group.classic_subscription import subscription_topics
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, encode_subscription


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


# Heartbeat


def test_given_each_state_when_a_member_sends_heartbeats_then_it_learns_of_a_rebalance(talk: Dialogue) -> None:
    assert talk.heartbeat("nobody", 1) == "UNKNOWN_MEMBER_ID"
    assert talk.heartbeat("nobody", 1, group="") == "INVALID_GROUP_ID"

    (member,) = stable_group(talk, "a")
    assert talk.heartbeat(member, 1) == "ok"
    assert talk.heartbeat(member, 0) == "ILLEGAL_GENERATION"
    assert talk.heartbeat("nobody", 1) == "UNKNOWN_MEMBER_ID"

    joined = new_member(talk)
    assert talk.heartbeat(member, 1) == "REBALANCE_IN_PROGRESS"
    assert talk.heartbeat(member, 2) == "ILLEGAL_GENERATION"

    talk.join(member)
    assert joined.generation == 2
    assert talk.heartbeat(member, 2) == "ok", "while the plan is awaited"
    assert talk.heartbeat(member, 1) == "ILLEGAL_GENERATION"

    talk.leave(member, joined.member_id)
    assert talk.heartbeat(member, 3) == "UNKNOWN_MEMBER_ID"


def test_given_a_member_when_it_is_silent_for_its_session_then_it_is_out_and_the_others_rebalance(
    talk: Dialogue,
) -> None:
    leader, silent = stable_group(talk, "a", "b")

    talk.pass_ms_while_all_live(SESSION_MS, 1, leader)

    assert talk.state == "PreparingRebalance"
    assert talk.heartbeat(silent, 1) == "UNKNOWN_MEMBER_ID"
    assert talk.join(leader).generation == 2


def test_given_the_last_member_when_its_session_ends_then_the_group_is_empty_with_a_new_generation(
    talk: Dialogue,
) -> None:
    stable_group(talk, "a")

    talk.pass_ms(SESSION_MS)

    assert talk.state == "Empty"
    assert (talk.last_record.generation, talk.last_record.members) == (2, ())
    assert not talk.timers()


def test_given_a_preparing_group_when_a_member_only_sends_heartbeats_then_they_keep_its_session_but_not_its_place(
    talk: Dialogue,
) -> None:
    leader, follower = stable_group(talk, "a", "b")
    again = talk.join(leader)

    talk.pass_ms_while_all_live(REBALANCE_MS - 1_000, 1, follower)
    assert again.waits
    talk.pass_ms(1_000)

    assert again.told_of == [leader]


# LeaveGroup


def test_given_a_follower_when_it_leaves_then_the_others_rebalance_without_it(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")

    left = talk.leave(follower)

    assert left.members == [(follower, None, "NONE")]
    assert talk.heartbeat(leader, 1) == "REBALANCE_IN_PROGRESS"
    assert talk.heartbeat(follower, 1) == "UNKNOWN_MEMBER_ID"
    assert talk.join(leader).told_of == [leader]


def test_given_the_leader_when_it_leaves_then_another_leads(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")

    talk.leave(leader)

    assert talk.join(follower).leads


def test_given_the_last_member_when_it_leaves_then_that_is_written_with_a_new_generation(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.pass_ms(1)

    talk.leave(member)

    record = talk.last_record
    assert talk.state == "Empty"
    assert (record.generation, record.protocol, record.leader, record.members) == (2, None, None, ())
    assert record.protocol_type == "consumer"
    assert record.current_state_timestamp == WALL_MS + 2 * DELAY_MS + 1
    assert not talk.timers()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_given_an_old_version_when_a_member_leaves_then_its_error_is_that_of_the_request(
    talk: Dialogue, version: int
) -> None:
    (member,) = stable_group(talk, "a")

    assert talk.leave("nobody", version=version).error == "UNKNOWN_MEMBER_ID"
    assert talk.leave(member, version=version).error == "ok"
    assert talk.state == "Empty"


def test_given_several_when_they_leave_then_each_has_its_own_error(talk: Dialogue) -> None:
    one, two = stable_static_group(talk, "one", "two")

    left = talk.leave(("", "one"), ("nobody", "two"), ("", "three"), "nobody", two, two, "")

    assert left.error == "ok"
    assert left.members == [
        ("", "one", "NONE"),
        ("nobody", "two", "FENCED_INSTANCE_ID"),
        ("", "three", "UNKNOWN_MEMBER_ID"),
        ("nobody", None, "UNKNOWN_MEMBER_ID"),
        (two, None, "NONE"),
        (two, None, "UNKNOWN_MEMBER_ID"),
        ("", None, "UNKNOWN_MEMBER_ID"),
    ]
    assert one not in talk.classic.members
    assert talk.state == "Empty"


def test_given_no_such_group_when_members_leave_then_they_are_unknown(talk: Dialogue) -> None:
    assert talk.leave("a", ("", "b")).members == [("a", None, "UNKNOWN_MEMBER_ID"), ("", "b", "UNKNOWN_MEMBER_ID")]
    assert talk.leave("a", version=2).error == "UNKNOWN_MEMBER_ID"
    assert talk.leave("a", group="").error == "INVALID_GROUP_ID"


def test_given_a_pending_member_when_it_leaves_then_the_members_do_not_notice(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    asked = talk.join()

    left = talk.leave(asked.member_id)

    assert left.members == [(asked.member_id, None, "NONE")]
    assert talk.heartbeat(member, 1) == "ok"
    assert talk.join(asked.member_id).error == "UNKNOWN_MEMBER_ID"


def test_given_only_a_pending_member_when_it_leaves_then_nothing_remains(talk: Dialogue) -> None:
    asked = talk.join()

    talk.leave(asked.member_id)

    assert talk.group is None
    assert not talk.timers()


def test_given_one_that_others_wait_for_when_it_leaves_then_they_go_on(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    again = talk.join(leader)

    talk.leave(follower)

    assert again.generation == 2


# Commits


def test_given_a_stable_group_when_offsets_are_committed_then_only_by_members_of_this_generation(
    talk: Dialogue,
) -> None:
    (member,) = stable_group(talk, "a")

    assert talk.commit(member, 1) == "ok"
    assert talk.commit(member, 0) == "ILLEGAL_GENERATION"
    assert talk.commit(member, 2) == "ILLEGAL_GENERATION"
    assert talk.commit(member, -1) == "ILLEGAL_GENERATION"
    assert talk.commit("nobody", 1) == "UNKNOWN_MEMBER_ID"
    assert talk.commit("", 1) == "UNKNOWN_MEMBER_ID"
    assert talk.commit() == "UNKNOWN_MEMBER_ID", "members and simple consumers do not go together"
    assert talk.commit(member, 1, instance="one") == "UNKNOWN_MEMBER_ID"


def test_given_a_preparing_group_when_a_member_commits_then_it_still_may(talk: Dialogue) -> None:
    leader, follower = stable_group(talk, "a", "b")
    talk.join(leader)

    assert talk.commit(follower, 1) == "ok"


def test_given_a_completing_group_when_a_member_commits_then_it_has_to_wait(talk: Dialogue) -> None:
    joined = new_member(talk)
    talk.pass_ms(DELAY_MS)

    assert talk.commit(joined.member_id, 1) == "REBALANCE_IN_PROGRESS"
    assert talk.commit(joined.member_id, 0) == "ILLEGAL_GENERATION"
    assert talk.commit() == "UNKNOWN_MEMBER_ID"


def test_given_an_empty_group_when_offsets_are_committed_then_only_without_a_generation(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.leave(member)

    assert talk.commit() == "ok"
    assert talk.commit(member, -1) == "ok", "as Kafka has it"
    assert talk.commit(member, 1) == "UNKNOWN_MEMBER_ID"
    assert talk.commit(member, 2) == "UNKNOWN_MEMBER_ID"


def test_given_a_member_when_it_commits_then_that_is_as_good_as_a_heartbeat(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")

    for _ in range(10):
        talk.pass_ms(SESSION_MS - 1)
        assert talk.commit(member, 1) == "ok"


def test_given_a_member_when_its_commit_is_refused_then_that_is_no_heartbeat(talk: Dialogue) -> None:
    (member,) = stable_group(talk, "a")
    talk.pass_ms(SESSION_MS - 1)

    talk.commit(member, 0)
    talk.pass_ms(1)

    assert talk.state == "Empty"


def test_given_a_transaction_when_it_commits_for_a_group_then_members_are_checked_but_not_the_state(
    talk: Dialogue,
) -> None:
    joined = new_member(talk)
    talk.pass_ms(DELAY_MS)

    def commit(member_id: str, generation: int) -> ErrorCode:
        return commit_error(talk.classic, member_id, None, generation, is_transactional=True)

    assert commit(joined.member_id, 1) is ErrorCode.NONE, "also while the plan is awaited"
    assert commit("", -1) is ErrorCode.NONE, "producers of old versions do not say for whom"
    assert commit(joined.member_id, 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID


# What others see


def test_given_each_state_when_the_group_is_described_then_metadata_is_shown_only_while_stable(talk: Dialogue) -> None:
    joined = new_member(talk, client="app")
    assert talk.group is not None
    assert classic.describe(talk.group).group_state == "PreparingRebalance"
    talk.pass_ms(DELAY_MS)
    completing = classic.describe(talk.group)
    all_sync(talk, [joined])
    stable = classic.describe(talk.group)
    talk.leave(joined.member_id)
    empty = classic.describe(talk.group)

    assert (completing.group_state, completing.protocol_type, completing.protocol_data) == (
        "CompletingRebalance",
        "consumer",
        "",
    )
    assert [member.member_metadata for member in completing.members] == [b""]
    assert (stable.group_id, stable.group_state, stable.protocol_data) == ("readers", "Stable", "range")
    (member,) = stable.members
    assert (member.client_id, member.client_host) == ("app", "/app.example")
    assert member.member_metadata == b"range-metadata"
    assert member.member_assignment == assignment_of(joined.member_id, 1)
    assert (empty.group_state, empty.protocol_type, empty.members) == ("Empty", "consumer", [])


def test_given_each_state_when_asked_whether_it_is_empty_then_only_the_empty_one_is(talk: Dialogue) -> None:
    joined = new_member(talk)
    assert talk.group is not None
    preparing = classic.is_empty(talk.group)
    talk.pass_ms(DELAY_MS)
    completing = classic.is_empty(talk.group)
    all_sync(talk, [joined])
    stable = classic.is_empty(talk.group)
    talk.leave(joined.member_id)

    assert (preparing, completing, stable, classic.is_empty(talk.group)) == (False, False, False, True)
    assert classic.empty_since_ms(talk.group) == talk.now.wall_ms


def test_given_an_empty_group_when_it_is_deleted_then_nothing_remains_and_a_pending_id_is_unknown(
    talk: Dialogue,
) -> None:
    (member,) = stable_group(talk, "a")
    talk.leave(member)
    asked = talk.join()
    assert talk.group is not None

    decision = Decision()
    classic.delete(talk.group, decision)
    for record in decision.records:
        talk.machine.apply(record)

    assert not talk.machine.groups
    assert not talk.timers()
    assert talk.join(asked.member_id).error == "UNKNOWN_MEMBER_ID"


# Subscriptions


def subscription(*topics: str, version: int = 1) -> bytes:
    return encode_subscription(ConsumerProtocolSubscription(topics=list(topics), user_data=b"user data"), version)


def test_given_consumers_when_asked_what_they_read_then_it_is_the_topics_of_all(talk: Dialogue) -> None:
    joins = [new_member(talk, protocols=(("range", subscription(*topics)),)) for topics in (("a", "b"), ("b", "c"), ())]
    talk.pass_ms(4 * DELAY_MS)
    all_sync(talk, joins)
    assert talk.group is not None

    assert classic.subscribed_topics(talk.group) == {"a", "b", "c"}

    talk.leave(*(join.member_id for join in joins))
    assert classic.subscribed_topics(talk.group) == set()


def test_given_metadata_of_another_kind_when_asked_what_is_read_then_that_is_unknown(talk: Dialogue) -> None:
    stable_group(talk, "a")
    assert talk.group is not None
    assert classic.subscribed_topics(talk.group) is None

    talk = Dialogue()
    talk.join(version=3, protocol_type="connect", protocols=(("default", subscription("a")),))
    assert talk.group is not None
    assert classic.subscribed_topics(talk.group) is None


def test_given_metadata_cut_anywhere_when_it_is_read_then_that_is_unknown_or_fewer_topics() -> None:
    whole = subscription("orders", "zahlungen-\xe4", version=0)

    assert all(subscription_topics(whole[:length]) is None for length in range(len(whole)))
    assert subscription_topics(struct.pack(">hi", 0, -1)) is None
    assert subscription_topics(struct.pack(">hi", 0, 2**31 - 1)) is None
    assert subscription_topics(struct.pack(">hih", 0, 1, -1)) is None
    assert subscription_topics(struct.pack(">hih", 0, 1, 1) + b"\xff") is None
    assert subscription_topics(subscription(version=0)) == frozenset()
