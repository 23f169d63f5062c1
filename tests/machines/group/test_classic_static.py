"""Static members (group.instance.id, KIP-345) of a classic group."""

from __future__ import annotations

import pytest
from tests.machines.group.classic_dialogue import (
    DELAY_MS,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    Dialogue,
    all_sync,
    assignment_of,
    stable_group,
    stable_static_group,
)

from penstock.coordinators.group.state import GroupConfig
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, encode_subscription


@pytest.fixture
def talk() -> Dialogue:
    return Dialogue()


def subscription(*topics: str, owned: bytes = b"") -> bytes:
    return encode_subscription(ConsumerProtocolSubscription(topics=list(topics), user_data=owned), 1)


def test_given_an_instance_id_when_a_new_member_joins_then_it_needs_no_id_first(talk: Dialogue) -> None:
    joined = talk.join(instance="rack-1")

    talk.pass_ms(DELAY_MS)

    assert joined.generation == 1
    assert joined.member_id == "rack-1-u1"
    assert joined.response.members[0].group_instance_id == "rack-1"


def test_given_a_stable_group_when_a_static_member_restarts_then_nobody_notices(talk: Dialogue) -> None:
    leader, follower = stable_static_group(talk, "one", "two")

    back = talk.join(instance="two")

    assert (back.error, back.generation, back.response.leader, back.told_of) == ("ok", 1, leader, [])
    assert back.member_id != follower
    assert not back.response.skip_assignment
    assert talk.state == "Stable"
    assert talk.heartbeat(leader, 1, instance="one") == "ok"
    assert talk.sync(back.member_id, 1, instance="two").assignment == assignment_of(follower, 1)


def test_given_a_static_member_that_restarted_when_the_coordinator_does_then_the_new_id_counts(talk: Dialogue) -> None:
    leader, follower = stable_static_group(talk, "one", "two")
    back = talk.join(instance="two")

    talk.crash()

    assert talk.heartbeat(back.member_id, 1, instance="two") == "ok"
    assert talk.heartbeat(leader, 1, instance="one") == "ok"
    assert talk.heartbeat(follower, 1, instance="two") == "FENCED_INSTANCE_ID"


@pytest.mark.parametrize("version", [5, 8, 9])
def test_given_a_stable_group_when_its_static_leader_restarts_then_it_does_not_plan_again(
    talk: Dialogue, version: int
) -> None:
    leader, follower = stable_static_group(talk, "one", "two")

    back = talk.join(instance="one", version=version)

    assert talk.state == "Stable"
    assert talk.classic.leader == back.member_id
    assert talk.last_record.leader == back.member_id
    if version < 9:
        assert (back.response.leader, back.told_of, back.response.skip_assignment) == (leader, [], False)
    else:
        assert back.leads and back.response.skip_assignment
        assert set(back.told_of) == {back.member_id, follower}
    assert talk.join(back.member_id, instance="one").waits, "as a leader it may ask for a rebalance"


def test_given_a_replaced_static_member_when_its_old_id_speaks_then_it_is_fenced(talk: Dialogue) -> None:
    _, old = stable_static_group(talk, "one", "two")
    talk.join(instance="two")

    assert talk.join(old, instance="two").error == "FENCED_INSTANCE_ID"
    assert talk.sync(old, 1, instance="two").error == "FENCED_INSTANCE_ID"
    assert talk.heartbeat(old, 1, instance="two") == "FENCED_INSTANCE_ID"
    assert talk.commit(old, 1, instance="two") == "FENCED_INSTANCE_ID"
    assert talk.leave((old, "two")).members == [(old, "two", "FENCED_INSTANCE_ID")]
    assert talk.heartbeat(old, 1) == "UNKNOWN_MEMBER_ID", "that it is static it need not say"


def test_given_a_static_member_that_waits_to_join_when_its_twin_joins_then_it_is_fenced_at_once(
    talk: Dialogue,
) -> None:
    first = talk.join(instance="one")

    second = talk.join(instance="one")

    assert first.error == "FENCED_INSTANCE_ID"
    assert second.waits
    talk.pass_ms(DELAY_MS)
    assert second.leads
    assert second.told_of == [second.member_id]


def test_given_a_static_member_that_waits_to_sync_when_its_twin_joins_then_it_is_fenced_and_all_join_again(
    talk: Dialogue,
) -> None:
    joins = [talk.join(instance=instance) for instance in ("one", "two", "three")]
    talk.pass_ms(3 * DELAY_MS)
    waiting = [talk.sync(join.member_id, 1) for join in joins[1:]]

    back = talk.join(instance="two")

    assert [sync.error for sync in waiting] == ["FENCED_INSTANCE_ID", "REBALANCE_IN_PROGRESS"]
    assert back.waits
    assert talk.state == "PreparingRebalance"


def test_given_a_stable_group_when_a_static_member_comes_back_for_another_protocol_then_there_is_a_rebalance(
    talk: Dialogue,
) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    joins = [talk.join(instance=instance, protocols=both) for instance in ("one", "two", "three")]
    talk.pass_ms(3 * DELAY_MS)
    all_sync(talk, joins)
    turned = both[::-1]

    assert talk.join(instance="two", protocols=turned).error == "ok", "one vote does not change the choice"
    back = talk.join(instance="three", protocols=turned)

    assert back.waits
    assert talk.state == "PreparingRebalance"


def test_given_a_stable_group_when_a_static_member_comes_back_for_other_topics_then_there_is_a_rebalance(
    talk: Dialogue,
) -> None:
    joins = [
        talk.join(instance=instance, protocols=(("range", subscription("orders")),)) for instance in ("one", "two")
    ]
    talk.pass_ms(2 * DELAY_MS)
    all_sync(talk, joins)

    back = talk.join(instance="two", protocols=(("range", subscription("orders", owned=b"owns other partitions")),))
    assert back.error == "ok"
    back = talk.join(instance="two", protocols=(("range", subscription("orders", "payments")),))

    assert back.waits
    assert talk.state == "PreparingRebalance"


def test_given_a_static_member_when_it_comes_back_with_other_timeouts_then_they_count(talk: Dialogue) -> None:
    stable_static_group(talk, "one")

    back = talk.join(instance="one", session_ms=20_000, rebalance_ms=30_000)

    member = talk.classic.members[back.member_id]
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 30_000)
    talk.pass_ms(19_999)
    assert talk.heartbeat(back.member_id, 1) == "ok"


def test_given_static_members_that_do_not_join_again_when_the_time_is_over_then_they_are_kept(talk: Dialogue) -> None:
    leader, absent = stable_static_group(talk, "one", "two")
    again = talk.join(leader, instance="one")

    talk.pass_ms_while_all_live(REBALANCE_MS, 1, absent)

    assert again.generation == 2
    assert set(again.told_of) == {leader, absent}


def test_given_an_absent_static_member_when_it_never_asks_for_its_assignment_then_it_is_out_after_all(
    talk: Dialogue,
) -> None:
    leader, absent = stable_static_group(talk, "one", "two")
    again = talk.join(leader, instance="one")
    talk.pass_ms_while_all_live(REBALANCE_MS, 1, absent)
    talk.sync(leader, again.generation, {})

    talk.pass_ms_while_all_live(REBALANCE_MS, 2, leader, absent)

    assert set(talk.classic.members) == {leader}
    assert talk.state == "PreparingRebalance"


def test_given_only_absent_static_members_when_the_join_phase_is_over_then_it_goes_on_until_their_sessions_end(
    talk: Dialogue,
) -> None:
    leader, other = stable_static_group(talk, "one", "two")
    asked = talk.join()
    talk.join(asked.member_id)
    talk.leave(asked.member_id)
    assert talk.state == "PreparingRebalance"

    talk.pass_ms_while_all_live(REBALANCE_MS + 1_000, 1, leader, other)
    assert talk.state == "PreparingRebalance"
    assert set(talk.classic.members) == {leader, other}

    talk.pass_ms(SESSION_MS)
    assert talk.state == "Empty"
    assert not talk.timers()


def test_given_an_absent_static_leader_when_the_join_phase_is_over_then_another_leads(talk: Dialogue) -> None:
    leader, other = stable_static_group(talk, "one", "two")
    again = talk.join(other, instance="two", protocols=(("range", b"changed"),))

    talk.pass_ms_while_all_live(REBALANCE_MS, 1, leader)

    assert again.leads


def test_given_a_static_member_that_restarts_before_it_has_its_assignment_when_it_asks_then_nobody_rebalances(
    talk: Dialogue,
) -> None:
    one, two = talk.join(instance="one"), talk.join(instance="two")
    talk.pass_ms(2 * DELAY_MS)
    talk.sync(one.member_id, 1, {two.member_id: b"all"})
    assert talk.state == "Stable"

    back = talk.join(instance="two")

    assert talk.sync(back.member_id, 1).assignment == b"all"
    talk.pass_ms_while_all_live(2 * REBALANCE_MS, 1, one.member_id, back.member_id)
    assert talk.state == "Stable"


def test_given_a_static_member_that_restarts_before_it_has_its_assignment_when_it_never_asks_then_it_is_out(
    talk: Dialogue,
) -> None:
    one, _ = talk.join(instance="one"), talk.join(instance="two")
    talk.pass_ms(2 * DELAY_MS)
    talk.sync(one.member_id, 1, {})
    back = talk.join(instance="two")

    talk.pass_ms_while_all_live(REBALANCE_MS, 1, one.member_id, back.member_id)

    assert set(talk.classic.members) == {one.member_id}


def test_given_a_static_member_when_its_session_passes_then_it_is_out(talk: Dialogue) -> None:
    stable_static_group(talk, "one")

    talk.pass_ms(SESSION_MS)

    assert talk.state == "Empty"
    assert talk.join(instance="one").waits


def test_given_a_record_that_would_be_too_large_when_a_static_member_comes_back_then_it_stays_as_it_was() -> None:
    talk = Dialogue(GroupConfig(max_record_bytes=1_000))
    leader, follower = stable_static_group(talk, "one", "two")
    records = len(talk.log)

    back = talk.join(instance="two", protocols=(("range", bytes(1_000)),))

    assert back.error == "UNKNOWN_SERVER_ERROR"
    assert len(talk.log) == records
    assert talk.heartbeat(follower, 1, instance="two") == talk.heartbeat(leader, 1, instance="one") == "ok"


def test_given_a_dynamic_member_when_it_names_the_instance_of_another_then_it_is_fenced(talk: Dialogue) -> None:
    (dynamic,) = stable_group(talk, "a")
    static = talk.join(instance="one", protocols=RANGE)
    talk.join(dynamic)
    assert static.error == "ok"

    assert talk.heartbeat(dynamic, 2, instance="one") == "FENCED_INSTANCE_ID"
    assert talk.heartbeat(dynamic, 2, instance="two") == "UNKNOWN_MEMBER_ID"
    assert talk.heartbeat(dynamic, 2) == "ok"
