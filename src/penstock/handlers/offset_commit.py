"""OffsetCommit: remember how far a group has come.

v2-4: retention time    v6: leader epoch (KIP-320)    v7: static members (KIP-345)    v8: flexible
v9: consumer groups (KIP-848)    v10: topic ids instead of names

The answer comes when the offsets are as durable as an acks=all write.
"""

from __future__ import annotations

from penstock.coordinators.group import offsets
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.handlers.group_coordinator import submit
from penstock.metadata.image import ClusterImage, TopicImage
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE = 10


def offset_commit(request: OffsetCommitRequest, context: RequestContext, broker: Broker, done: Done) -> None:
    refused, request.topics = _sorted_out(request.topics, broker.image, by_id=context.api_version >= TOPIC_IDS_SINCE)

    def answered(outcome: OffsetCommitResponse | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            topics = [_refusal(topic, topic.partitions, outcome.code) for topic in request.topics]
        else:
            topics = outcome.topics
        done(OffsetCommitResponse(topics=refused + topics))

    if not request.topics:
        done(OffsetCommitResponse(topics=refused))
        return
    try:
        submit(offsets.commit, request, request.group_id, context, broker, answered)
    except BrokerError as error:
        answered(error)


def _sorted_out(
    topics: list[OffsetCommitRequestTopic], image: ClusterImage, *, by_id: bool
) -> tuple[list[OffsetCommitResponseTopic], list[OffsetCommitRequestTopic]]:
    """What is asked about topics and partitions that are not there is refused; the rest gets both name and id."""
    refused, known = [], []
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in topics:
        found = image.topics_by_id.get(topic.topic_id) if by_id else image.topics.get(topic.name)
        if found is None:
            refused.append(_refusal(topic, topic.partitions, unknown))
            continue
        topic.name, topic.topic_id = found.name, found.topic_id
        missing = [each for each in topic.partitions if not _has(found, each.partition_index)]
        if missing:
            refused.append(_refusal(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [each for each in topic.partitions if _has(found, each.partition_index)]
        if topic.partitions:
            known.append(topic)
    return refused, known


def _has(topic: TopicImage, index: int) -> bool:
    return 0 <= index < len(topic.partitions)


def _refusal(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition], code: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code) for each in partitions
        ],
    )
