"""OffsetForLeaderEpoch: where an epoch ended, so that a client can tell whether its position was truncated (KIP-320).

v2: current leader epoch    v3: replica id    v4: flexible
"""

from __future__ import annotations

from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: RequestContext, broker: Broker
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_end_offset(topic.topic, each, broker) for each in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _end_offset(topic: str, asked: OffsetForLeaderPartition, broker: Broker) -> EpochEndOffset:
    try:
        partition = broker.partitions.find_led(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
    except BrokerError as error:
        return EpochEndOffset(partition=asked.partition, error_code=error.code)
    log = partition.log
    if asked.leader_epoch == partition.leader_epoch:
        epoch, end_offset = partition.leader_epoch, log.log_end_offset
    else:
        epoch, end_offset = log.leader_epochs.end_offset_for(asked.leader_epoch, log.log_end_offset)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
