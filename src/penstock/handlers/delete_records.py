"""DeleteRecords: a partition starts at a later offset from now on.

v2: flexible. Offset -1 means the high watermark: everything that was committed.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

UNKNOWN_LOW_WATERMARK = -1


async def delete_records(
    request: DeleteRecordsRequest, context: RequestContext, broker: Broker
) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name, partitions=[_delete(topic.name, asked, broker) for asked in topic.partitions]
        )
        for topic in request.topics
    ]
    # What a client was told is gone must not come back with a crash.
    await broker.partitions.checkpoint()
    return DeleteRecordsResponse(topics=topics)


def _delete(topic: str, asked: DeleteRecordsPartition, broker: Broker) -> DeleteRecordsPartitionResult:
    row = DeleteRecordsPartitionResult(partition_index=asked.partition_index, low_watermark=UNKNOWN_LOW_WATERMARK)
    try:
        partition = broker.partitions.find_led(topic, asked.partition_index)
        if not partition.config.is_deleted_by_retention:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, f"{topic} has no cleanup.policy of delete")
        row.low_watermark = partition.delete_records_before(asked.offset)
    except BrokerError as error:
        row.error_code = error.code
    return row
