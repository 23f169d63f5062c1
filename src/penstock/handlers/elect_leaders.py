"""ElectLeaders: the first replica of a partition is to lead again, or any replica where nobody can otherwise.

v1: the kind of election    v2: flexible
"""

from __future__ import annotations

from penstock.controller.commands import ElectLeaderResult, ElectLeaders
from penstock.core.ids import TopicPartition
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.elections import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def elect_leaders(request: ElectLeadersRequest, context: RequestContext, broker: Broker) -> ElectLeadersResponse:
    partitions = None
    if request.topic_partitions is not None:
        partitions = tuple(
            TopicPartition(each.topic, partition) for each in request.topic_partitions for partition in each.partitions
        )
    results = await broker.controller.ask(ElectLeaders(request.election_type, partitions), context.principal)
    topics: dict[str, ReplicaElectionResult] = {}
    for result in results:
        name = result.topic_partition.topic
        topics.setdefault(name, ReplicaElectionResult(topic=name, partition_result=[])).partition_result.append(
            _row(result)
        )
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


def _row(result: ElectLeaderResult) -> PartitionResult:
    row = PartitionResult(partition_id=result.topic_partition.partition)
    if result.error is not None:
        row.error_code, row.error_message = result.error.code, result.error.message
    return row
