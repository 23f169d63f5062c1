"""What a controller does of its own accord when brokers have come, or have gone for good; and letting one go.

Each decision depends on the present alone and is empty when there is nothing to do, so it may be asked for again at any
time, by any controller. Partitions that are being moved are left to whoever moves them, unless that is to a broker that
is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap

from msgspec.structs import replace

from penstock.controller.balance import Layout, Move, grown, healed
from penstock.controller.commands import (
    AlterReassignments,
    GrownTopic,
    Heal,
    Reassignment,
    UnregisterBroker,
)
from penstock.controller.configs import MIN_ISR
from penstock.controller.decision import Decision, Writes
from penstock.controller.features import can_mark_replicas
from penstock.controller.internal_topics import wanted_min_isr, wanted_replication_factor
from penstock.controller.reassignments import alter_reassignments
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.metadata.image import ClusterImage, TopicImage
from penstock.metadata.records import broker_configs_key, broker_key, session_key, topic_key

_NAMED = 3


def heal(command: Heal, image: ClusterImage, config: BrokerConfig) -> Decision[tuple[TopicPartition, ...]]:
    """Only of brokers that have no session now: one that came back meanwhile catches up by itself."""
    if not can_mark_replicas(image):
        return Decision((), ())
    gone = {broker_id for broker_id in command.broker_ids if broker_id not in image.sessions}
    lacking = {each for each, replicas in _targets(image) if not gone.isdisjoint(replicas)}
    if not lacking:
        return Decision((), ())
    led = {each for each in lacking if _has_leader(each, image)}
    return _moved(healed(Layout.of(image), gone, led), image, config)


def grow_internal_topics(image: ClusterImage, config: BrokerConfig) -> Decision[tuple[GrownTopic, ...]]:
    """More replicas where there are brokers for them, and the min.insync.replicas that goes with so many."""
    if not can_mark_replicas(image):
        return Decision((), ())
    growing: dict[str, int] = {}
    writes = Writes()
    for name in sorted(INTERNAL_TOPICS & image.topics.keys()):
        topic = image.topics[name]
        if any(each.is_reassigned or image.leader_of(each) is None for each in topic.partitions):
            continue
        present = min(len(each.replicas) for each in topic.partitions)
        wanted = wanted_replication_factor(name, image, config)
        if present < wanted:
            growing[name] = wanted
            _adapt_min_isr(topic, present, wanted, config, writes)
    if not growing:
        return Decision((), ())
    moved = _moved(grown(Layout.of(image), growing), image, config)
    return Decision(writes.transactions() + moved.transactions, tuple(starmap(GrownTopic, growing.items())))


def _adapt_min_isr(topic: TopicImage, present: int, wanted: int, config: BrokerConfig, writes: Writes) -> None:
    """Before the replicas come: no more are needed than a partition has, whatever the topic says (elections.py).

    Left alone if it is not what a topic with so many replicas gets by itself: then somebody has set it.
    """
    before, after = (str(wanted_min_isr(topic.name, factor, config)) for factor in (present, wanted))
    if before != after and topic.configs.get(MIN_ISR, before) == before:
        # It only ever rises, so whoever is eligible stays it.
        record = replace(topic.record(), configs={**topic.configs, MIN_ISR: after})
        writes.put(topic_key(topic.name), record, mod_revision=topic.mod_revision)


def _targets(image: ClusterImage) -> Iterable[tuple[TopicPartition, tuple[BrokerId, ...]]]:
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            yield TopicPartition(name, index), partition.target


def _has_leader(each: TopicPartition, image: ClusterImage) -> bool:
    partition = image.partition(each)
    return partition is not None and image.leader_of(partition) is not None


def _moved(moves: Iterable[Move], image: ClusterImage, config: BrokerConfig) -> Decision[tuple[TopicPartition, ...]]:
    reassignments = tuple(Reassignment(move.topic_partition, move.after) for move in moves)
    decision = alter_reassignments(AlterReassignments(reassignments), image, config)
    refused = [result.error for result in decision.reply if result.error is not None]
    if refused:
        raise refused[0]  # a plan that the controller itself has made of this image
    return Decision(decision.transactions, tuple(result.topic_partition for result in decision.reply))


def unregister_broker(command: UnregisterBroker, image: ClusterImage) -> Decision[BrokerId]:
    """Refused while the broker is alive or holds anything. (Kafka lets it go, with all replicas that it had.)

    Its id is free then: a broker with another data directory may have it.
    """
    broker_id = command.broker_id
    if broker_id not in image.brokers:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}")
    if broker_id in image.sessions:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"broker {broker_id} is alive and would register again: stop it first"
        )
    held = [TopicPartition(name, index) for name, index in _held(broker_id, image)]
    if held:
        more = f" and {len(held) - _NAMED} more" if len(held) > _NAMED else ""
        named = ", ".join(map(str, held[:_NAMED])) + more
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker_id} holds replicas of {named}, which would be lost for good: "
            f"`penstock broker drain {broker_id}` moves them",
        )
    writes = Writes()
    # It may be starting at this moment.
    writes.expect(session_key(broker_id), 0)
    writes.delete(broker_key(broker_id), mod_revision=image.mod_revisions[broker_key(broker_id)])
    if broker_id in image.broker_configs:
        writes.delete(broker_configs_key(broker_id))
    return Decision(writes.transactions(), broker_id)


def _held(broker_id: BrokerId, image: ClusterImage) -> Iterable[tuple[str, int]]:
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas:
                yield name, index
