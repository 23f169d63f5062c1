"""TxnOffsetCommit: remember how far a group has come, if the transaction in which that is said is committed (KIP-98).

v2: leader epoch (KIP-320)    v3: fenced like a member's own commit (KIP-447), flexible
v4: TRANSACTION_ABORTABLE (KIP-890)    v5: the group's partition need not be added to the transaction before (KIP-890)
"""

from __future__ import annotations

from penstock.coordinators.decision import Producer
from penstock.coordinators.group import offsets
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.handlers.transaction_coordinator import verify
from penstock.metadata.image import ClusterImage
from penstock.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

LOADING_IS_UNDERSTOOD_SINCE = 2
ABORTABLE_SINCE = 4
ADDS_PARTITIONS_SINCE = 5


async def txn_offset_commit(
    request: TxnOffsetCommitRequest, context: RequestContext, broker: Broker
) -> TxnOffsetCommitResponse:
    refused, request.topics = _sorted_out(request.topics, broker.image)
    if not request.topics:
        return TxnOffsetCommitResponse(topics=refused)
    try:
        check_group_id(request.group_id)
        await _verify(request, context, broker)
        response: TxnOffsetCommitResponse = await ask(
            offsets.commit_in_transaction, request, request.group_id, context, broker
        )
        topics = response.topics
    except BrokerError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_IS_UNDERSTOOD_SINCE:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # producers of then take the other for their end (KAFKA-7296)
        topics = [_refusal(topic.name, topic.partitions, code) for topic in request.topics]
    return TxnOffsetCommitResponse(topics=refused + topics)


async def _verify(request: TxnOffsetCommitRequest, context: RequestContext, broker: Broker) -> None:
    """The group's partition takes part in the transaction, as any other that a producer writes to."""
    partition = broker.groups.shard_of(request.group_id, broker.image).partition
    producer = Producer(request.producer_id, request.producer_epoch)
    if partition.verification.is_in_transaction(*producer):
        return
    try:
        is_current = await verify(
            request.transactional_id,
            producer,
            partition,
            broker,
            adds=context.api_version >= ADDS_PARTITIONS_SINCE,
            knows_abortable=context.api_version >= ABORTABLE_SINCE,
        )
    except BrokerError as error:
        if error.code is ErrorCode.NOT_ENOUGH_REPLICAS:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None
        raise
    if not is_current and not partition.verification.is_in_transaction(*producer):
        raise BrokerError(ErrorCode.INVALID_TXN_STATE, "the transaction has ended")


def _sorted_out(
    topics: list[TxnOffsetCommitRequestTopic], image: ClusterImage
) -> tuple[list[TxnOffsetCommitResponseTopic], list[TxnOffsetCommitRequestTopic]]:
    """What is asked about topics and partitions that are not there is refused."""
    refused, known = [], []
    for topic in topics:
        found = image.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        missing = [each for each in topic.partitions if not 0 <= each.partition_index < count]
        if missing:
            refused.append(_refusal(topic.name, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if topic.partitions:
            known.append(topic)
    return refused, known


def _refusal(
    topic: str, partitions: list[TxnOffsetCommitRequestPartition], code: ErrorCode
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in partitions
        ],
    )
