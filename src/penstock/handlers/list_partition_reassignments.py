"""ListPartitionReassignments: which partitions are moving, from where and to where (KIP-455).

What this broker has heard of: a reassignment that it was asked for itself is among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.ids import TopicPartition
from penstock.handlers.context import Broker, RequestContext
from penstock.metadata.image import ClusterImage
from penstock.protocol.messages.reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, context: RequestContext, broker: Broker
) -> ListPartitionReassignmentsResponse:
    topics: dict[str, OngoingTopicReassignment] = {}
    for name, index in _asked(request, broker.image):
        partition = broker.image.partition(TopicPartition(name, index))
        if partition is not None and partition.is_reassigned:
            topics.setdefault(name, OngoingTopicReassignment(name=name)).partitions.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding),
                    removing_replicas=list(partition.removing),
                )
            )
    return ListPartitionReassignmentsResponse(topics=list(topics.values()))


def _asked(request: ListPartitionReassignmentsRequest, image: ClusterImage) -> Iterable[tuple[str, int]]:
    if request.topics is None:
        return ((name, index) for name, topic in image.topics.items() for index in range(len(topic.partitions)))
    return dict.fromkeys((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
