"""What a controller does of its own accord: growing internal topics, healing; and brokers that leave."""

from __future__ import annotations

import pytest
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller.commands import (
    AlterConfigs,
    AlterOperation,
    AlterPartition,
    AlterReassignments,
    ChangeConfigs,
    ConfigChange,
    ConfigResource,
    CreateTopics,
    GrowInternalTopics,
    GrownTopic,
    Heal,
    NewTopic,
    ProposedIsr,
    Reassignment,
    Reconcile,
    ResourceType,
    UnregisterBroker,
)
from penstock.controller.internal_topics import new_internal_topic, wanted_min_isr
from penstock.core.config import DRAINING_KEY
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch, TopicPartition
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTIONS_TOPIC

FOUR = BrokerId(4)
MIN_ISR = "min.insync.replicas"

each_internal_topic = pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))


def create_internal(cluster: ACluster, name: str) -> None:
    cluster.ask(CreateTopics((new_internal_topic(name, cluster.image, cluster.config),)))


def drain(cluster: ACluster, broker_id: BrokerId, value: str | None = "true") -> BrokerError | None:
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    command = AlterConfigs((ChangeConfigs(resource, (ConfigChange(DRAINING_KEY, operation, value),)),))
    (result,) = cluster.ask(command)
    return result.error


def all_come_into_sync(cluster: ACluster, name: str) -> None:
    """Every replica that serves has caught up, which may end what is being moved."""
    topic = cluster.image.topics[name]
    for index, state in enumerate(topic.partitions):
        leader = cluster.image.leader_of(state)
        assert leader is not None
        isr = tuple(replica for replica in state.replicas if replica in cluster.image.serving())
        proposed = ProposedIsr(topic.topic_id, index, LeaderEpoch(state.leader_epoch), state.partition_epoch, isr)
        cluster.ask(AlterPartition(leader, cluster.image.sessions[leader].epoch, (proposed,)))
    cluster.ask(Reconcile())


def settle(cluster: ACluster, name: str) -> None:
    cluster.ask(GrowInternalTopics())
    all_come_into_sync(cluster, name)
    cluster.ask(GrowInternalTopics())


def min_isr(cluster: ACluster, name: str) -> str | None:
    return cluster.image.topics[name].configs.get(MIN_ISR)


@each_internal_topic
def test_given_one_broker_when_two_join_then_its_topics_grow_to_three_and_need_two_in_sync(name: str) -> None:
    cluster = ACluster(ONE).with_features()
    create_internal(cluster, name)
    assert min_isr(cluster, name) == "1"
    cluster.broker_starts(TWO)
    cluster.broker_starts(THREE)

    grown = cluster.ask(GrowInternalTopics())
    all_come_into_sync(cluster, name)
    cluster.ask(GrowInternalTopics())

    assert grown == (GrownTopic(name, 3),)
    assert min_isr(cluster, name) == "2"
    topic = cluster.image.topics[name]
    assert all(sorted(each.replicas) == [1, 2, 3] and not each.is_reassigned for each in topic.partitions)
    firsts = [each.replicas[0] for each in topic.partitions]
    assert max(map(firsts.count, (ONE, TWO, THREE))) - min(map(firsts.count, (ONE, TWO, THREE))) <= 1
    before = cluster.transactions
    assert cluster.ask(GrowInternalTopics()) == ()
    assert cluster.transactions == before


@each_internal_topic
def test_given_brokers_that_join_one_by_one_then_topics_grow_with_each_and_two_replicas_need_one(name: str) -> None:
    cluster = ACluster(ONE).with_features()
    create_internal(cluster, name)

    factors = []
    for joining in (TWO, THREE, FOUR):
        cluster.broker_starts(joining)
        settle(cluster, name)
        factors.append((len(cluster.partition(name).replicas), min_isr(cluster, name)))

    assert factors == [(2, "1"), (3, "2"), (3, "2")]


def test_given_a_topic_that_grows_when_the_controller_stops_half_way_then_the_next_one_ends_it() -> None:
    for stop_after in range(5):
        cluster = ACluster(ONE, offsets_topic_num_partitions="250").with_features()
        create_internal(cluster, GROUP_OFFSETS_TOPIC)
        cluster.broker_starts(TWO)
        cluster.broker_starts(THREE)
        cluster.stop_after = cluster.transactions + stop_after
        try:
            cluster.ask(GrowInternalTopics())
        except InterruptedError:
            cluster.stop_after = None
        cluster.stop_after = None

        for _ in range(3):
            all_come_into_sync(cluster, GROUP_OFFSETS_TOPIC)
            cluster.ask(GrowInternalTopics())

        topic = cluster.image.topics[GROUP_OFFSETS_TOPIC]
        assert all(len(each.replicas) == 3 for each in topic.partitions)
        assert min_isr(cluster, GROUP_OFFSETS_TOPIC) == "2"


def test_given_an_operators_own_min_insync_replicas_when_a_topic_grows_then_it_stays() -> None:
    cluster = ACluster(ONE).with_features()
    create_internal(cluster, GROUP_OFFSETS_TOPIC)
    cluster.alter_topic(GROUP_OFFSETS_TOPIC, (MIN_ISR, AlterOperation.SET, "3"))
    cluster.broker_starts(TWO)
    cluster.broker_starts(THREE)
    cluster.ask(GrowInternalTopics())

    all_come_into_sync(cluster, GROUP_OFFSETS_TOPIC)
    cluster.ask(GrowInternalTopics())

    assert min_isr(cluster, GROUP_OFFSETS_TOPIC) == "3"
    cluster.alter_topic(GROUP_OFFSETS_TOPIC, (MIN_ISR, AlterOperation.SET, "1"))
    cluster.ask(GrowInternalTopics())
    assert min_isr(cluster, GROUP_OFFSETS_TOPIC) == "1"


def test_given_a_configured_factor_and_min_isr_then_they_hold_as_far_as_there_are_brokers() -> None:
    settings = {
        "transaction_state_log_replication_factor": "2",
        "transaction_state_log_min_isr": "2",
    }
    cluster = ACluster(ONE, **settings).with_features()
    create_internal(cluster, TRANSACTIONS_TOPIC)
    assert min_isr(cluster, TRANSACTIONS_TOPIC) == "1"
    cluster.broker_starts(TWO)
    cluster.broker_starts(THREE)

    settle(cluster, TRANSACTIONS_TOPIC)

    assert len(cluster.partition(TRANSACTIONS_TOPIC).replicas) == 2
    assert min_isr(cluster, TRANSACTIONS_TOPIC) == "2"
    assert [wanted_min_isr(GROUP_OFFSETS_TOPIC, factor, cluster.config) for factor in (1, 2, 3, 5)] == [1, 1, 2, 2]


def test_given_partitions_without_a_leader_or_on_the_move_then_internal_topics_wait_before_they_grow() -> None:
    cluster = ACluster(ONE, TWO).with_features()
    create_internal(cluster, GROUP_OFFSETS_TOPIC)
    cluster.broker_starts(THREE)
    moved = Reassignment(TopicPartition(GROUP_OFFSETS_TOPIC, 0), (THREE, TWO))
    cluster.ask(AlterReassignments((moved,)))

    assert cluster.ask(GrowInternalTopics()) == ()

    all_come_into_sync(cluster, GROUP_OFFSETS_TOPIC)
    cluster.broker_dies(TWO)
    cluster.broker_dies(ONE)
    assert cluster.ask(GrowInternalTopics()) == ()


def test_given_a_broker_that_is_gone_when_healed_then_its_replicas_are_made_elsewhere_and_nothing_else_moves() -> None:
    cluster = ACluster(ONE, TWO, THREE, FOUR).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO, THREE)), (1, (TWO, THREE, FOUR))))
    cluster.broker_dies(ONE)
    cluster.ask(Reconcile())

    healed = cluster.ask(Heal((ONE,)))

    assert healed == (TopicPartition("orders", 0),)
    assert sorted(cluster.partition("orders", 0).target) == [2, 3, 4]
    all_come_into_sync(cluster, "orders")
    assert sorted(cluster.partition("orders", 0).replicas) == [2, 3, 4]
    assert cluster.ask(Heal((ONE,))) == ()


def test_given_a_broker_that_came_back_when_healed_then_it_keeps_its_replicas() -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    cluster.broker_dies(ONE)
    cluster.broker_starts(ONE)
    cluster.ask(Reconcile())

    assert cluster.ask(Heal((ONE,))) == ()


def test_given_too_few_brokers_or_no_leader_when_healed_then_a_partition_waits() -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("full", -1, -1, assignments=((0, (ONE, TWO, THREE)),))
    cluster.create("alone", -1, -1, assignments=((0, (ONE,)),))
    cluster.broker_dies(ONE)
    cluster.ask(Reconcile())

    assert cluster.ask(Heal((ONE,))) == ()
    assert cluster.partition("alone").replicas == (ONE,)


def test_given_a_target_that_dies_while_a_partition_is_healed_then_it_goes_to_another() -> None:
    cluster = ACluster(ONE, TWO, THREE, FOUR).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    cluster.broker_dies(ONE)
    cluster.ask(Reconcile())
    cluster.ask(Heal((ONE,)))
    (first,) = set(cluster.partition("orders").target) - {TWO}
    cluster.broker_dies(first)
    cluster.ask(Reconcile())

    cluster.ask(Heal((ONE, first)))

    (second,) = set(cluster.partition("orders").target) - {TWO}
    assert {first, second} == {THREE, FOUR}
    all_come_into_sync(cluster, "orders")
    assert sorted(cluster.partition("orders").replicas) == sorted((TWO, second))


def test_given_a_broker_that_is_drained_then_it_gets_no_replicas_also_after_a_restart() -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)), (1, (TWO, ONE))))
    assert drain(cluster, THREE) is None
    cluster.broker_dies(THREE)
    cluster.broker_starts(THREE)

    for number in range(10):
        cluster.create(f"topic-{number}", 3, 2)

    assert all(
        THREE not in partition.replicas for topic in cluster.image.topics.values() for partition in topic.partitions
    )
    assert cluster.refuses(NewTopic("wide", 1, 3)) is ErrorCode.INVALID_REPLICATION_FACTOR
    by_hand = NewTopic("by-hand", assignments=((0, (THREE,)),))
    assert cluster.refuses(by_hand) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (moved,) = cluster.ask(AlterReassignments((Reassignment(TopicPartition("orders", 0), (ONE, THREE)),)))
    assert moved.error is not None
    assert moved.error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    create_internal(cluster, GROUP_OFFSETS_TOPIC)
    assert len(cluster.partition(GROUP_OFFSETS_TOPIC).replicas) == 2
    drain(cluster, THREE, None)
    assert cluster.ask(GrowInternalTopics()) == (GrownTopic(GROUP_OFFSETS_TOPIC, 3),)


def test_given_a_broker_that_is_drained_when_its_own_partition_is_reassigned_then_it_may_stay() -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    drain(cluster, ONE)

    (moved,) = cluster.ask(AlterReassignments((Reassignment(TopicPartition("orders", 0), (THREE, ONE)),)))

    assert moved.error is None


def test_given_all_brokers_or_a_file_then_draining_cannot_be_set_for_them() -> None:
    cluster = ACluster(ONE).with_features()
    resource = ConfigResource(ResourceType.BROKER, "")
    change = ChangeConfigs(resource, (ConfigChange(DRAINING_KEY, AlterOperation.SET, "true"),))

    (result,) = cluster.ask(AlterConfigs((change,)))

    assert result.error is not None
    assert "penstock broker drain" in result.error.message
    with pytest.raises(ValueError, match="penstock broker drain"):
        ACluster(penstock_broker_draining="true")


def test_given_a_broker_that_is_alive_or_holds_replicas_or_is_unknown_then_it_is_not_unregistered() -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    cluster.broker_dies(TWO)
    before = cluster.image

    reasons = []
    for broker_id in (ONE, TWO, FOUR):
        with pytest.raises(BrokerError) as refused:
            cluster.ask(UnregisterBroker(broker_id))
        reasons.append(str(refused.value))

    assert "alive" in reasons[0]
    assert "orders-0" in reasons[1] and "penstock broker drain 2" in reasons[1]
    assert "no broker 4" in reasons[2]
    assert cluster.image == before


def test_given_a_broker_that_was_drained_and_stopped_when_unregistered_then_nothing_is_left_of_it() -> None:
    cluster = ACluster(ONE, TWO).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE,)),))
    drain(cluster, TWO)
    cluster.broker_dies(TWO)

    assert cluster.ask(UnregisterBroker(TWO)) == TWO

    assert TWO not in cluster.image.brokers
    assert not cluster.image.draining()
    cluster.broker_starts(TWO)
    assert TWO in cluster.image.available()
