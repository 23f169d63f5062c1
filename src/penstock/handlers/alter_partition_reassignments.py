"""AlterPartitionReassignments: move partitions to other brokers, or give up what is under way (KIP-455).

v1: whether the number of replicas may change (KIP-860)

The answer says that it has begun: new replicas have to catch up first, and ListPartitionReassignments tells how far it
is. The controller ends it.
"""

from __future__ import annotations

import asyncio

from penstock.controller.commands import AlterReassignments, Reassignment, ReassignmentResult
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, context: RequestContext, broker: Broker
) -> AlterPartitionReassignmentsResponse:
    command = AlterReassignments(
        tuple(_reassignment(topic.name, each) for topic in request.topics for each in topic.partitions),
        request.allow_replication_factor_change,
    )
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    try:
        async with asyncio.timeout(max(0, request.timeout_ms) / 1000):
            results = await broker.controller.ask(command, context.principal)
    except TimeoutError:
        response.error_code = ErrorCode.REQUEST_TIMED_OUT
        response.error_message = f"not answered within {request.timeout_ms} ms; it may have begun or not"
        return response
    except BrokerError as error:
        response.error_code, response.error_message = error.code, error.message
        return response
    response.responses = _by_topic(results)
    return response


def _reassignment(topic: str, wanted: ReassignablePartition) -> Reassignment:
    replicas = None if wanted.replicas is None else tuple(BrokerId(broker_id) for broker_id in wanted.replicas)
    return Reassignment(TopicPartition(topic, wanted.partition_index), replicas)


def _by_topic(results: tuple[ReassignmentResult, ...]) -> list[ReassignableTopicResponse]:
    topics: dict[str, ReassignableTopicResponse] = {}
    for result in results:
        name, partition = result.topic_partition
        row = ReassignablePartitionResponse(partition_index=partition)
        if result.error is not None:
            row.error_code, row.error_message = result.error.code, result.error.message
        topics.setdefault(name, ReassignableTopicResponse(name=name)).partitions.append(row)
    return list(topics.values())
