"""WriteTxnMarkers: a coordinator ends transactions in partitions that this broker leads; administrators do, too.

v1: flexible    v2: which version of transactions the producer uses (KIP-1228)
"""

from __future__ import annotations

import asyncio

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.control import EndMarker
from penstock.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# Said by the coordinator of a group.
_NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


async def write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext, broker: Broker
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[await _written(marker, broker) for marker in request.markers])


async def _written(asked: WritableTxnMarker, broker: Broker) -> WritableTxnMarkerResult:
    marker = EndMarker(asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch)
    result = WritableTxnMarkerResult(producer_id=asked.producer_id)
    # Kafka finds that out while it builds the record (UNKNOWN_SERVER_ERROR).
    is_nobody = asked.producer_id < 0 or asked.producer_epoch < 0
    for topic in asked.topics:
        rows = WritableTxnMarkerTopicResult(name=topic.name)
        result.topics.append(rows)
        for index in topic.partition_indexes:
            if is_nobody:
                code = ErrorCode.INVALID_REQUEST
            else:
                partition = TopicPartition(topic.name, index)
                code = _code(await _ended(partition, marker, asked.transaction_version, broker))
            rows.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
    return result


async def _ended(
    partition: TopicPartition, marker: EndMarker, transaction_version: int, broker: Broker
) -> BrokerError | None:
    outcome: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()

    def done(error: BrokerError | None) -> None:
        if not outcome.cancelled():  # a broker that stops waits for the flush, but not for whoever asked
            outcome.set_result(error)

    broker.transactions.write_marker(partition, marker, transaction_version, done)
    return await outcome


def _code(error: BrokerError | None) -> ErrorCode:
    if error is None:
        return ErrorCode.NONE
    # A coordinator of transactions takes it for the leader of any partition, which is to be looked for again.
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_YET else error.code
