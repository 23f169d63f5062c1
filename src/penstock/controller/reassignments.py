"""Partitions that move to other brokers (KIP-455): begun, changed, given up. Its end is in elections.py.

What must stay true:

- While a partition moves, those who held it still do: the new ones join, catch up, come into sync; then the others go.
- Nobody leaves the in-sync set without one being left in it, or eligible, that serves.
- A target can be changed on the way, and given up at any time: what was before is what is not among the added ones.
- A reassignment that is refused changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from penstock.controller.commands import AlterReassignments, Reassignment, ReassignmentResult
from penstock.controller.decision import Decision, Writes
from penstock.controller.elections import Brokers, TopicRules, changed, completed, held, still_eligible, topic_rules
from penstock.controller.features import check_marked_replicas
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.metadata.image import ClusterImage, PartitionImage
from penstock.metadata.records import partition_key


def alter_reassignments(
    command: AlterReassignments, image: ClusterImage, config: BrokerConfig
) -> Decision[tuple[ReassignmentResult, ...]]:
    check_marked_replicas(image)
    asked = Counter(wanted.topic_partition for wanted in command.reassignments)
    brokers = Brokers.of(image)
    writes = Writes()
    results = []
    for wanted in command.reassignments:
        topic_partition = wanted.topic_partition
        error = None
        try:
            if asked[topic_partition] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"the request names {topic_partition} more than once")
            before = image.partition(topic_partition)
            if before is None:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic_partition}")
            topic = image.topics[topic_partition.topic]
            rules = topic_rules(topic.configs, config)
            after = changed(before, _altered(wanted, before, command, image, brokers, rules))
            if after is not None:
                key = partition_key(topic.topic_id, topic_partition.partition)
                writes.put(key, after.record(), mod_revision=before.mod_revision)
        except BrokerError as refused:
            error = refused
        results.append(ReassignmentResult(topic_partition, error))
    return Decision(writes.transactions(), tuple(results))


def _altered(
    wanted: Reassignment,
    partition: PartitionImage,
    command: AlterReassignments,
    image: ClusterImage,
    brokers: Brokers,
    rules: TopicRules,
) -> PartitionImage:
    if wanted.replicas is None:
        return _cancelled(wanted.topic_partition, partition, brokers, rules)
    _check_target(wanted.replicas, partition, image)
    if not command.allow_replication_factor_change and len(wanted.replicas) != len(partition.target):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor of {wanted.topic_partition} would change from {len(partition.target)} "
            f"to {len(wanted.replicas)}",
        )
    return completed(_begun(partition, wanted.replicas, rules), brokers)


def _check_target(replicas: tuple[BrokerId, ...], partition: PartitionImage, image: ClusterImage) -> None:
    if not replicas:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition has at least one replica")
    if len(set(replicas)) != len(replicas):
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"two replicas on one broker in {list(replicas)}")
    for broker_id in replicas:
        if broker_id not in image.brokers:
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {broker_id}")
        if broker_id in image.draining() and broker_id not in partition.replicas:
            raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"broker {broker_id} is being drained")


def _begun(partition: PartitionImage, target: tuple[BrokerId, ...], rules: TopicRules) -> PartitionImage:
    original = partition.original
    replicas = (*target, *(replica for replica in partition.replicas if replica not in target))
    begun = replace(
        partition,
        replicas=replicas,
        adding=tuple(replica for replica in replicas if replica not in original),
        removing=tuple(replica for replica in replicas if replica not in target),
    )
    # With a smaller target fewer may be needed to commit: then those who left before may soon lack something.
    return replace(begun, eligible=still_eligible(begun, begun.isr, rules))


def _cancelled(
    topic_partition: TopicPartition, partition: PartitionImage, brokers: Brokers, rules: TopicRules
) -> PartitionImage:
    """As it was. Refused where none of those that it had could lead without a loss, also where losses are allowed:
    nothing is broken, the move can go on.
    """
    if not partition.is_reassigned:
        raise BrokerError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic_partition} is not being reassigned")
    original = partition.original
    leads_on = partition.leader in original
    reverted = replace(
        partition,
        replicas=original,
        adding=(),
        removing=(),
        isr=tuple(member for member in partition.isr if member in original),
        eligible=tuple(replica for replica in partition.eligible if replica in original),
        spoilt=tuple(replica for replica in partition.spoilt if replica in original),
        leader=partition.leader if leads_on else None,
        leader_broker_epoch=partition.leader_broker_epoch if leads_on else 0,
    )
    after = held(reverted, brokers, replace(rules, allows_unclean=False))
    is_led = any(member in brokers.serving for member in partition.isr)
    if not after.isr or (is_led and not any(member in brokers.serving for member in after.isr)):
        raise BrokerError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic_partition} cannot go back to {list(original)}: none of them is there and in sync",
        )
    return after
