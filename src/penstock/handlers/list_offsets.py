"""ListOffsets: where a partition begins and ends, and which offset a time has.

v4: leader epochs    v5: OFFSET_NOT_AVAILABLE (KIP-207)    v6: flexible    v7: max timestamp (-3)
v8: earliest local (-4)    v9: latest tiered (-5)    v10: timeout    v11: earliest pending upload (-6)

Without tiered storage the log starts where its local part starts, and nothing is tiered or pending.
"""

from __future__ import annotations

from collections import Counter

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.replication.partition import Partition

READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_SINCE = 5

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


async def list_offsets(request: ListOffsetsRequest, context: RequestContext, broker: Broker) -> ListOffsetsResponse:
    topics = []
    for topic in request.topics:
        asked = Counter(each.partition_index for each in topic.partitions)
        rows = []
        for each in topic.partitions:
            try:
                if asked[each.partition_index] > 1:
                    raise BrokerError(ErrorCode.INVALID_REQUEST, f"partition {each.partition_index} is asked for twice")
                rows.append(await _offset(topic.name, each, request.isolation_level, context, broker))
            except BrokerError as error:
                rows.append(ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=error.code))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
    return ListOffsetsResponse(topics=topics)


async def _offset(
    topic: str, asked: ListOffsetsPartition, isolation_level: int, context: RequestContext, broker: Broker
) -> ListOffsetsPartitionResponse:
    timestamp = asked.timestamp
    if timestamp < EARLIEST_PENDING_UPLOAD or context.api_version < _SINCE_VERSION.get(timestamp, 0):
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} in v{context.api_version}")
    partition = broker.partitions.find_led(topic, asked.partition_index)
    partition.check_epoch(asked.current_leader_epoch)
    index, log = asked.partition_index, partition.log
    stable_only = isolation_level == READ_COMMITTED
    if timestamp == LATEST:
        _check_end_is_known(partition, context)
        latest = partition.last_stable_offset if stable_only else partition.high_watermark.offset
        return _row(index, latest, partition.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _row(index, log.log_start_offset, log.leader_epochs.epoch_for(log.log_start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _row(index, -1, -1)
    row = await _by_time(partition, asked, broker, stable_only=stable_only)
    if row.offset < 0:
        _check_end_is_known(partition, context)
    return row


def _check_end_is_known(partition: Partition, context: RequestContext) -> None:
    """A leader that is new may not know yet how much of its log is committed: what it said could go back (KIP-207)."""
    if not partition.is_end_known:
        is_understood = context.api_version >= OFFSET_NOT_AVAILABLE_SINCE
        code = ErrorCode.OFFSET_NOT_AVAILABLE if is_understood else ErrorCode.LEADER_NOT_AVAILABLE
        raise BrokerError(code, f"{partition.topic_partition}: not known yet to this leader")


async def _by_time(
    partition: Partition, asked: ListOffsetsPartition, broker: Broker, *, stable_only: bool
) -> ListOffsetsPartitionResponse:
    log, upper = partition.log, partition.high_watermark
    if stable_only:
        upper = await log.in_thread(broker.files, partition.stable_position_waiting)
    if asked.timestamp == MAX_TIMESTAMP:
        found = await log.in_thread(broker.files, log.offset_of_max_timestamp, upper)
    else:
        found = await log.in_thread(broker.files, log.offset_for_timestamp, asked.timestamp, upper)
    if found is None:
        return _row(asked.partition_index, -1, -1)
    return _row(asked.partition_index, found.offset, found.leader_epoch, found.timestamp)


def _row(index: int, offset: int, leader_epoch: int, timestamp: int = -1) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )
