"""What the rest of the coordinator asks of a consumer group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.machines.group.consumer_world import GROUP, World, replayed, settle, topic_id

from penstock.coordinators.decision import Decision
from penstock.coordinators.group import consumer, offsets
from penstock.coordinators.group.consumer_records import current_record, member_record
from penstock.coordinators.group.consumer_state import Member
from penstock.coordinators.group.records import (
    ConsumerGroupMetadataTombstone,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupPartitionMetadataTombstone,
    encode,
)
from penstock.coordinators.group.state import Group
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.consumer_groups import CONSUMER_MEMBER_TYPE, DescribedConsumerGroup
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
)


def the_group(world: World) -> Group:
    return world.machine.groups[GROUP]


def commit(world: World, member_id: str, epoch: int, version: int = 9) -> ErrorCode:
    request = OffsetCommitRequest(group_id=GROUP, member_id=member_id, generation_id_or_member_epoch=epoch)
    return consumer.check_commit(world.machine, the_group(world), request, world.caller(version), world.now)


def fetch(world: World, member_id: str | None, epoch: int) -> ErrorCode:
    request = OffsetFetchRequestGroup(group_id=GROUP, member_id=member_id, member_epoch=epoch)
    return consumer.check_fetch(world.machine, the_group(world), request, world.caller(9), world.now)


def test_given_a_member_when_it_commits_then_its_epoch_has_to_be_the_one_it_is_at() -> None:
    world = World(orders=1)
    world.member("a", "orders").join()

    assert commit(world, "a", 1) == ErrorCode.NONE
    assert commit(world, "a", 0) == commit(world, "a", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit(world, "b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(world, "a", 1, version=8) == ErrorCode.UNSUPPORTED_VERSION


def test_given_no_members_when_somebody_commits_without_epoch_then_it_may() -> None:
    world = World(orders=1)
    member = world.member("a", "orders")
    member.join()
    member.leave()

    assert commit(world, "", -1) == ErrorCode.NONE
    assert commit(world, "a", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_a_member_when_offsets_are_fetched_then_only_who_claims_to_be_one_is_checked() -> None:
    world = World(orders=1)
    world.member("a", "orders").join()

    assert fetch(world, None, -1) == fetch(world, "a", 1) == ErrorCode.NONE
    assert fetch(world, "a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(world, "b", 1) == fetch(world, None, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_given_a_group_when_it_changes_then_its_state_has_the_names_kafka_has() -> None:
    world = World(orders=2)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    seen = [consumer.state_name(the_group(world))]
    two.join()
    seen.append(consumer.state_name(the_group(world)))
    settle(one, two)
    one.leave()
    seen.append(consumer.state_name(the_group(world)))
    two.leave()
    seen.append(consumer.state_name(the_group(world)))

    assert seen == ["Stable", "Reconciling", "Assigning", "Empty"]
    assert consumer.is_empty(the_group(world))


def test_given_two_members_when_described_then_each_has_what_it_has_and_what_it_is_meant_to_have() -> None:
    world = World(orders=2)
    one, two = world.member("a", "orders"), world.member("b", "orders", instance_id="i")
    one.join()
    two.join()

    described = consumer.describe(world.machine, GROUP)

    assert isinstance(described, DescribedConsumerGroup)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Reconciling", 2, 2)
    assert described.assignor_name == "uniform"
    first, second = described.members
    assert (first.member_id, first.member_epoch, first.member_type) == ("a", 1, CONSUMER_MEMBER_TYPE)
    assert [(t.topic_name, t.partitions) for t in first.assignment.topic_partitions] == [("orders", [0, 1])]
    assert [(t.topic_name, t.partitions) for t in first.target_assignment.topic_partitions] == [("orders", [0])]
    assert (second.instance_id, second.assignment.topic_partitions) == ("i", [])
    assert (first.client_id, first.client_host, first.subscribed_topic_names) == ("client", "/127.0.0.1", ["orders"])


def test_given_no_such_group_when_described_then_it_is_not_found() -> None:
    described = consumer.describe(World().machine, "nobody")

    assert (described.group_id, described.error_code) == ("nobody", ErrorCode.GROUP_ID_NOT_FOUND)


def test_given_members_when_asked_what_is_subscribed_then_names_and_matches_of_all_are() -> None:
    world = World(orders=1, bills=1)
    world.member("a", "orders", "nothing").join()
    world.member("b", regex="b.*").join()

    assert consumer.subscribed_topics(the_group(world)) == {"orders", "nothing", "bills"}


def emptied_group() -> World:
    world = World(orders=2, bills=1)
    one, two = world.member("a", "orders"), world.member("b", regex=".*", instance_id="i")
    one.join()
    two.join()
    settle(one, two)
    one.leave()
    two.leave()
    return world


def test_given_an_empty_group_when_it_is_deleted_then_nothing_of_it_is_left() -> None:
    world = emptied_group()
    decision = Decision()

    consumer.delete(the_group(world), decision)
    world.carry_out(decision)

    assert GROUP not in world.machine.groups
    assert GROUP not in replayed(world.log, world.config, world.topics).groups


def test_given_a_deletion_when_its_records_are_cut_anywhere_then_the_group_is_whole_empty_or_gone() -> None:
    """Also when compaction has taken away everything but the last record of each key."""
    world = World(orders=2, bills=1)
    one, two = world.member("a", "orders"), world.member("b", regex=".*")
    one.join()
    two.join()
    settle(one, two)
    decision = Decision()
    consumer.delete(the_group(world), decision)
    assert decision.records[-1] == encode(ConsumerGroupMetadataTombstone(GROUP))
    left = {record.key: record.value for record in world.log + decision.records}
    assert not any(left.values()), "or a replay would find the group again once its tombstone is compacted away"

    for cut in range(len(decision.records) + 1):
        log = world.log + decision.records[:cut]
        latest = {record.key: record for record in log}
        compacted = [record for record in log if latest[record.key] is record]
        for records in (log, compacted):
            groups = replayed(records, world.config, world.topics).groups
            if cut == len(decision.records):
                assert GROUP not in groups
            else:
                group = groups[GROUP].consumer
                assert group is not None
                owners = {owner for partitions in group.owners.values() for owner in partitions.values()}
                assert owners <= set(group.members)


def test_given_a_record_of_an_older_kafka_when_the_metadata_is_looked_at_then_it_is_taken_away() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.join()
    world.log.append(encode(ConsumerGroupPartitionMetadata(GROUP)))
    world.crash()

    member.beat()

    assert world.written == [ConsumerGroupPartitionMetadataTombstone(GROUP)]
    assert not world.group.has_old_metadata_record
    member.beat()
    assert not world.written


@pytest.mark.parametrize("crashes", [False, True])
def test_given_a_restart_when_members_go_on_then_sessions_and_revocations_have_their_whole_time_again(
    crashes: bool,
) -> None:
    world = World(orders=2)
    one, two = world.member("a", "orders"), world.member("b", "orders")
    one.join()
    two.join()
    one.beat(obey=False)
    world.wait(29_000)
    if crashes:
        world.crash()
    two.beat()

    world.wait(2_000)
    assert ("a" in world.group.members) is crashes
    world.wait(29_000)
    assert "a" not in world.group.members
    assert "b" in world.group.members
    world.wait(20_000)
    assert not world.group.members


def test_given_a_member_state_of_a_later_kafka_when_it_heartbeats_then_it_has_to_start_over() -> None:
    world = World(orders=2)
    member = world.member("a", "orders")
    member.join()
    record = replace(current_record(GROUP, world.group.members["a"]), state=55)
    world.log.append(encode(record))
    world.crash()

    assert member.beat().error_code == ErrorCode.FENCED_MEMBER_EPOCH
    member.owned = {}
    assert member.beat().error_code == ErrorCode.NONE
    assert member.told == {"orders": {0, 1}}


def test_given_a_log_in_which_two_members_have_a_partition_when_one_gives_it_up_then_it_is_still_the_others() -> None:
    """No coordinator writes that, but a log may have been damaged, and loading it must not fail (KAFKA-19862)."""
    world = World(orders=1)
    for name in ("a", "b"):
        world.log.append(encode(member_record(GROUP, Member(name))))
        world.log.append(encode(current_record(GROUP, Member(name, 1, 1, assigned={topic_id(1): frozenset({0})}))))
    world.log.append(encode(current_record(GROUP, Member("a", 2, 1))))

    world.crash()

    assert world.group.owners == {topic_id(1): {0: "b"}}


@pytest.mark.parametrize("has_crashed", [False, True])
def test_given_offsets_of_long_ago_when_the_last_member_leaves_then_the_retention_begins(has_crashed: bool) -> None:
    world = World(orders=1)
    world.crash()  # with loading begins the search for what has expired
    member = world.member("a", "orders")
    member.join()
    decision = Decision()
    topics = [OffsetCommitRequestTopic(name="orders", partitions=[OffsetCommitRequestPartition(committed_offset=7)])]
    request = OffsetCommitRequest(
        group_id=GROUP, member_id="a", generation_id_or_member_epoch=world.group.epoch, topics=topics
    )
    offsets.commit(world.machine, request, world.caller(9), world.now, decision)
    world.carry_out(decision)
    assert world.machine.groups[GROUP].offsets
    retention_ms = world.config.offsets_retention_ms
    world.now_ms += 2 * retention_ms  # during which it went on sending heartbeats
    member.leave()
    if has_crashed:
        world.crash()

    world.wait(retention_ms - 1)
    assert world.machine.groups[GROUP].offsets
    world.wait(world.config.offsets_retention_check_interval_ms + 1)
    assert GROUP not in world.machine.groups
