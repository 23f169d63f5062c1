"""CreatePartitions: more partitions for topics that exist.

v2: flexible    v3: may be throttled

The answer comes when the partitions can be used on this broker.
"""

from __future__ import annotations

from penstock.controller.commands import CreatePartitions, CreatePartitionsResult, MorePartitions
from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def create_partitions(
    request: CreatePartitionsRequest, context: RequestContext, broker: Broker
) -> CreatePartitionsResponse:
    topics = tuple(_more_partitions(topic) for topic in request.topics)
    try:
        results = await broker.controller.ask(CreatePartitions(topics, request.validate_only), context.principal)
    except BrokerError as error:
        results = tuple(CreatePartitionsResult(topic.name, error) for topic in topics)
    await broker.partitions.caught_up()
    return CreatePartitionsResponse(results=[_row(result) for result in results])


def _more_partitions(topic: CreatePartitionsTopic) -> MorePartitions:
    if topic.assignments is None:
        return MorePartitions(topic.name, topic.count)
    assignments = tuple(tuple(BrokerId(broker_id) for broker_id in each.broker_ids) for each in topic.assignments)
    return MorePartitions(topic.name, topic.count, assignments)


def _row(result: CreatePartitionsResult) -> CreatePartitionsTopicResult:
    if result.error is None:
        return CreatePartitionsTopicResult(name=result.name)
    return CreatePartitionsTopicResult(
        name=result.name, error_code=result.error.code, error_message=result.error.message
    )
