"""The controller's decisions: brokers and what they lead, and what must hold after any series of commands."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller import decision
from penstock.controller.commands import (
    AllocateProducerIds,
    AlterOperation,
    AlterPartition,
    ClaimController,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    InitializeCluster,
    MorePartitions,
    NewTopic,
    ProducerIdBlock,
    ProposedIsr,
    Reconcile,
    RemoveUnclaimedPartitions,
    TopicReference,
)
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch, TopicId
from penstock.metadata.image import ClusterImage
from penstock.metadata.records import CLUSTER_KEY_KEY
from penstock.metadata.store import Snapshot, Transaction


def propose(cluster: ACluster, *isr: BrokerId, **other: int) -> int | ErrorCode:
    """Broker ONE, the leader of orders-0, asks for an in-sync set."""
    state = cluster.partition("orders")
    values = {
        "broker_epoch": cluster.image.brokers[ONE].epoch,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "partition": 0,
        "broker": ONE,
    } | other
    proposed = ProposedIsr(
        cluster.image.topics["orders"].topic_id,
        values["partition"],
        LeaderEpoch(values["leader_epoch"]),
        values["partition_epoch"],
        isr,
    )
    (result,) = cluster.ask(AlterPartition(BrokerId(values["broker"]), values["broker_epoch"], (proposed,)))
    return result.outcome.code if isinstance(result.outcome, BrokerError) else result.outcome


@pytest.fixture
def replicated() -> ACluster:
    cluster = ACluster(ONE, TWO, THREE)
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    return cluster


def test_given_the_leader_when_it_proposes_an_isr_then_accepted_in_the_next_partition_epoch(
    replicated: ACluster,
) -> None:
    shrunk = propose(replicated, ONE)
    shrunk_isr = replicated.partition("orders").isr
    grown = propose(replicated, TWO, ONE)

    assert (shrunk, shrunk_isr) == (1, (ONE,))
    assert (grown, replicated.partition("orders").isr) == (2, (TWO, ONE))
    assert replicated.partition("orders").leader_epoch == 0


def test_given_a_stale_or_impossible_isr_when_proposed_then_refused_with_kafkas_code(replicated: ACluster) -> None:
    assert propose(replicated, ONE, leader_epoch=-1) is ErrorCode.FENCED_LEADER_EPOCH
    assert propose(replicated, ONE, leader_epoch=1) is ErrorCode.INVALID_REQUEST
    assert propose(replicated, ONE, partition_epoch=9) is ErrorCode.INVALID_UPDATE_VERSION
    assert propose(replicated, ONE, partition=7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert propose(replicated, TWO) is ErrorCode.INVALID_REQUEST
    assert propose(replicated, ONE, ONE) is ErrorCode.INVALID_REQUEST
    assert propose(replicated, ONE, THREE) is ErrorCode.INELIGIBLE_REPLICA
    two_epoch = replicated.image.brokers[TWO].epoch
    assert propose(replicated, TWO, broker=TWO, broker_epoch=two_epoch) is ErrorCode.INVALID_REQUEST
    with pytest.raises(BrokerError) as stale:
        propose(replicated, ONE, broker_epoch=-1)
    assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert replicated.partition("orders").isr == (ONE, TWO)


def test_given_producer_id_blocks_when_allocated_then_they_never_overlap() -> None:
    cluster = ACluster(ONE)

    blocks = [cluster.ask(AllocateProducerIds()) for _ in range(3)]

    assert [(block.first, block.count) for block in blocks] == [(0, 1000), (1000, 1000), (2000, 1000)]


def test_given_a_store_of_a_cluster_when_initialized_again_then_it_stays_that_clusters() -> None:
    cluster = ACluster()

    assert cluster.ask(InitializeCluster("mine")) == "mine"
    assert cluster.ask(InitializeCluster("other")) == "mine"

    assert cluster.image.cluster_id == "mine"
    assert cluster.image.features == {"penstock.version": 2, "transaction.version": 2}


def test_given_a_store_when_initialized_then_it_has_a_key_that_stays_and_that_no_other_cluster_has() -> None:
    cluster, other = ACluster(), ACluster(ONE)  # each command has a seed of its own
    other.ask(AllocateProducerIds())
    cluster.ask(InitializeCluster("mine"))
    other.ask(InitializeCluster("other"))
    key = cluster.image.cluster_key

    cluster.ask(InitializeCluster("mine"))

    assert key is not None
    assert len(b64decode(key, validate=True)) == 32
    assert cluster.image.cluster_key == key != other.image.cluster_key


def test_given_a_store_of_a_release_without_keys_when_initialized_then_it_gets_one() -> None:
    cluster = ACluster()
    cluster.ask(InitializeCluster("mine"))
    cluster._commit(Transaction(deletes=(CLUSTER_KEY_KEY,)))
    without = cluster.image

    cluster.ask(InitializeCluster("mine"))

    assert without.cluster_key is None
    assert cluster.image.cluster_key is not None
    assert cluster.image.cluster_id == "mine"


def test_given_a_controller_when_its_session_is_over_then_another_can_claim_and_the_epoch_rises() -> None:
    cluster = ACluster(ONE, TWO)

    def claim(broker_id: BrokerId) -> int | ErrorCode:
        try:
            return cluster.ask(ClaimController(broker_id, cluster.image.brokers[broker_id].epoch))
        except BrokerError as refused:
            return refused.code

    assert claim(ONE) == 1
    assert claim(TWO) is ErrorCode.NOT_CONTROLLER
    cluster.broker_starts(ONE)  # again, which ends what it had before
    assert cluster.image.controller_id is None
    assert claim(TWO) == 2
    cluster.broker_dies(TWO)
    assert cluster.image.controller_id is None
    assert claim(TWO) is ErrorCode.STALE_BROKER_EPOCH
    assert claim(ONE) == 3
    assert cluster.image.controller_id == ONE


NAMES = st.sampled_from(["a", "a.b", "a_b", "c", ""])
BROKERS = st.sampled_from([ONE, TWO, THREE])
CRASHES = st.none() | st.integers(0, 3)  # after so many transactions of the command


class AnySeriesOfCommands(RuleBasedStateMachine):
    """Commands in any order, some of them cut short by a crash."""

    @initialize()
    def start(self) -> None:
        # Chunks so small that even these small commands take several transactions.
        self.normal_chunk, decision.CHUNK_OPERATIONS = decision.CHUNK_OPERATIONS, 2
        self.cluster = ACluster(ONE)
        self.blocks: list[ProducerIdBlock] = []
        self.seen_ids: dict[TopicId, str] = {}

    def teardown(self) -> None:
        decision.CHUNK_OPERATIONS = self.normal_chunk

    @rule(names=st.lists(NAMES, max_size=3), count=st.integers(-1, 3), factor=st.integers(-1, 3), crash=CRASHES)
    def create(self, names: list[str], count: int, factor: int, crash: int | None) -> None:
        self._ask(CreateTopics(tuple(NewTopic(name, count, factor) for name in names)), crash)

    @rule(name=NAMES, crash=CRASHES)
    def delete(self, name: str, crash: int | None) -> None:
        self._ask(DeleteTopics((TopicReference(name),)), crash)

    @rule(name=NAMES, count=st.integers(0, 6), crash=CRASHES)
    def add_partitions(self, name: str, count: int, crash: int | None) -> None:
        self._ask(CreatePartitions((MorePartitions(name, count),)), crash)

    @rule(broker=BROKERS)
    def broker_starts(self, broker: BrokerId) -> None:
        self.cluster.broker_starts(broker)

    @rule(crash=CRASHES)
    def reconcile(self, crash: int | None) -> None:
        self._ask(Reconcile(), crash)

    @rule(name=NAMES, value=st.sampled_from(["1", "2", "x"]))
    def alter(self, name: str, value: str) -> None:
        self.cluster.alter_topic(name, ("retention.ms", AlterOperation.SET, value))

    @rule(broker=BROKERS, isr=st.lists(BROKERS, max_size=3))
    def propose(self, broker: BrokerId, isr: list[BrokerId]) -> None:
        image = self.cluster.image
        if broker in image.brokers:
            proposals = tuple(
                ProposedIsr(topic.topic_id, 0, LeaderEpoch(state.leader_epoch), state.partition_epoch, tuple(isr))
                for topic in image.topics.values()
                for state in topic.partitions[:1]
            )
            self._ask(AlterPartition(broker, image.brokers[broker].epoch, proposals), crash=None)

    @rule()
    def allocate(self) -> None:
        self.blocks.append(self.cluster.ask(AllocateProducerIds()))

    @rule()
    def controller_starts(self) -> None:
        self.cluster.ask(RemoveUnclaimedPartitions())
        assert self.cluster.image.unclaimed_partitions == {}

    def _ask(self, command: Command[object], crash: int | None) -> None:
        self.cluster.stop_after = None if crash is None else self.cluster.transactions + crash
        try:
            self.cluster.ask(command)
        except InterruptedError:
            pass
        finally:
            self.cluster.stop_after = None

    @invariant()
    def the_leader_is_in_sync_and_everyone_in_sync_is_a_replica(self) -> None:
        for topic in self.cluster.image.topics.values():
            for state in topic.partitions:
                assert state.leader in state.isr
                assert set(state.isr) <= set(state.replicas)
                assert len(set(state.replicas)) == len(state.replicas)

    @invariant()
    def names_never_collide_and_an_id_has_one_name_for_ever(self) -> None:
        names = [name.replace(".", "_") for name in self.cluster.image.topics]
        assert len(set(names)) == len(names)
        for topic in self.cluster.image.topics.values():
            assert self.seen_ids.setdefault(topic.topic_id, topic.name) == topic.name

    @invariant()
    def producer_ids_are_given_out_once(self) -> None:
        firsts = [block.first for block in self.blocks]
        assert firsts == [1000 * number for number in range(len(firsts))]

    @invariant()
    def reading_the_store_gives_the_image(self) -> None:
        entries = tuple(self.cluster.content[key] for key in sorted(self.cluster.content))
        assert ClusterImage.of(Snapshot(self.cluster.image.revision, entries)) == self.cluster.image


TestAnySeriesOfCommands = AnySeriesOfCommands.TestCase
TestAnySeriesOfCommands.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
