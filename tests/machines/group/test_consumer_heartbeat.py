"""ConsumerGroupHeartbeat, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.machines.group.consumer_world import GROUP, Client, World, settle, topic_id

from penstock.coordinators.group.consumer_state import MemberState, state_name
from penstock.coordinators.group.records import (
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMetadata,
    ConsumerGroupRegularExpression,
    ConsumerGroupRegularExpressionTombstone,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
)
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.coordinators.regex import _compiled
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest


def kinds(world: World) -> list[type]:
    return [type(record) for record in world.written]


# Joining


def test_given_no_group_when_the_first_member_joins_then_it_gets_everything_at_epoch_1() -> None:
    world = World(orders=3)

    answer = world.member("a", "orders").join()

    assert answer.error_code == ErrorCode.NONE
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 1, 5_000)
    assert answer.assignment is not None
    assert world.named(answer.assignment.topic_partitions) == {"orders": {0, 1, 2}}
    assert kinds(world) == [
        ConsumerGroupMemberMetadata,
        ConsumerGroupMetadata,
        ConsumerGroupTargetAssignmentMember,
        ConsumerGroupTargetAssignmentMetadata,
        ConsumerGroupCurrentMemberAssignment,
    ]
    assert state_name(world.group) == "Stable"


def test_given_version_0_when_a_member_joins_without_an_id_then_the_server_names_it() -> None:
    world = World(orders=1)

    answer = world.member("", "orders").join(version=0)

    assert answer.error_code == ErrorCode.NONE
    assert answer.member_id == "unique-1"


def test_given_a_topic_that_is_not_there_when_a_member_subscribes_then_it_is_in_the_group_with_nothing() -> None:
    world = World()

    answer = world.member("a", "later").join()

    assert answer.error_code == ErrorCode.NONE
    assert answer.assignment is not None and answer.assignment.topic_partitions == []


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"member_id": ""}, 1),
        ({"group_id": ""}, 1),
        ({"instance_id": ""}, 1),
        ({"rack_id": ""}, 1),
        ({"rebalance_timeout_ms": -1}, 1),
        ({"topic_partitions": None}, 1),
        ({"subscribed_topic_names": None}, 1),
        ({"member_epoch": -3}, 1),
        ({"member_epoch": -2}, 1),
        ({"member_epoch": 1, "member_id": ""}, 0),
        ({"member_epoch": -1, "member_id": ""}, 0),
    ],
)
def test_given_a_field_that_is_wrong_when_joining_then_the_request_is_invalid(
    fields: dict[str, Any], version: int
) -> None:
    world = World(orders=1)

    answer = world.member("a", "orders").beat(full=True, version=version, **fields)

    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.error_message
    assert not world.log


def test_given_partitions_when_joining_with_them_then_the_request_is_invalid() -> None:
    world = World(orders=1)

    answer = world.member("a", "orders").beat(full=True, topic_partitions=world.wire({"orders": {0}}))

    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_given_an_assignor_nobody_knows_when_joining_then_it_is_refused_by_name() -> None:
    world = World(orders=1)

    answer = world.member("a", "orders", assignor="mine").join()

    assert answer.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "mine" in (answer.error_message or "") and "uniform, range" in (answer.error_message or "")


def test_given_a_full_group_when_one_more_joins_then_it_is_turned_away_and_members_stay() -> None:
    world = World(GroupConfig(consumer_max_size=1), orders=2)
    member = world.member("a", "orders")
    member.join()

    assert world.member("b", "orders").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.beat().error_code == ErrorCode.NONE


def test_given_no_group_when_a_member_heartbeats_with_an_epoch_then_the_group_is_not_found() -> None:
    world = World(orders=1)

    assert world.member("a", "orders", epoch=3).beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.member("a", "orders").leave().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_given_a_group_when_a_stranger_heartbeats_or_leaves_then_it_is_unknown() -> None:
    world = World(orders=1)
    world.member("a", "orders").join()

    assert world.member("b", "orders", epoch=1).beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.member("b", "orders").leave().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.member("b", "orders", epoch=1, instance_id="i").beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Staying


def test_given_a_stable_member_when_it_heartbeats_then_nothing_is_written_and_no_assignment_sent() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.join()

    answer = member.beat(topic_partitions=None)

    assert (answer.error_code, answer.member_epoch, answer.assignment) == (ErrorCode.NONE, 1, None)
    assert not world.written


def test_given_a_stable_member_when_it_sends_a_full_request_then_it_is_told_its_assignment_again() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.join()

    answer = member.beat(full=True)

    assert answer.assignment is not None
    assert world.named(answer.assignment.topic_partitions) == {"orders": {0, 1}}
    assert not world.written


def test_given_a_member_when_only_its_client_id_changes_then_it_is_written_but_nothing_rebalances() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.join()

    member.beat(rack_id="r1")

    assert kinds(world) == [ConsumerGroupMemberMetadata]
    assert world.group.epoch == 1


def test_given_two_topics_when_a_member_subscribes_to_the_other_one_then_it_gives_up_and_gets_in_two_steps() -> None:
    world = World(orders=2, bills=2)
    member = world.member("a", "orders")
    member.join()

    first = member.beat(subscribed_topic_names=["bills"])
    second = member.beat()

    assert first.assignment is not None and first.assignment.topic_partitions == []
    assert (first.member_epoch, second.member_epoch) == (1, 2)
    assert member.told == {"bills": {0, 1}}


# Epochs


def test_given_a_member_when_its_epoch_is_too_great_or_too_small_then_it_is_fenced() -> None:
    world = World(orders=2, bills=2)
    member = world.member("a", "orders")
    member.join()
    member.beat(full=True, subscribed_topic_names=["orders", "bills"])
    member.beat(full=True, subscribed_topic_names=["bills"], topic_partitions=world.wire({"bills": {0, 1}}))

    assert world.group.members["a"].member_epoch == 3
    for epoch in (4, 1, 100):
        answer = member.beat(member_epoch=epoch)
        assert answer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert not world.written


def test_given_a_lost_answer_when_the_member_comes_with_the_epoch_before_and_less_than_it_has_then_it_may() -> None:
    world = World(orders=2, bills=2)
    member = world.member("a", "orders")
    member.join()
    member.beat(subscribed_topic_names=["orders", "bills"], lose_answer=True)
    assert member.epoch == 1

    without = member.beat(topic_partitions=None)
    more = member.beat(topic_partitions=world.wire({"orders": {0, 1, 7}}))
    within = member.beat(full=True, subscribed_topic_names=["orders", "bills"])

    assert without.error_code == more.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert (within.error_code, within.member_epoch) == (ErrorCode.NONE, 2)
    assert member.told == {"orders": {0, 1}, "bills": {0, 1}}


def test_given_a_lost_answer_to_a_join_when_the_member_joins_again_then_it_is_the_same_member() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.beat(full=True, lose_answer=True)

    answer = member.join()

    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 1)
    assert member.told == {"orders": {0, 1}}
    assert not world.written


def test_given_a_member_that_moved_on_when_an_old_join_of_it_arrives_then_it_cannot_make_it_give_up_partitions() -> (
    None
):
    world = World(orders=2)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    two.join()
    one.beat(obey=False)
    assert world.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS

    late = world.member("a", "orders").join()

    assert late.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS


# Reconciliation


def test_given_a_member_with_all_when_another_joins_then_it_gets_its_half_only_after_the_first_gave_it_up() -> None:
    world = World(orders=4)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()

    two.join()
    assert two.told == {} and two.epoch == 2
    assert state_name(world.group) == "Reconciling"

    one.beat(obey=False)
    assert one.told == {"orders": {0, 1}} and one.epoch == 1
    two.beat()
    assert two.told == {}

    one.beat(obey=False, topic_partitions=None)  # says nothing: it may still have them
    one.beat(obey=False)  # says it still has them
    two.beat()
    assert two.told == {}

    one.obey()
    one.beat()
    assert one.epoch == 2
    two.beat()
    assert two.told == {"orders": {2, 3}}
    settle(one, two)
    assert state_name(world.group) == "Stable"


def test_given_a_member_that_does_not_give_up_when_the_rebalance_timeout_is_over_then_it_is_out() -> None:
    world = World(orders=4)
    one, two = world.member("a", "orders", rebalance_timeout_ms=10_000), world.member("b", "orders")
    one.join()
    two.join()
    one.beat(obey=False)

    world.wait(9_000)
    one.beat(obey=False)
    two.beat()
    assert "a" in world.group.members
    world.wait(1_500)

    assert one.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(two)
    assert two.told == {"orders": {0, 1, 2, 3}}


def test_given_a_member_that_gave_up_in_time_when_the_rebalance_timeout_passes_then_it_stays() -> None:
    world = World(orders=4)
    one, two = world.member("a", "orders", rebalance_timeout_ms=10_000), world.member("b", "orders")
    one.join()
    two.join()
    settle(one, two)

    for _ in range(4):
        world.wait(5_000)
        settle(one, two, rounds=1)


def test_given_a_silent_member_when_its_session_is_over_then_it_is_out_and_the_others_get_its_partitions() -> None:
    world = World(orders=4)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    two.join()
    settle(one, two)

    world.wait(44_000)
    two.beat()
    world.wait(2_000)

    assert one.beat().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    settle(two)
    assert two.told == {"orders": {0, 1, 2, 3}}


def test_given_a_revoked_partition_that_is_assigned_back_when_it_is_given_up_then_it_comes_back() -> None:
    world = World(orders=2)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    two.join()
    one.beat(obey=False)
    two.leave()

    one.obey()
    settle(one)

    assert one.told == {"orders": {0, 1}}


# Leaving


def test_given_a_member_when_it_leaves_then_its_partitions_are_free_at_once() -> None:
    world = World(orders=4)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    two.join()
    settle(one, two)

    answer = one.leave()

    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.NONE, "a", -1)
    two.beat()
    assert two.told == {"orders": {0, 1, 2, 3}}


def test_given_the_last_member_when_it_leaves_then_the_group_is_empty_and_keeps_its_epoch() -> None:
    world = World(orders=4)
    one = world.member("a", "orders")
    one.join()

    one.leave()

    assert state_name(world.group) == "Empty"
    world.crash()
    assert world.group.epoch == 2
    assert world.member("b", "orders").join().member_epoch == 3


# Static members


def static(world: World, name: str, **settings: object) -> Client:
    return world.member(name, "orders", instance_id="i", **settings)


def test_given_a_static_member_that_left_for_now_when_it_comes_back_then_it_has_what_it_had() -> None:
    world = World(orders=4)
    one, other = static(world, "a"), world.member("b", "orders")
    one.join()
    other.join()
    settle(one, other)
    had = one.told

    answer = one.leave(-2)
    other.beat()
    back = static(world, "a2")
    joined = back.join()

    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, -2)
    assert joined.error_code == ErrorCode.NONE
    assert back.told == had
    assert world.group.epoch == 2
    assert set(world.group.members) == {"a2", "b"}
    settle(back, other)


def test_given_a_static_member_that_is_there_when_another_comes_with_its_instance_id_then_it_has_to_wait() -> None:
    world = World(orders=4)
    one = static(world, "a")
    one.join()

    assert static(world, "a2").join().error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.beat().error_code == ErrorCode.NONE


def test_given_a_static_member_that_was_replaced_when_the_old_one_speaks_then_it_is_fenced() -> None:
    world = World(orders=4)
    one = static(world, "a")
    one.join()
    one.leave(-2)
    static(world, "a2").join()

    assert one.beat().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert one.leave(-1).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert one.leave(-2).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_given_a_static_member_that_left_for_now_when_its_session_is_over_then_it_is_out() -> None:
    world = World(orders=4)
    one, other = static(world, "a"), world.member("b", "orders")
    one.join()
    other.join()
    settle(one, other)
    one.leave(-2)

    world.wait(30_000)
    other.beat()
    assert other.told == {"orders": {2, 3}} or other.told == {"orders": {0, 1}}
    world.wait(16_000)
    other.beat()

    assert other.told == {"orders": {0, 1, 2, 3}}


def test_given_a_static_member_in_the_midst_of_giving_up_when_it_leaves_for_now_then_that_much_is_free() -> None:
    world = World(orders=4)
    one, other = static(world, "a"), world.member("b", "orders")
    one.join()
    other.join()
    one.beat(obey=False)

    one.leave(-2)
    other.beat()
    assert other.told == {"orders": {2, 3}}
    back = static(world, "a2")
    back.join()

    assert back.told == {"orders": {0, 1}}
    world.wait(31_000)
    settle(back, other)


@pytest.mark.parametrize("crashes", [False, True])
def test_given_a_static_member_that_left_for_now_when_the_rebalance_timeout_is_over_then_it_is_still_awaited(
    crashes: bool,
) -> None:
    world = World(orders=4)
    one, other = static(world, "a", rebalance_timeout_ms=10_000), world.member("b", "orders")
    one.join()
    other.join()
    one.beat(obey=False)
    one.leave(-2)

    if crashes:
        world.crash()
    world.wait(40_000)

    assert "a" in world.group.members
    world.wait(5_000)
    assert "a" not in world.group.members


# Topics


def test_given_a_subscribed_topic_when_it_appears_grows_and_goes_then_the_next_heartbeat_follows() -> None:
    world = World(orders=1)
    member = world.member("a", "orders", "bills")
    member.join()
    assert member.told == {"orders": {0}}

    world.create_topic("bills", 2)
    assert world.group.epoch == 1
    member.beat()
    assert member.told == {"orders": {0}, "bills": {0, 1}}

    world.add_partitions("bills", 3)
    member.beat()
    assert member.told == {"orders": {0}, "bills": {0, 1, 2}}

    world.set_topic("orders", None)
    member.beat()
    assert member.told == {"bills": {0, 1, 2}}


def test_given_a_topic_nobody_subscribes_to_when_it_changes_then_nothing_is_written() -> None:
    world = World(orders=1)
    member = world.member("a", "orders")
    member.join()

    world.create_topic("bills", 2)
    member.beat()

    assert not world.written


def test_given_a_topic_that_changed_while_no_coordinator_was_there_when_one_loads_then_it_is_noticed() -> None:
    world = World(orders=1)
    member = world.member("a", "orders")
    member.join()

    world.topics["orders"] = world.topics["orders"]._replace(partitions_count=2)
    world.crash()
    member.beat()

    assert member.told == {"orders": {0, 1}}


def test_given_a_topic_made_anew_under_its_name_when_the_member_heartbeats_then_it_gets_the_new_one() -> None:
    world = World(orders=1)
    member = world.member("a", "orders")
    member.join()

    world.create_topic("orders", 1)
    first = member.beat()
    member.beat()

    assert first.assignment is not None and first.assignment.topic_partitions == []
    assert member.told == {"orders#2": {0}}


# Assignors


def test_given_two_assignors_when_most_members_want_one_then_it_is_used_and_a_change_of_mind_rebalances() -> None:
    world = World(orders=2, bills=2)
    one = world.member("a", "orders", "bills", assignor="range")
    two = world.member("b", "orders", "bills", assignor="range")
    three = world.member("c", "orders", "bills")
    for member in (one, two, three):
        member.join()
    settle(one, two, three)
    assert three.told == {}  # range: two partitions a topic, and it is the third

    epoch = world.group.epoch
    one.beat(server_assignor="uniform")
    two.beat(server_assignor="uniform")
    settle(one, two, three)

    assert world.group.epoch > epoch
    assert sum(len(partitions) for partitions in three.told.values()) >= 1


# Regular expressions


def regex(world: World, name: str, expression: str) -> Client:
    return Client(world, name, None, regex=expression)


def test_given_topics_when_a_member_subscribes_by_a_regular_expression_then_it_has_to_match_whole_names() -> None:
    world = World(orders=1, orders_eu=1, my_orders=1)
    member = regex(world, "a", "orders.*")

    member.join()

    assert member.told == {"orders": {0}, "orders_eu": {0}}
    assert ConsumerGroupRegularExpression in kinds(world)


def test_given_a_regular_expression_when_topics_come_and_go_then_the_next_heartbeat_follows() -> None:
    world = World(orders=1)
    member = regex(world, "a", "orders.*")
    member.join()

    world.create_topic("orders_us", 1)
    world.create_topic("bills", 1)
    member.beat()
    assert member.told == {"orders": {0}, "orders_us": {0}}

    world.set_topic("orders", None)
    member.beat()
    assert member.told == {"orders_us": {0}}
    assert world.group.regexes["orders.*"].topics == {"orders_us"}
    assert not world.group.changed_topics


def test_given_a_regular_expression_that_is_none_when_joining_then_it_is_refused_and_nothing_is_left() -> None:
    world = World(orders=1)

    answer = regex(world, "a", "orders(").join()

    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "orders(" in (answer.error_message or "")
    assert not world.log and GROUP not in world.machine.groups


def test_given_an_expression_that_takes_too_much_memory_when_joining_then_it_is_refused_from_memory_the_next_time() -> (
    None
):
    world = World(orders=1)
    member = regex(world, "a", r"(\pL{10}){100}")

    first = member.join()
    before = _compiled.cache_info().hits
    second = member.join()

    assert first.error_code == second.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "too large" in (second.error_message or "")
    assert _compiled.cache_info().hits == before + 1


def test_given_names_and_an_expression_when_a_member_subscribes_to_both_then_it_gets_both() -> None:
    world = World(orders=1, bills=1, other=1)
    member = Client(world, "a", frozenset({"bills"}), regex="ord.*")

    member.join()

    assert member.told == {"orders": {0}, "bills": {0}}


def test_given_the_last_member_with_an_expression_when_it_drops_it_or_leaves_then_it_is_forgotten() -> None:
    world = World(orders=1, bills=1)
    one, two = regex(world, "a", "orders"), regex(world, "b", "b.*")
    one.join()
    two.join()

    one.beat(subscribed_topic_regex="b.*")
    assert ConsumerGroupRegularExpressionTombstone in kinds(world)
    settle(one, two)
    assert set(world.group.regexes) == {"b.*"}
    assert {**one.told, **two.told} == {"bills": {0}}

    one.leave()
    assert set(world.group.regexes) == {"b.*"}
    two.leave()
    assert not world.group.regexes


def test_given_a_refresh_interval_when_it_is_over_then_expressions_are_resolved_again_though_nothing_was_heard() -> (
    None
):
    world = World(GroupConfig(consumer_regex_refresh_interval_ms=20_000), orders=1)
    member = regex(world, "a", "orders.*")
    member.join()
    member.beat()
    world.ids["orders_x"] = topic_id(77)
    world.topics["orders_x"] = TopicFacts(topic_id(77), 1)  # and nobody says so

    member.beat()
    assert member.told == {"orders": {0}}
    world.wait(21_000)
    member.beat()

    assert member.told == {"orders": {0}, "orders_x": {0}}


# Limits


def test_given_a_change_that_the_partition_would_not_take_when_deciding_then_it_is_refused_and_nothing_happens() -> (
    None
):
    world = World(GroupConfig(max_record_bytes=1_000), orders=1, many=300)
    member = world.member("a", "orders")
    member.join()
    before = len(world.log)

    answer = member.beat(subscribed_topic_names=["orders", "many"])

    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(world.log) == before
    assert member.beat().error_code == ErrorCode.NONE


def test_given_a_heartbeat_when_leaving_for_now_without_instance_id_then_the_request_is_invalid() -> None:
    world = World(orders=1)
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=-2)

    assert world.send(request).error_code == ErrorCode.INVALID_REQUEST
