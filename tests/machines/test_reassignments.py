"""Partitions that move: what is in between, and what must hold whatever happens on the way (trap A13)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller.commands import (
    AcceptedIsr,
    AlterPartition,
    AlterReassignments,
    CreatePartitions,
    MorePartitions,
    ProposedIsr,
    Reassignment,
    Reconcile,
)
from penstock.controller.elections import Brokers, is_settled
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch, TopicPartition
from penstock.metadata.image import PartitionImage
from penstock.metadata.records import SessionState

FOUR, FIVE = BrokerId(4), BrokerId(5)
ALL = (ONE, TWO, THREE, FOUR, FIVE)
ORDERS = TopicPartition("orders", 0)


def a_cluster(*replicas: BrokerId, min_isr: int = 1, **configs: str) -> ACluster:
    """orders-0 on these of five brokers, led by the first."""
    cluster = ACluster(*ALL).with_features()
    overrides = {"min.insync.replicas": str(min_isr)} | {name.replace("_", "."): v for name, v in configs.items()}
    cluster.create("orders", -1, -1, assignments=((0, replicas),), configs=tuple(overrides.items()))
    return cluster


def reassign(cluster: ACluster, *replicas: BrokerId, **options: bool) -> ErrorCode | None:
    return altered(cluster, Reassignment(ORDERS, replicas), **options)


def cancel(cluster: ACluster) -> ErrorCode | None:
    return altered(cluster, Reassignment(ORDERS, None))


def altered(cluster: ACluster, wanted: Reassignment, **options: bool) -> ErrorCode | None:
    before = cluster.image
    (result,) = cluster.ask(AlterReassignments((wanted,), **options))
    assert result.topic_partition == wanted.topic_partition
    if result.error is None:
        return None
    assert cluster.image == before
    assert result.error.message != result.error.code.name
    return result.error.code


def propose_isr(cluster: ACluster, *isr: BrokerId, of: PartitionImage | None = None) -> int | BrokerError:
    """By the leader of orders-0, as it is or as it was."""
    partition = of or cluster.partition("orders")
    assert partition.leader is not None
    topic_id = cluster.image.topics["orders"].topic_id
    epochs = (LeaderEpoch(partition.leader_epoch), partition.partition_epoch)
    proposal = ProposedIsr(topic_id, 0, *epochs, isr)
    (answer,) = cluster.ask(AlterPartition(partition.leader, partition.leader_broker_epoch, (proposal,)))
    assert isinstance(answer, AcceptedIsr)
    return answer.outcome


def is_waited_for(cluster: ACluster) -> bool:
    """Whether the controller sees that something is to be done."""
    return not is_settled(cluster.partition("orders"), Brokers.of(cluster.image))


def after(cluster: ACluster) -> PartitionImage:
    cluster.ask(Reconcile())
    return cluster.partition("orders")


def test_given_a_reassignment_when_begun_then_new_replicas_join_the_old_ones_and_the_leader_goes_on() -> None:
    cluster = a_cluster(ONE, TWO, THREE)

    assert reassign(cluster, FOUR, TWO, FIVE) is None

    partition = cluster.partition("orders")
    assert partition.replicas == (FOUR, TWO, FIVE, ONE, THREE)
    assert (partition.adding, partition.removing) == ((FOUR, FIVE), (ONE, THREE))
    assert (partition.leader, partition.isr) == (ONE, (ONE, TWO, THREE))
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 1)
    assert not is_waited_for(cluster)


def test_given_a_target_that_comes_into_sync_then_the_rest_goes_and_who_leads_is_one_of_it_in_a_new_epoch() -> None:
    cluster = a_cluster(ONE, TWO, THREE)
    reassign(cluster, FOUR, TWO, FIVE)

    propose_isr(cluster, ONE, TWO, THREE, FOUR)
    almost = is_waited_for(cluster), after(cluster).replicas
    propose_isr(cluster, ONE, TWO, THREE, FOUR, FIVE)

    assert almost == (False, (FOUR, TWO, FIVE, ONE, THREE))
    assert is_waited_for(cluster)
    partition = after(cluster)
    assert (partition.replicas, partition.adding, partition.removing) == ((FOUR, TWO, FIVE), (), ())
    assert (partition.leader, partition.isr, partition.leader_epoch) == (FOUR, (TWO, FOUR, FIVE), 1)
    assert partition.leader_broker_epoch == cluster.image.session_epoch(FOUR)
    assert not is_waited_for(cluster)


def test_given_a_leader_that_stays_when_replicas_are_only_added_then_its_epoch_goes_on() -> None:
    cluster = a_cluster(ONE)
    reassign(cluster, ONE, TWO, THREE)
    propose_isr(cluster, ONE, TWO, THREE)

    partition = after(cluster)

    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((ONE, TWO, THREE), ONE, 0)


def test_given_a_replica_that_goes_when_the_leader_stays_then_a_new_epoch_keeps_what_was_proposed_before_out() -> None:
    cluster = a_cluster(ONE, TWO, THREE)
    before = cluster.partition("orders")

    assert reassign(cluster, ONE, TWO) is None

    partition = cluster.partition("orders")  # at once: nobody has to catch up
    assert (partition.replicas, partition.isr, partition.leader_epoch) == ((ONE, TWO), (ONE, TWO), 1)
    refused = propose_isr(cluster, ONE, TWO, THREE, of=before)
    assert isinstance(refused, BrokerError)
    assert refused.code is ErrorCode.FENCED_LEADER_EPOCH
    refused = propose_isr(cluster, ONE, TWO, THREE)
    assert isinstance(refused, BrokerError)
    assert refused.code is ErrorCode.INELIGIBLE_REPLICA


def test_given_another_order_of_the_same_replicas_then_only_that_changes() -> None:
    cluster = a_cluster(ONE, TWO)

    assert reassign(cluster, TWO, ONE) is None

    partition = cluster.partition("orders")
    assert (partition.replicas, partition.is_reassigned) == ((TWO, ONE), False)
    assert (partition.leader, partition.leader_epoch) == (ONE, 0)


def test_given_a_target_that_is_changed_when_cancelled_then_what_was_at_first_is_back() -> None:
    cluster = a_cluster(ONE, TWO)
    reassign(cluster, THREE, FOUR)
    propose_isr(cluster, ONE, TWO, THREE)

    assert reassign(cluster, FIVE, TWO) is None

    changed = cluster.partition("orders")
    assert changed.replicas == (FIVE, TWO, THREE, FOUR, ONE)
    assert (changed.target, set(changed.original)) == ((FIVE, TWO), {ONE, TWO})
    assert changed.isr == (ONE, TWO, THREE)
    assert cancel(cluster) is None
    partition = cluster.partition("orders")
    assert (set(partition.replicas), partition.isr) == ({ONE, TWO}, (ONE, TWO))
    assert (partition.leader, partition.leader_epoch, partition.is_reassigned) == (ONE, 1, False)


def test_given_a_leader_that_was_to_be_added_when_cancelled_then_one_of_the_old_ones_leads() -> None:
    cluster = a_cluster(ONE, TWO)
    reassign(cluster, THREE, FOUR)
    propose_isr(cluster, ONE, TWO, THREE)
    cluster.broker_dies(ONE)
    cluster.broker_dies(TWO)
    led_by_three = after(cluster)
    cluster.broker_starts(TWO)

    refused = cancel(cluster)
    propose_isr(cluster, TWO, THREE)
    done = cancel(cluster)

    assert (led_by_three.leader, led_by_three.isr) == (THREE, (THREE,))
    assert refused is ErrorCode.INVALID_REPLICA_ASSIGNMENT  # nobody but three has all
    assert done is None
    partition = cluster.partition("orders")
    assert (set(partition.replicas), partition.leader, partition.isr) == ({ONE, TWO}, TWO, (TWO,))


def test_given_a_topic_that_may_lose_records_when_only_a_new_replica_has_all_then_cancelling_loses_nothing() -> None:
    cluster = a_cluster(ONE, unclean_leader_election_enable="true")
    reassign(cluster, TWO, THREE)
    propose_isr(cluster, ONE, TWO)
    cluster.broker_dies(ONE)
    after(cluster)
    cluster.broker_starts(ONE)

    assert cancel(cluster) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_given_what_cannot_be_done_then_it_is_refused_and_nothing_changes() -> None:
    cluster = a_cluster(ONE, TWO)

    assert cancel(cluster) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(cluster) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, ONE, ONE) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, ONE, BrokerId(-1)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, ONE, BrokerId(99)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, ONE, allow_replication_factor_change=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, ONE, THREE, allow_replication_factor_change=False) is None
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert altered(cluster, Reassignment(TopicPartition("orders", 1), (ONE,))) is unknown
    assert altered(cluster, Reassignment(TopicPartition("others", 0), (ONE,))) is unknown


def test_given_a_partition_twice_then_both_are_refused_and_others_are_moved() -> None:
    cluster = a_cluster(ONE)
    cluster.create("others", -1, -1, assignments=((0, (ONE,)),))
    others = TopicPartition("others", 0)

    wanted = (Reassignment(ORDERS, (TWO,)), Reassignment(others, (TWO,)), Reassignment(ORDERS, (THREE,)))
    results = cluster.ask(AlterReassignments(wanted))

    assert [result.error and result.error.code for result in results] == [
        ErrorCode.INVALID_REQUEST,
        None,
        ErrorCode.INVALID_REQUEST,
    ]
    assert not cluster.partition("orders").is_reassigned
    assert cluster.partition("others").adding == (TWO,)


def test_given_a_topic_that_moves_when_it_gets_more_partitions_then_they_have_as_many_replicas_as_it_will() -> None:
    cluster = a_cluster(ONE, TWO)
    reassign(cluster, THREE, FOUR)

    cluster.ask(CreatePartitions((MorePartitions("orders", 2),)))

    assert len(cluster.partition("orders", 1).replicas) == 2


def test_given_more_replicas_than_there_were_then_no_more_are_needed_to_commit_before_they_are_there() -> None:
    cluster = a_cluster(ONE, min_isr=2)
    reassign(cluster, ONE, TWO, THREE)
    assert cluster.partition("orders").replication_factor == 1

    propose_isr(cluster, ONE, TWO)
    propose_isr(cluster, ONE)
    assert cluster.partition("orders").eligible == ()  # one alone commits, so two may lack something

    propose_isr(cluster, ONE, TWO, THREE)
    assert after(cluster).replication_factor == 3


def test_given_eligible_replicas_when_fewer_are_to_be_needed_then_they_are_eligible_no_more() -> None:
    cluster = a_cluster(ONE, TWO, THREE, min_isr=2)
    cluster.broker_dies(TWO)
    cluster.broker_dies(THREE)
    before = after(cluster)

    reassign(cluster, FOUR)

    assert before.eligible == (TWO, THREE)
    assert cluster.partition("orders").eligible == ()


class PartitionsThatMove(RuleBasedStateMachine):
    """With a model of who holds all that is committed: who leads must, and who is a replica no more holds nothing."""

    @initialize(min_isr=st.integers(1, 3), replicas=st.lists(st.sampled_from(ALL), min_size=1, max_size=3, unique=True))
    def start(self, min_isr: int, replicas: list[BrokerId]) -> None:
        self.min_isr = min_isr
        self.cluster = a_cluster(*replicas, min_isr=min_isr)
        self.complete = set(replicas)
        self.original = set(replicas)
        self.led = (0, self.partition.leader)

    @property
    def partition(self) -> PartitionImage:
        return self.cluster.partition("orders")

    @property
    def leader(self) -> BrokerId | None:
        return self.cluster.image.leader_of(self.partition)

    def changed(self) -> None:
        """Who goes loses its log. Whoever is elected has to hold everything."""
        partition = self.partition
        self.complete &= set(partition.replicas)
        if not partition.is_reassigned:
            self.original = set(partition.replicas)
        led = (partition.leader_epoch, partition.leader)
        if led != self.led and partition.leader is not None:
            assert partition.leader in self.complete
        self.led = led

    @rule(broker=st.sampled_from(ALL), state=st.sampled_from(SessionState))
    def starts(self, broker: BrokerId, state: SessionState) -> None:
        self.cluster.broker_starts(broker, state)

    @rule(broker=st.sampled_from(ALL))
    def dies(self, broker: BrokerId) -> None:
        if broker in self.cluster.image.sessions:
            self.cluster.broker_dies(broker)

    @rule()
    def reconciles(self) -> None:
        after(self.cluster)
        self.changed()
        assert after(self.cluster) == self.partition

    @rule(replicas=st.lists(st.sampled_from(ALL), min_size=1, max_size=4, unique=True))
    def reassigns(self, replicas: list[BrokerId]) -> None:
        assert reassign(self.cluster, *replicas) is None
        assert self.partition.target == tuple(replicas)
        self.changed()

    @rule()
    def cancels(self) -> None:
        was_led, was_reassigned, original = self.leader is not None, self.partition.is_reassigned, self.original
        refused = cancel(self.cluster)
        assert was_reassigned or refused is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        if refused is None:
            assert not self.partition.is_reassigned
            assert set(self.partition.replicas) == original
            assert self.leader is not None or not was_led or not self._in_sync_and_serving()
        self.changed()

    def _in_sync_and_serving(self) -> bool:
        return bool(self.cluster.image.serving().keys() & set(self.partition.isr))

    @rule()
    def commits(self) -> None:
        """The leader of the moment commits a record, if it may; who is not in sync lacks it from then on."""
        partition = self.partition
        if self.leader is not None and len(partition.isr) >= min(self.min_isr, partition.replication_factor):
            self.complete = set(partition.isr)

    @rule(broker=st.sampled_from(ALL))
    def catches_up(self, broker: BrokerId) -> None:
        partition, serving = self.partition, self.cluster.image.serving()
        if self.leader is None or broker not in partition.replicas or broker not in serving or broker in partition.isr:
            return
        self.complete.add(broker)
        assert isinstance(propose_isr(self.cluster, *partition.isr, broker), int)

    @rule(broker=st.sampled_from(ALL))
    def falls_behind(self, broker: BrokerId) -> None:
        partition = self.partition
        if self.leader is None or broker == self.leader or broker not in partition.isr:
            return
        propose_isr(self.cluster, *(member for member in partition.isr if member != broker))

    @rule()
    def everybody_is_there_and_catches_up(self) -> None:
        """Then a reassignment comes to its end."""
        target = self.partition.target
        for broker in ALL:
            self.starts(broker, SessionState.SERVING)
        self.reconciles()
        for broker in target:
            self.catches_up(broker)
        self.reconciles()
        assert (self.partition.replicas, self.partition.is_reassigned) == (target, False)
        assert set(self.partition.isr) == set(target)

    @invariant()
    def the_record_is_sound(self) -> None:
        partition = self.partition
        replicas = set(partition.replicas)
        assert len(replicas) == len(partition.replicas)
        assert {*partition.isr, *partition.eligible, *partition.adding, *partition.removing} <= replicas
        assert partition.isr
        assert not set(partition.isr) & set(partition.eligible)
        assert partition.target
        assert set(partition.original) == self.original
        assert {*partition.isr, *partition.eligible} & self.complete
        assert partition.leader is None or partition.leader in partition.isr


PartitionsThatMove.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestPartitionsThatMove = PartitionsThatMove.TestCase
