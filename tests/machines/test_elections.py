"""Who leads when brokers come and go, and what must hold whatever order they do it in."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller.commands import (
    AlterOperation,
    AlterPartition,
    ElectionType,
    ElectLeaders,
    ProposedIsr,
    Reconcile,
    ResignedReplica,
    ResignReplicas,
)
from penstock.controller.elections import led_by_others
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch, TopicPartition
from penstock.metadata.image import PartitionImage
from penstock.metadata.records import SessionState

ALL = (ONE, TWO, THREE)


def a_cluster(min_isr: int = 2, **configs: str) -> ACluster:
    """orders-0 on three brokers, led by the first."""
    cluster = ACluster(*ALL).with_features()
    overrides = {"min.insync.replicas": str(min_isr)} | {name.replace("_", "."): v for name, v in configs.items()}
    cluster.create("orders", -1, -1, assignments=((0, ALL),), configs=tuple(overrides.items()))
    return cluster


def after(cluster: ACluster) -> PartitionImage:
    cluster.ask(Reconcile())
    return cluster.partition("orders")


def leader_of(cluster: ACluster) -> BrokerId | None:
    """A leader whose session is over is none, whatever the record says."""
    partition = cluster.partition("orders")
    is_led = partition.leader is not None and (
        cluster.image.session_epoch(partition.leader) == partition.leader_broker_epoch
    )
    return partition.leader if is_led else None


def test_given_a_leader_that_dies_then_the_next_in_sync_replica_leads_in_a_new_epoch() -> None:
    cluster = a_cluster()
    cluster.broker_dies(ONE)

    partition = after(cluster)

    assert (partition.leader, partition.isr, partition.eligible) == (TWO, (TWO, THREE), ())
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    assert partition.leader_broker_epoch == cluster.image.session_epoch(TWO)


def test_given_a_follower_that_dies_then_it_leaves_the_in_sync_set_and_the_leader_stays() -> None:
    cluster = a_cluster()
    cluster.broker_dies(THREE)

    partition = after(cluster)

    assert (partition.leader, partition.isr, partition.leader_epoch) == (ONE, (ONE, TWO), 0)


def test_given_a_leader_that_starts_again_then_it_has_to_be_elected_again() -> None:
    cluster = a_cluster()
    cluster.broker_starts(ONE, SessionState.STARTING)

    partition = after(cluster)

    assert (partition.leader, partition.isr) == (TWO, (TWO, THREE))


def test_given_a_sole_replica_that_starts_again_at_once_then_it_leads_in_a_new_epoch() -> None:
    cluster = ACluster(ONE)
    cluster.create("orders")
    epoch = cluster.broker_starts(ONE)

    partition = after(cluster)

    assert (partition.leader, partition.isr, partition.leader_epoch) == (ONE, (ONE,), 1)
    assert partition.leader_broker_epoch == epoch


def test_given_too_few_in_sync_then_those_who_left_stay_eligible_and_lead_when_the_last_one_is_gone() -> None:
    cluster = a_cluster()
    cluster.broker_dies(THREE)
    after(cluster)
    cluster.broker_dies(TWO)

    alone = after(cluster)
    cluster.broker_dies(ONE)
    nobody = after(cluster), leader_of(cluster)
    cluster.broker_starts(THREE)
    still_nobody = after(cluster), leader_of(cluster)
    cluster.broker_starts(TWO)
    eligible = after(cluster)

    # Two and one could commit without three, so three may lack what they committed. One alone commits nothing.
    assert (alone.leader, alone.isr, alone.eligible) == (ONE, (ONE,), (TWO,))
    assert nobody == still_nobody == (alone, None)
    assert (eligible.leader, eligible.isr, eligible.eligible) == (TWO, (TWO,), (ONE,))


def test_given_a_topic_that_may_lose_records_when_nobody_else_is_left_then_any_replica_leads() -> None:
    cluster = a_cluster(min_isr=1, unclean_leader_election_enable="true")
    cluster.broker_dies(THREE)
    after(cluster)
    cluster.broker_dies(TWO)
    after(cluster)
    cluster.broker_dies(ONE)
    after(cluster)
    cluster.broker_starts(THREE)

    partition = after(cluster)

    assert (partition.leader, partition.isr, partition.eligible) == (THREE, (THREE,), ())


def test_given_a_broker_that_stops_then_others_lead_first_and_what_nobody_else_can_lead_stays() -> None:
    cluster = a_cluster()
    cluster.create("alone", -1, -1, assignments=((0, (ONE,)),))
    before = cluster.partition("alone")
    cluster.broker_becomes(ONE, SessionState.STOPPING)

    partition = after(cluster)

    assert (partition.leader, partition.isr) == (TWO, (TWO, THREE))
    assert cluster.partition("alone") == before


def test_given_a_topic_that_may_commit_with_fewer_replicas_from_now_on_then_nobody_stays_eligible() -> None:
    cluster = a_cluster()
    cluster.broker_dies(THREE)
    cluster.broker_dies(TWO)
    before = after(cluster)

    cluster.alter_topic("orders", ("min.insync.replicas", AlterOperation.SET, "1"))
    cluster.broker_dies(ONE)
    cluster.broker_starts(TWO)
    partition = after(cluster)

    assert before.eligible == (TWO, THREE)
    assert (leader_of(cluster), partition.isr, partition.eligible) == (None, (ONE,), ())


def test_given_a_replicated_topic_when_created_then_it_says_itself_how_many_replicas_it_needs() -> None:
    cluster = ACluster(*ALL).with_features()
    chosen = ACluster(*ALL, min_insync_replicas="1")

    assert cluster.create("three", 1, 3).configs == {"min.insync.replicas": "2"}
    assert cluster.create("two", 1, 2).configs == {"min.insync.replicas": "1"}
    assert cluster.create("one", 1, 1).configs == {}
    assert cluster.create("said", 1, 3, configs=(("min.insync.replicas", "3"),)).configs["min.insync.replicas"] == "3"
    assert chosen.create("three", 1, 3).configs == {"min.insync.replicas": "1"}


def test_given_partitions_in_order_when_reconciled_then_nothing_is_written() -> None:
    cluster = a_cluster()
    before = cluster.transactions

    after(cluster)

    assert cluster.transactions == before


def elect(cluster: ACluster, kind: ElectionType, *partitions: int) -> list[ErrorCode | None]:
    wanted = tuple(TopicPartition("orders", partition) for partition in partitions) or None
    results = cluster.ask(ElectLeaders(kind, wanted))
    return [None if result.error is None else result.error.code for result in results]


def test_given_a_first_replica_that_is_back_when_it_is_to_lead_then_it_does_in_a_new_epoch() -> None:
    cluster = a_cluster()
    cluster.broker_dies(ONE)
    after(cluster)
    cluster.broker_starts(ONE)

    behind = elect(cluster, ElectionType.PREFERRED, 0)
    propose_isr(cluster, *ALL)
    in_sync = elect(cluster, ElectionType.PREFERRED, 0)

    assert behind == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    assert in_sync == [None]
    partition = cluster.partition("orders")
    assert (partition.leader, partition.leader_epoch, set(partition.isr)) == (ONE, 2, set(ALL))
    assert elect(cluster, ElectionType.PREFERRED, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert elect(cluster, ElectionType.PREFERRED) == []  # nowhere is anything to be done
    assert elect(cluster, ElectionType.PREFERRED, 7) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_given_nobody_who_holds_everything_when_any_replica_is_to_lead_then_one_does() -> None:
    cluster = a_cluster(min_isr=1)
    for broker in (THREE, TWO, ONE):
        cluster.broker_dies(broker)
        after(cluster)

    nobody = elect(cluster, ElectionType.UNCLEAN, 0)
    cluster.broker_starts(THREE)
    led = elect(cluster, ElectionType.UNCLEAN, 0)

    assert nobody == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    assert led == [None]
    partition = cluster.partition("orders")
    assert (leader_of(cluster), partition.isr) == (THREE, (THREE,))
    assert elect(cluster, ElectionType.UNCLEAN, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    with pytest.raises(BrokerError):
        cluster.ask(ElectLeaders(2))


def test_given_a_broker_that_came_back_then_what_others_lead_for_it_is_found_if_it_is_more_than_allowed() -> None:
    cluster = ACluster(*ALL).with_features()
    cluster.create("orders", -1, -1, assignments=tuple((index, (ONE, TWO)) for index in range(10)))
    assert led_by_others(cluster.image, 10) == ()
    cluster.broker_dies(ONE)
    after(cluster)
    cluster.broker_starts(ONE)
    assert led_by_others(cluster.image, 10) == ()  # it is not in sync yet

    propose_isr(cluster, ONE, TWO)
    assert led_by_others(cluster.image, 10) == ()
    assert led_by_others(cluster.image, 9) == (TopicPartition("orders", 0),)


def propose_isr(cluster: ACluster, *isr: BrokerId) -> None:
    """By the leader of orders-0."""
    partition = cluster.partition("orders")
    assert partition.leader is not None
    proposal = ProposedIsr(
        cluster.image.topics["orders"].topic_id,
        0,
        LeaderEpoch(partition.leader_epoch),
        partition.partition_epoch,
        isr,
        tuple(-1 if (epoch := cluster.image.session_epoch(each)) is None else epoch for each in isr),
    )
    (answer,) = cluster.ask(AlterPartition(partition.leader, partition.leader_broker_epoch, (proposal,)))
    assert isinstance(answer.outcome, int), answer.outcome


def resigned(
    cluster: ACluster, replica: BrokerId, *, is_spoilt: bool, speaker: BrokerId | None = None
) -> BrokerError | None:
    speaker = speaker or replica
    epoch = cluster.image.session_epoch(speaker)
    assert epoch is not None
    lost = ResignedReplica(cluster.image.topics["orders"].topic_id, 0, replica, is_spoilt)
    (result,) = cluster.ask(ResignReplicas(speaker, epoch, (lost,)))
    return result.error


def test_given_a_leader_with_a_damaged_log_then_another_leads_and_it_is_elected_again_only_when_it_has_caught_up() -> (
    None
):
    cluster = a_cluster()

    assert resigned(cluster, ONE, is_spoilt=True) is None

    partition = cluster.partition("orders")
    assert (partition.leader, partition.isr, partition.spoilt) == (TWO, (TWO, THREE), (ONE,))
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    for broker in (TWO, THREE):
        cluster.broker_dies(broker)
    assert after(cluster).leader != ONE
    cluster.broker_starts(TWO)
    assert (after(cluster).leader, cluster.partition("orders").eligible) == (TWO, (THREE,))
    propose_isr(cluster, TWO, ONE)
    assert cluster.partition("orders").spoilt == ()
    cluster.broker_dies(TWO)
    assert after(cluster).leader == ONE


def test_given_a_follower_with_a_damaged_log_then_the_leader_begins_a_new_epoch_so_that_nothing_it_said_counts() -> (
    None
):
    cluster = a_cluster()

    assert resigned(cluster, THREE, is_spoilt=True) is None

    partition = cluster.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_epoch) == (ONE, (ONE, TWO), 1)
    assert leader_of(cluster) == ONE


def test_given_the_last_in_sync_replica_when_its_log_is_damaged_then_nobody_leads_until_somebody_asks_for_loss() -> (
    None
):
    cluster = a_cluster(min_isr=1)
    for broker in (TWO, THREE):
        cluster.broker_dies(broker)
    assert after(cluster).isr == (ONE,)
    cluster.broker_starts(TWO)

    assert resigned(cluster, ONE, is_spoilt=True) is None

    partition = after(cluster)
    assert (partition.leader, partition.isr, partition.spoilt) == (None, (ONE,), (ONE,))
    unclean = ElectLeaders(ElectionType.UNCLEAN, (TopicPartition("orders", 0),))
    cluster.broker_dies(TWO)
    (result,) = cluster.ask(unclean)
    assert result.error is None
    partition = cluster.partition("orders")
    assert (leader_of(cluster), partition.isr, partition.spoilt) == (ONE, (ONE,), ())


def test_given_replicas_that_lost_their_tails_when_they_come_back_one_by_one_then_the_last_is_elected() -> None:
    cluster = a_cluster()
    for broker in ALL:
        cluster.broker_dies(broker)
    for broker in ALL:
        cluster.broker_starts(broker, SessionState.STARTING)
        assert resigned(cluster, broker, is_spoilt=False) is None
        cluster.broker_becomes(broker, SessionState.SERVING)
        after(cluster)

    partition = cluster.partition("orders")
    assert (leader_of(cluster), partition.isr, partition.spoilt) == (THREE, (THREE,), ())


def test_given_an_in_sync_replica_alone_that_lost_its_tail_then_those_who_are_eligible_are_preferred() -> None:
    cluster = a_cluster(min_isr=2)
    for broker in (TWO, THREE):
        cluster.broker_dies(broker)
        after(cluster)
    assert cluster.partition("orders").eligible == (THREE,)
    cluster.broker_starts(ONE, SessionState.STARTING)

    assert resigned(cluster, ONE, is_spoilt=False) is None

    partition = cluster.partition("orders")
    assert (partition.isr, partition.eligible) == ((THREE,), ())
    cluster.broker_becomes(ONE, SessionState.SERVING)
    assert after(cluster).isr == (THREE,)
    cluster.broker_starts(THREE)
    assert after(cluster).leader == THREE


def test_given_a_replica_that_is_another_brokers_when_one_resigns_for_it_then_only_the_leader_may() -> None:
    cluster = a_cluster()

    refused = resigned(cluster, THREE, is_spoilt=True, speaker=TWO)

    assert refused is not None
    assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    cluster.broker_dies(THREE)
    after(cluster)
    assert resigned(cluster, THREE, is_spoilt=True, speaker=ONE) is None
    assert cluster.partition("orders").spoilt == (THREE,)


def test_given_a_replica_that_is_in_sync_again_when_its_leader_gives_it_up_too_late_then_it_stays() -> None:
    cluster = a_cluster()

    refused = resigned(cluster, THREE, is_spoilt=True, speaker=ONE)

    assert refused is not None
    assert refused.code is ErrorCode.INELIGIBLE_REPLICA
    assert cluster.partition("orders").spoilt == ()


class BrokersThatComeAndGo(RuleBasedStateMachine):
    """With a model of who holds all that is committed: whoever is elected must."""

    @initialize(min_isr=st.integers(1, 3))
    def start(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.cluster = a_cluster(min_isr)
        self.complete = set(ALL)
        self.damaged: set[BrokerId] = set()

    @rule(broker=st.sampled_from(ALL), state=st.sampled_from(SessionState))
    def starts(self, broker: BrokerId, state: SessionState) -> None:
        self.cluster.broker_starts(broker, state)

    @rule(broker=st.sampled_from(ALL), state=st.sampled_from(SessionState))
    def becomes(self, broker: BrokerId, state: SessionState) -> None:
        if broker in self.cluster.image.sessions:
            self.cluster.broker_becomes(broker, state)

    @rule(broker=st.sampled_from(ALL))
    def dies(self, broker: BrokerId) -> None:
        if broker in self.cluster.image.sessions:
            self.cluster.broker_dies(broker)

    @rule(broker=st.sampled_from(ALL))
    def finds_its_log_damaged(self, broker: BrokerId) -> None:
        if broker in self.cluster.image.sessions:
            before = self.cluster.partition("orders")
            self.damaged.add(broker)
            self.complete.discard(broker)
            assert resigned(self.cluster, broker, is_spoilt=True) is None
            assert self.cluster.partition("orders").leader_epoch == before.leader_epoch + 1

    @rule(broker=st.sampled_from(ALL))
    def starts_without_its_tail(self, broker: BrokerId) -> None:
        self.cluster.broker_starts(broker, SessionState.STARTING)
        assert resigned(self.cluster, broker, is_spoilt=False) is None
        if broker not in self.cluster.partition("orders").isr:  # else it is the best there is
            self.complete.discard(broker)

    @rule()
    def reconciles(self) -> None:
        before = self.cluster.partition("orders")
        partition = after(self.cluster)
        assert partition.leader_epoch - before.leader_epoch in (0, 1)
        leader = leader_of(self.cluster)
        if leader is not None:
            if (partition.leader, partition.leader_epoch) != (before.leader, before.leader_epoch):
                assert leader in self.complete
            assert leader not in self.damaged
            session = self.cluster.image.sessions[leader]
            assert session.state is SessionState.SERVING or not self._others_could_lead(partition)
        else:
            assert not self._others_could_lead(partition)

    def _others_could_lead(self, partition: PartitionImage) -> bool:
        candidates = {*partition.isr, *partition.eligible} - {*partition.spoilt}
        return bool(self.cluster.image.serving().keys() & candidates)

    @rule()
    def commits(self) -> None:
        """The leader of the moment commits a record, if it may; who is not in sync lacks it from then on."""
        partition = self.cluster.partition("orders")
        if leader_of(self.cluster) is not None and len(partition.isr) >= self.min_isr:
            self.complete = set(partition.isr)
            assert not self.complete & self.damaged

    @rule(broker=st.sampled_from(ALL))
    def catches_up(self, broker: BrokerId) -> None:
        """The leader has sent everything to a follower, and takes it into the in-sync set."""
        partition = self.cluster.partition("orders")
        if leader_of(self.cluster) is None or broker not in self.cluster.image.serving() or broker in partition.isr:
            return
        self.complete.add(broker)
        self.damaged.discard(broker)  # it has begun anew
        propose_isr(self.cluster, *partition.isr, broker)

    @invariant()
    def the_record_is_sound(self) -> None:
        partition = self.cluster.partition("orders")
        assert set(partition.isr) <= set(partition.replicas)
        assert set(partition.eligible) <= set(partition.replicas)
        assert not set(partition.isr) & set(partition.eligible)
        assert {*partition.isr, *partition.eligible} & (self.complete | self.damaged)
        assert set(partition.spoilt) == self.damaged
        assert not set(partition.eligible) & self.damaged
        assert leader_of(self.cluster) not in self.damaged


BrokersThatComeAndGo.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestBrokersThatComeAndGo = BrokersThatComeAndGo.TestCase
