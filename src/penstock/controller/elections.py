"""Who leads a partition when brokers come and go.

What must stay true:

- A leader is elected among replicas that hold everything committed: the in-sync set, then the eligible replicas
  (KIP-966). Any other replica leads only where the topic allows that records are lost (unclean.leader.election.enable).
- A broker that is not serving leaves the in-sync set while another member serves. The last ones stay in it: they hold
  everything, and wait for their broker.
- A replica whose log is spoilt is not elected before it has begun anew and is in sync again, by whatever rule. Only who
  asks for an unclean election gets it, and only if no other replica is there.
- While the in-sync set is too small to commit anything (min.insync.replicas), whoever leaves it stays eligible.
- A reassignment ends when all replicas of its target are in sync. Whoever is none of them leaves the in-sync set with
  that, and a new leader epoch begins: nothing that it said or that was said of it before counts any more.
- A decision depends on the present alone. What a controller missed, the next one finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from penstock.controller.commands import ElectionType, ElectLeaderResult, ElectLeaders
from penstock.controller.decision import Decision, Writes
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.core.topic_config import topic_config
from penstock.metadata.image import ClusterImage, PartitionImage, TopicImage
from penstock.metadata.records import SessionState, partition_key


@dataclass(frozen=True, slots=True)
class Brokers:
    """The broker epochs of those that are alive: who may lead, and who still leads until somebody else can."""

    serving: Mapping[BrokerId, int]
    stopping: Mapping[BrokerId, int]

    @staticmethod
    def of(image: ClusterImage) -> Brokers:
        stopping = {
            each.broker_id: each.epoch for each in image.sessions.values() if each.state is SessionState.STOPPING
        }
        return Brokers(image.serving(), stopping)


@dataclass(frozen=True, slots=True)
class TopicRules:
    min_insync_replicas: int
    allows_unclean: bool


def reconcile(image: ClusterImage, config: BrokerConfig) -> Decision[tuple[TopicPartition, ...]]:
    """Make every partition fit the brokers that are there. The reply names the partitions that change leaders."""
    brokers = Brokers.of(image)
    writes = Writes()
    elected = []
    for topic in image.topics.values():
        rules: TopicRules | None = None
        for index, partition in enumerate(topic.partitions):
            if is_settled(partition, brokers):
                continue
            rules = rules or topic_rules(topic.configs, config)
            after = fitted(partition, brokers, rules)
            if after is None:
                continue
            writes.put(partition_key(topic.topic_id, index), after.record(), mod_revision=partition.mod_revision)
            if after.leader_epoch != partition.leader_epoch:
                elected.append(TopicPartition(topic.name, index))
    return Decision(writes.transactions(), tuple(elected))


def elect_leaders(
    command: ElectLeaders, image: ClusterImage, config: BrokerConfig
) -> Decision[tuple[ElectLeaderResult, ...]]:
    """As somebody asks, or for balance. A leader that serves makes room for the first replica only, if in sync."""
    if command.election_type not in tuple(ElectionType):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no election of type {command.election_type}")
    brokers = Brokers.of(image)
    everywhere = command.partitions is None
    wanted = _all_partitions(image) if command.partitions is None else command.partitions
    writes = Writes()
    results = []
    for topic_partition in dict.fromkeys(wanted):
        error = None
        try:
            _elect(topic_partition, ElectionType(command.election_type), image, brokers, config, writes)
        except BrokerError as refused:
            error = refused
        if error is None or not everywhere:
            results.append(ElectLeaderResult(topic_partition, error))
    return Decision(writes.transactions(), tuple(results))


def led_by_others(image: ClusterImage, allowed_percentage: int) -> tuple[TopicPartition, ...]:
    """Partitions whose first replica could lead and does not, of brokers for which those are too many of theirs."""
    serving = image.serving()
    preferred: Counter[BrokerId] = Counter()
    elsewhere: dict[BrokerId, list[TopicPartition]] = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            preferred[first] += 1
            if partition.leader != first and first in serving and first in _unspoilt(partition, partition.isr):
                elsewhere.setdefault(first, []).append(TopicPartition(topic.name, index))
    return tuple(
        topic_partition
        for broker_id, partitions in elsewhere.items()
        if 100 * len(partitions) > allowed_percentage * preferred[broker_id]
        for topic_partition in partitions
    )


def _all_partitions(image: ClusterImage) -> list[TopicPartition]:
    return [
        TopicPartition(name, index) for name, topic in image.topics.items() for index in range(len(topic.partitions))
    ]


def _elect(
    topic_partition: TopicPartition,
    kind: ElectionType,
    image: ClusterImage,
    brokers: Brokers,
    config: BrokerConfig,
    writes: Writes,
) -> None:
    partition = image.partition(topic_partition)
    if partition is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}")
    topic = image.topics[topic_partition.topic]
    rules = topic_rules(topic.configs, config)
    if kind is ElectionType.PREFERRED:
        after = _with_preferred_leader(topic_partition, partition, brokers)
    else:
        after = _with_any_leader(topic_partition, partition, brokers, rules)
    key = partition_key(topic.topic_id, topic_partition.partition)
    writes.put(key, after.record(), mod_revision=partition.mod_revision)


def _with_preferred_leader(
    topic_partition: TopicPartition, partition: PartitionImage, brokers: Brokers
) -> PartitionImage:
    preferred = partition.replicas[0]
    if partition.leader == preferred and brokers.serving.get(preferred) == partition.leader_broker_epoch:
        raise BrokerError(ErrorCode.ELECTION_NOT_NEEDED, f"{topic_partition} is led by its first replica")
    if preferred not in brokers.serving or preferred not in _unspoilt(partition, partition.isr):
        raise BrokerError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} is not in sync for {topic_partition}"
        )
    after = changed(partition, _led(partition, preferred, partition.isr, partition.eligible, brokers))
    assert after is not None
    return after


def _with_any_leader(
    topic_partition: TopicPartition, partition: PartitionImage, brokers: Brokers, rules: TopicRules
) -> PartitionImage:
    if partition.leader is not None and brokers.serving.get(partition.leader) == partition.leader_broker_epoch:
        raise BrokerError(ErrorCode.ELECTION_NOT_NEEDED, f"{topic_partition} has a leader")
    after = fitted(partition, brokers, replace(rules, allows_unclean=True))
    if after is None:
        after = _with_spoilt_leader(partition, brokers)
    if after is None:
        raise BrokerError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {topic_partition} is there")
    return after


def _with_spoilt_leader(partition: PartitionImage, brokers: Brokers) -> PartitionImage | None:
    """The last copy there is, which somebody may have mended: whoever asks for it has said that loss is all right."""
    spoilt = tuple(each for each in partition.spoilt if each in brokers.serving)
    if not spoilt:
        return None
    elected = _preferred(partition, spoilt)
    remaining = tuple(each for each in partition.spoilt if each != elected)
    return changed(partition, _led(replace(partition, spoilt=remaining), elected, (elected,), (), brokers))


def topic_rules(overrides: Mapping[str, str], config: BrokerConfig) -> TopicRules:
    """Only what the topic itself says of min.insync.replicas counts here: brokers may differ in their defaults, and who
    leads could commit with fewer replicas than the controller believes to be needed.
    """
    settings = topic_config(overrides, config)
    is_certain = "min.insync.replicas" in overrides
    return TopicRules(settings.min_insync_replicas if is_certain else 1, settings.unclean_leader_election_enable)


def forget_eligible(topic: TopicImage, writes: Writes) -> None:
    """Before a topic may commit with fewer replicas than it did: those who left then may lack something soon."""
    for index, partition in enumerate(topic.partitions):
        if partition.eligible:
            after = replace(partition, eligible=(), partition_epoch=partition.partition_epoch + 1)
            writes.put(partition_key(topic.topic_id, index), after.record(), mod_revision=partition.mod_revision)


def is_settled(partition: PartitionImage, brokers: Brokers) -> bool:
    """A short way past partitions that need nothing, which is most of them most of the time."""
    leader = partition.leader
    return (
        leader is not None
        and brokers.serving.get(leader) == partition.leader_broker_epoch
        and all(member in brokers.serving for member in partition.isr)
        and not _has_target_in_sync(partition)
    )


def fitted(partition: PartitionImage, brokers: Brokers, rules: TopicRules) -> PartitionImage | None:
    """The partition as these brokers can hold it; None when it is so already."""
    return changed(partition, completed(held(partition, brokers, rules), brokers))


def held(partition: PartitionImage, brokers: Brokers, rules: TopicRules) -> PartitionImage:
    """In sync are those who serve, and one of them leads, if any does."""
    serving = brokers.serving
    isr = tuple(member for member in _unspoilt(partition, partition.isr) if member in serving)
    if not isr:
        return _without_serving_members(partition, brokers, rules)
    leader = partition.leader
    if leader not in isr or serving.get(leader) != partition.leader_broker_epoch:
        leader = _preferred(partition, isr)
    return _led(partition, leader, isr, still_eligible(partition, isr, rules), brokers)


def _without_serving_members(partition: PartitionImage, brokers: Brokers, rules: TopicRules) -> PartitionImage:
    eligible = tuple(each for each in _unspoilt(partition, partition.eligible) if each in brokers.serving)
    if eligible:
        elected = _preferred(partition, eligible)
        return _led(partition, elected, (elected,), still_eligible(partition, (elected,), rules), brokers)
    leader = partition.leader
    if leader is not None and brokers.stopping.get(leader) == partition.leader_broker_epoch:
        return partition  # nobody can take over: it leads to its end
    others = tuple(each for each in _unspoilt(partition, partition.replicas) if each in brokers.serving)
    if rules.allows_unclean and others:
        elected = _preferred(partition, others)
        return _led(partition, elected, (elected,), (), brokers)
    return partition  # a leader whose session is over leads nothing, whatever the record says


def completed(partition: PartitionImage, brokers: Brokers) -> PartitionImage:
    """A reassignment is over when its target is in sync: from then on, those are the replicas."""
    target = partition.target
    if not _has_target_in_sync(partition) or any(replica not in brokers.serving for replica in target):
        return partition
    leader = partition.leader
    if leader not in target or brokers.serving[leader] != partition.leader_broker_epoch:
        leader = target[0]
    isr = tuple(member for member in partition.isr if member in target)
    spoilt = tuple(replica for replica in partition.spoilt if replica in target)
    return _led(replace(partition, replicas=target, adding=(), removing=(), spoilt=spoilt), leader, isr, (), brokers)


def _has_target_in_sync(partition: PartitionImage) -> bool:
    in_sync = _unspoilt(partition, partition.isr)
    return partition.is_reassigned and all(replica in in_sync for replica in partition.target)


def _unspoilt(partition: PartitionImage, replicas: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(each for each in replicas if each not in partition.spoilt) if partition.spoilt else replicas


def _preferred(partition: PartitionImage, candidates: Collection[BrokerId]) -> BrokerId:
    return next(replica for replica in partition.replicas if replica in candidates)


def still_eligible(partition: PartitionImage, isr: tuple[BrokerId, ...], rules: TopicRules) -> tuple[BrokerId, ...]:
    """Nothing is committed while the in-sync set is too small, so whoever held everything then still does."""
    if len(isr) >= min(rules.min_insync_replicas, partition.replication_factor):
        return ()
    held_everything = _unspoilt(partition, (*partition.isr, *partition.eligible))
    return tuple(replica for replica in partition.replicas if replica in held_everything and replica not in isr)


def _led(
    partition: PartitionImage,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    eligible: tuple[BrokerId, ...],
    brokers: Brokers,
) -> PartitionImage:
    broker_epoch = brokers.serving[leader]
    return replace(partition, leader=leader, leader_broker_epoch=broker_epoch, isr=isr, eligible=eligible)


def changed(before: PartitionImage, after: PartitionImage) -> PartitionImage | None:
    """`after` with its epochs; None when nothing has changed.

    A replica that goes ends a leader epoch as a leader does (as in Kafka). It may come back, with an empty log and in
    the same process, and what it said to have before must not be taken for what it has then.
    """
    if after == before:
        return None
    is_led_anew = (after.leader, after.leader_broker_epoch) != (before.leader, before.leader_broker_epoch)
    begins_epoch = is_led_anew or any(replica not in after.replicas for replica in before.replicas)
    return replace(
        after,
        leader_epoch=before.leader_epoch + begins_epoch,
        partition_epoch=before.partition_epoch + 1,
    )
