"""DescribeProducers: which producers a partition remembers, and since when they have transactions open (KIP-664)."""

from __future__ import annotations

from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseTopic,
    ProducerState,
)
from penstock.storage.producers import ProducerEntry


async def describe_producers(
    request: DescribeProducersRequest, context: RequestContext, broker: Broker
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponseTopic(
                name=topic.name, partitions=[_described(topic.name, index, broker) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _described(topic: str, index: int, broker: Broker) -> DescribeProducersResponsePartition:
    row = DescribeProducersResponsePartition(partition_index=index)
    try:
        producers = broker.partitions.find_led(topic, index).log.producers.entries
    except BrokerError as error:
        row.error_code, row.error_message = error.code, error.message
        return row
    row.active_producers = [_producer(producer_id, entry) for producer_id, entry in sorted(producers.items())]
    return row


def _producer(producer_id: int, entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
        last_timestamp=entry.last_update_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )
