"""Groups that change their protocol while their members work, and classic members of consumer groups."""

from __future__ import annotations

import pytest
from tests.machines.group.consumer_world import GROUP, Client
from tests.machines.group.mixed_world import MixedWorld, OldClient

from penstock.coordinators.group import consumer
from penstock.coordinators.group.classic_state import State
from penstock.coordinators.group.consumer_state import MemberState
from penstock.coordinators.group.records import GroupMetadataRecord, GroupTombstone
from penstock.coordinators.group.state import GroupConfig
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_groups import CLASSIC_MEMBER_TYPE
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartitions,
)
from penstock.protocol.messages.group_offsets import OffsetCommitRequest


def plan_of(**partitions: set[int]) -> bytes:
    named = [TopicPartitions(topic=name, partitions=sorted(each)) for name, each in partitions.items()]
    return ConsumerProtocolAssignment.encode_fields_of(ConsumerProtocolAssignment(assigned_partitions=named), 1)


def a_classic_group(world: MixedWorld, *members: OldClient, plan: list[bytes] | None = None) -> None:
    """Stable, with `orders` split among the members in the order given."""
    for member in members:
        member.ask_to_join()
    world.wait(9_000)
    for member in members:
        assert member.joined().error_code == ErrorCode.NONE
    count = world.topics["orders"].partitions_count // len(members)
    halves = plan or [plan_of(orders=set(range(i * count, (i + 1) * count))) for i in range(len(members))]
    leader = next(member for member in members if member.member_id == member.joined().leader)
    leader.sync(dict(zip((member.member_id for member in members), halves, strict=True)))
    for member in members:
        assert member.sync().error_code == ErrorCode.NONE


def keep_alive(world: MixedWorld, *members: OldClient | Client, rounds: int = 8) -> None:
    for _ in range(rounds):
        world.wait(3_000)
        for member in members:
            if isinstance(member, OldClient):
                member.live()
            else:
                assert member.beat().error_code == ErrorCode.NONE


def everything(*members: OldClient | Client) -> list[tuple[str, int]]:
    return sorted((topic, p) for member in members for topic, each in member.owned.items() for p in each)


ALL = [("orders", p) for p in range(4)]


# Upgrade


@pytest.mark.parametrize("is_eager", [False, True])
def test_given_a_classic_group_when_a_new_member_joins_then_all_share_and_no_partition_has_two_owners(
    is_eager: bool,
) -> None:
    world = MixedWorld(orders=4)
    one, two = (world.old_member("orders", is_eager=is_eager) for _ in range(2))
    a_classic_group(world, one, two)
    new = world.member("n", "orders")

    assert new.join().error_code == ErrorCode.NONE

    assert isinstance(world.written[0], GroupTombstone)
    assert world.machine.groups[GROUP].classic is None
    assert new.told == {}
    assert everything(one, two, new) == ALL
    assert one.beat() == two.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        for member in (one, two):
            member.live()
            assert len(set(everything(one, two, new))) == len(everything(one, two, new))
        new.beat()
        assert len(set(everything(one, two, new))) == len(everything(one, two, new))
    assert everything(one, two, new) == ALL
    assert [sum(map(len, member.owned.values())) for member in (one, two, new)].count(0) == 0
    keep_alive(world, one, two, new)
    world.crash()
    keep_alive(world, one, two, new)
    assert everything(one, two, new) == ALL


def test_given_a_classic_group_when_upgraded_then_it_can_be_described_and_its_members_are_marked_classic() -> None:
    world = MixedWorld(orders=4)
    one = world.old_member("orders")
    a_classic_group(world, one)
    generation = one.generation

    world.member("n", "orders").join()
    described = consumer.describe(world.machine, GROUP)

    assert described.group_epoch == generation + 1
    types = {member.member_id: member.member_type for member in described.members}
    assert types[one.member_id] == CLASSIC_MEMBER_TYPE
    assert world.group.members[one.member_id].member_epoch == generation


def test_given_members_with_assignments_of_their_own_when_upgraded_then_they_keep_what_they_can() -> None:
    world = MixedWorld(orders=4)
    one, two = world.old_member("orders"), world.old_member("orders")
    a_classic_group(world, one, two, plan=[plan_of(orders={2, 3}), plan_of(orders={0, 1})])

    world.member("n", "orders").join()

    orders = world.topics["orders"].topic_id
    assert world.group.targets[one.member_id][orders] <= {2, 3}
    assert world.group.targets[two.member_id][orders] <= {0, 1}


def test_given_a_join_that_waits_when_the_group_is_upgraded_then_it_is_told_to_join_again() -> None:
    world = MixedWorld(orders=4)
    one, two = world.old_member("orders"), world.old_member("orders")
    a_classic_group(world, one)
    two.ask_to_join()
    assert two.join_ticket not in world.answers

    world.member("n", "orders").join()

    assert two.joined().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    two.rejoin()
    assert two.member_id in world.group.members


@pytest.mark.parametrize(
    ("config", "settings", "plan"),
    [
        (GroupConfig(consumer_migration_policy="disabled"), {}, None),
        (GroupConfig(consumer_migration_policy="downgrade"), {}, None),
        (GroupConfig(), {"protocol_type": "connect"}, None),
        (GroupConfig(consumer_max_size=0), {}, None),
        (GroupConfig(), {}, b"\x00"),
        (
            GroupConfig(),
            {},
            ConsumerProtocolAssignment.encode_fields_of(ConsumerProtocolAssignment(user_data=b"mine"), 1),
        ),
    ],
)
def test_given_a_classic_group_that_must_stay_one_when_a_new_member_joins_then_it_finds_no_group(
    config: GroupConfig, settings: dict[str, str], plan: bytes | None
) -> None:
    world = MixedWorld(config, orders=4)
    one = world.old_member("orders", **settings)
    one.ask_to_join()
    world.wait(3_000)
    one.joined()
    if plan is None:
        plan = plan_of(orders={0})
    one.protocol_type = settings.get("protocol_type", "consumer")
    world.machine.groups[GROUP].classic.members[one.member_id].assignment = plan  # type: ignore[union-attr]

    answer = world.member("n", "orders").join()

    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "cannot become a consumer group" in (answer.error_message or "")
    assert world.classic.members


def test_given_a_classic_group_when_a_member_of_the_new_protocol_comes_with_an_epoch_then_it_finds_no_group() -> None:
    world = MixedWorld(orders=4)
    a_classic_group(world, world.old_member("orders"))

    assert world.member("n", "orders", epoch=1).beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.member("n", "orders").leave().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_given_an_empty_classic_group_when_a_new_member_joins_then_it_is_a_consumer_group_whatever_the_policy() -> None:
    world = MixedWorld(GroupConfig(consumer_migration_policy="disabled"), orders=4)
    one = world.old_member("orders", protocol_type="connect")
    one.ask_to_join()
    world.wait(3_000)
    one.joined()
    one.leave()
    assert world.classic.state is State.EMPTY

    assert world.member("n", "orders").join().error_code == ErrorCode.NONE

    assert set(world.group.members) == {"n"}
    world.crash()
    assert world.machine.groups[GROUP].classic is None


# Downgrade


@pytest.mark.parametrize("how", ["leaves", "is silent"])
def test_given_a_mixed_group_when_the_last_new_member_goes_then_the_classic_members_are_a_classic_group(
    how: str,
) -> None:
    world = MixedWorld(orders=4)
    one, two, new = world.old_member("orders"), world.old_member("orders"), world.member("n", "orders")
    a_classic_group(world, one, two)
    new.join()
    keep_alive(world, one, two, new)

    if how == "leaves":
        new.leave()
    else:
        for _ in range(16):
            world.wait(3_000)
            if world.machine.groups[GROUP].consumer is not None:
                one.live()
                two.live()

    assert set(world.classic.members) == {one.member_id, two.member_id}
    assert world.classic.state is State.PREPARING_REBALANCE
    assert one.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    one.send_join()
    two.send_join()
    assert one.joined().error_code == two.joined().error_code == ErrorCode.NONE
    assert one.generation == two.generation


def test_given_a_downgrade_when_the_coordinator_crashes_after_it_then_it_finds_the_classic_group() -> None:
    world = MixedWorld(orders=4)
    one, new = world.old_member("orders"), world.member("n", "orders")
    a_classic_group(world, one)
    new.join()
    keep_alive(world, one, new)

    new.leave()
    record = world.written[-1]
    world.crash()

    assert isinstance(record, GroupMetadataRecord)
    assert world.classic.stored == record
    assert (record.protocol_type, record.protocol) == ("consumer", "range")
    assert set(world.classic.members) == {one.member_id}


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_given_a_policy_without_downgrade_when_the_last_new_member_goes_then_it_stays_a_consumer_group(
    policy: str,
) -> None:
    world = MixedWorld(GroupConfig(consumer_migration_policy=policy), orders=4)
    new, one = world.member("n", "orders"), world.old_member("orders")
    new.join()
    one.rejoin()
    keep_alive(world, one, new)

    new.leave()
    keep_alive(world, one)

    assert set(world.group.members) == {one.member_id}
    assert everything(one) == ALL


def test_given_an_empty_consumer_group_when_a_classic_member_joins_then_it_is_a_classic_group() -> None:
    world = MixedWorld(orders=4)
    new, one = world.member("n", "orders"), world.old_member("orders")
    new.join()
    new.leave()

    one.ask_to_join()
    world.wait(3_000)
    assert one.joined().error_code == ErrorCode.NONE
    one.sync({one.member_id: plan_of(orders={0, 1, 2, 3})})

    assert everything(one) == ALL
    world.crash()
    assert set(world.classic.members) == {one.member_id}


# Classic members of a consumer group


def a_mixed_group(world: MixedWorld, **settings: object) -> tuple[Client, OldClient]:
    new, old = world.member("n", "orders"), world.old_member("orders", **settings)
    new.join()
    old.rejoin()
    keep_alive(world, old, new)
    assert everything(new, old) == ALL
    return new, old


def test_given_a_consumer_group_when_a_classic_member_joins_then_it_is_told_its_id_first() -> None:
    world = MixedWorld(orders=4)
    world.member("n", "orders").join()
    old = world.old_member("orders")

    old.send_join()
    first = old.joined()
    old.send_join()

    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED and first.member_id
    answer = old.joined()
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (0, "consumer", "range")
    assert (answer.leader, answer.members) == ("", [])


def test_given_a_mixed_group_when_classic_protocols_do_not_meet_then_joining_is_refused() -> None:
    world = MixedWorld(orders=4)
    a_mixed_group(world)

    assert world.old_member("orders", protocols=("sticky",)).join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = world.old_member("orders", protocol_type="connect")
    assert other.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.old_member("orders", protocols=()).join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_given_a_mixed_group_when_a_classic_member_is_wrong_about_itself_then_it_is_told_so() -> None:
    world = MixedWorld(orders=4)
    new, old = a_mixed_group(world)

    old.generation += 1
    assert old.beat() == old.sync().error_code == ErrorCode.ILLEGAL_GENERATION
    old.generation -= 1
    old.protocol = "sticky"
    assert old.sync().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger = OldClient(world, frozenset(), member_id=new.name, generation=new.epoch)
    assert stranger.beat() == stranger.sync().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_a_classic_member_when_it_commits_then_its_generation_is_checked_as_its_epoch() -> None:
    world = MixedWorld(orders=4)
    _, old = a_mixed_group(world)
    request = OffsetCommitRequest(group_id=GROUP, member_id=old.member_id, generation_id_or_member_epoch=old.generation)
    group = world.machine.groups[GROUP]

    assert consumer.check_commit(world.machine, group, request, world.caller(7), world.now) == ErrorCode.NONE
    request.generation_id_or_member_epoch += 1
    code = consumer.check_commit(world.machine, group, request, world.caller(7), world.now)
    assert code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("silence", ["join", "sync", "session"])
def test_given_a_classic_member_when_it_is_late_then_it_is_out(silence: str) -> None:
    world = MixedWorld(orders=4)
    new, old = a_mixed_group(world, rebalance_timeout_ms=10_000)
    world.create_topic("orders", 4)
    new.beat()
    new.beat()
    if silence == "sync":
        old.join()

    for _ in range(8):
        world.wait(3_000)
        new.beat()
        if silence != "session":
            old.beat()

    assert old.member_id not in world.machine.groups[GROUP].consumer.members  # type: ignore[union-attr]


def test_given_members_of_both_kinds_when_removed_with_leave_group_then_each_is_answered_for() -> None:
    world = MixedWorld(orders=4)
    _, old = a_mixed_group(world)

    assert old.leave().members[0].error_code == ErrorCode.NONE
    assert old.leave().members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    remover = OldClient(world, frozenset(), member_id="n")
    assert remover.leave().members[0].error_code == ErrorCode.NONE
    assert not world.group.members


# Static members


def test_given_a_static_classic_member_when_it_comes_back_with_the_new_protocol_then_it_keeps_what_it_had() -> None:
    world = MixedWorld(orders=4)
    new, old = a_mixed_group(world, instance_id="i")
    had = old.owned

    back = world.member("n2", "orders", instance_id="i")
    assert back.join().error_code == ErrorCode.NONE

    assert back.told == had
    assert set(world.group.members) == {"n", "n2"}
    assert all(member.classic is None for member in world.group.members.values())
    assert new.beat().error_code == ErrorCode.NONE


def test_given_a_static_member_when_it_comes_back_with_the_classic_protocol_then_it_keeps_what_it_had() -> None:
    world = MixedWorld(orders=4)
    one, two = world.member("n", "orders"), world.member("s", "orders", instance_id="i")
    one.join()
    two.join()
    keep_alive(world, one, two)
    had = two.owned

    old = world.old_member("orders", instance_id="i")
    old.rejoin()

    assert old.owned == had
    assert set(world.group.members) == {"n", old.member_id}
    assert two.beat().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_given_the_last_new_member_is_static_when_it_comes_back_classic_then_the_group_is_a_classic_one() -> None:
    world = MixedWorld(orders=4)
    one, two = world.old_member("orders"), world.member("s", "orders", instance_id="i")
    two.join()
    one.rejoin()
    keep_alive(world, one, two)
    had = two.owned

    back = world.old_member("orders", instance_id="i", owned=had)
    back.send_join()

    assert set(world.classic.static_members) == {"i"}
    assert len(world.classic.members) == 2
    world.crash()
    assert len(world.classic.members) == 2
    assert world.classic.static_members["i"] != "s"


def test_given_a_classic_member_that_has_to_give_up_when_it_syncs_then_it_sees_what_it_may_keep() -> None:
    world = MixedWorld(orders=4)
    new, old = world.member("n", "orders"), world.old_member("orders")
    a_classic_group(world, old)
    new.join()

    old.join()
    assert world.group.members[old.member_id].state is MemberState.UNREVOKED_PARTITIONS
    old.sync()
    new.beat()
    assert len(old.owned["orders"]) == 2 and new.told == {}
    assert old.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    old.rejoin()
    new.beat()

    assert everything(old, new) == ALL


# Names


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("version", [3, 9])
def test_given_a_name_that_fills_a_string_when_an_old_member_joins_then_its_id_fits_into_one(
    is_static: bool, version: int
) -> None:
    world = MixedWorld(orders=4)
    assert world.member("new", "orders").join().error_code == ErrorCode.NONE
    name = "x" * 32_767
    caller = world.caller(version, client_id=name)
    world.caller = lambda *_, **__: caller  # type: ignore[method-assign]
    old = world.old_member("orders", instance_id=name if is_static else None)

    old.send_join(version)

    assert len(old.joined().member_id) < 32_767


def test_given_an_instance_id_that_is_empty_when_its_member_is_gone_then_it_is_forgotten() -> None:
    world = MixedWorld(orders=4)
    unnamed = world.old_member("orders", instance_id="")
    a_classic_group(world, unnamed)
    assert world.member("new", "orders").join().error_code == ErrorCode.NONE

    unnamed.leave()

    assert "" not in world.group.static_members
