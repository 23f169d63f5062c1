"""Replicas that say of themselves that they may lack what is committed, and must not be elected.

A replica lost something when its machine did, before its page cache was on disk; or its log is damaged, or was away for
so long that it cannot be brought up to date: then it is spoilt, and begins anew. What must stay true:

- Who resigns leaves the in-sync set and the eligible replicas, if another member holds what is committed. If none does,
  it is the best there is and stays: one that has only lost its tail is elected again, one that is spoilt is not.
- A replica becomes spoilt in a new leader epoch. So nothing counts any more that its old log told the leader, and it
  begins anew when it knows of that epoch, not before.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.commands import ResignedReplica, ResignReplicas, ResignResult
from penstock.controller.decision import Decision, Writes
from penstock.controller.elections import Brokers, TopicRules, changed, completed, held, topic_rules
from penstock.controller.features import check_marked_replicas
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, topic_id_to_text
from penstock.metadata.image import ClusterImage, PartitionImage, TopicImage
from penstock.metadata.records import partition_key


def resign_replicas(
    command: ResignReplicas, image: ClusterImage, config: BrokerConfig
) -> Decision[tuple[ResignResult, ...]]:
    if image.session_epoch(command.broker_id) != command.broker_epoch:
        raise BrokerError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {command.broker_id} has no session with the epoch {command.broker_epoch}",
        )
    brokers = Brokers.of(image)
    writes = Writes()
    results = []
    seen = set()
    for resigned in command.replicas:
        error = None
        try:
            if (resigned.topic_id, resigned.partition) in seen:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "one replica of a partition at a time")
            seen.add((resigned.topic_id, resigned.partition))
            if resigned.is_spoilt:
                check_marked_replicas(image)
            topic, partition = _find(resigned, command.broker_id, image)
            after = without(partition, resigned, brokers, topic_rules(topic.configs, config))
            is_known = resigned.replica in partition.spoilt and resigned.replica != command.broker_id
            if after is not None and not is_known:
                key = partition_key(topic.topic_id, resigned.partition)
                writes.put(key, after.record(), mod_revision=partition.mod_revision)
        except BrokerError as refused:
            error = refused
        results.append(ResignResult(resigned.topic_id, resigned.partition, error))
    return Decision(writes.transactions(), tuple(results))


def _find(resigned: ResignedReplica, speaker: BrokerId, image: ClusterImage) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic_by_id(resigned.topic_id)
    if topic is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id_to_text(resigned.topic_id)}"
        )
    if not 0 <= resigned.partition < len(topic.partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {resigned.partition}")
    partition = topic.partitions[resigned.partition]
    what = f"{topic.name}-{resigned.partition}"
    if speaker != resigned.replica and image.leader_of(partition) != speaker:
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{what} is not led by broker {speaker}")
    if resigned.replica not in partition.replicas:
        raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"broker {resigned.replica} holds nothing of {what}")
    if speaker != resigned.replica and resigned.replica in partition.isr:
        raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"broker {resigned.replica} is in sync with {what} again")
    if resigned.is_spoilt and len(partition.replicas) == 1:
        raise BrokerError(ErrorCode.INELIGIBLE_REPLICA, f"{what} has no other replica")
    return topic, partition


def without(
    partition: PartitionImage, resigned: ResignedReplica, brokers: Brokers, rules: TopicRules
) -> PartitionImage | None:
    """The partition after that; None when it changes nothing."""
    replica = resigned.replica
    isr = tuple(each for each in partition.isr if each not in (replica, *partition.spoilt))
    eligible = tuple(each for each in partition.eligible if each not in (replica, *partition.spoilt))
    if not isr:
        isr, eligible = eligible, ()  # these hold what is committed just as well
    if not isr:
        isr = partition.isr
    left = replace(partition, isr=isr, eligible=eligible)
    if not resigned.is_spoilt:
        return changed(partition, left)
    spoilt = tuple(each for each in partition.replicas if each in (replica, *partition.spoilt))
    after = completed(held(replace(left, spoilt=spoilt), brokers, rules), brokers)
    if after.leader == replica:
        after = replace(after, leader=None, leader_broker_epoch=0)
    return replace(after, leader_epoch=partition.leader_epoch + 1, partition_epoch=partition.partition_epoch + 1)
