"""DescribeTopicPartitions: topics with their partitions, page by page (KIP-966).

v0: flexible. Topics come sorted by name; the cursor names the first partition of the next page. All topics when none is
named. `max.request.partition.size.limit` bounds a page, whatever the client asks for.
"""

from __future__ import annotations

from penstock.core.errors import ErrorCode
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.handlers.authorized_operations import TOPIC_OPERATIONS
from penstock.handlers.cluster_view import ClusterView, unknown_topic_code
from penstock.handlers.context import Broker, RequestContext
from penstock.metadata.image import PartitionImage, TopicImage
from penstock.protocol.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)


async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, context: RequestContext, broker: Broker
) -> DescribeTopicPartitionsResponse:
    asked = {topic.name for topic in request.topics}
    if request.cursor is not None and request.cursor.partition_index < 0:
        return DescribeTopicPartitionsResponse(
            topics=[_failed(name, ErrorCode.INVALID_REQUEST) for name in sorted(asked)]
        )
    limit = min(request.response_partition_limit, broker.config.int("max.request.partition.size.limit"))
    page = _Page(ClusterView(broker.image, context.listener, broker.node_id), max(limit, 1))
    first = request.cursor or Cursor(topic_name="", partition_index=0)
    for name in sorted(name for name in asked or broker.image.topics if name >= first.topic_name):
        page.add(name, first.partition_index if name == first.topic_name else 0)
        if page.next_cursor is not None:
            break
    return DescribeTopicPartitionsResponse(topics=page.topics, next_cursor=page.next_cursor)


class _Page:
    """Fills up to its limit of partitions; from then on `next_cursor` says where to go on."""

    def __init__(self, view: ClusterView, limit: int) -> None:
        self._view = view
        self._room = limit
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None

    def add(self, name: str, first_partition: int) -> None:
        topic = self._view.image.topics.get(name)
        if topic is None:
            self.topics.append(_failed(name, unknown_topic_code(name)))
            return
        if self._room == 0:
            self.next_cursor = Cursor(topic_name=name, partition_index=first_partition)
            return
        end = min(first_partition + self._room, len(topic.partitions))
        self.topics.append(self._topic_row(topic, first_partition, end))
        self._room -= max(end - first_partition, 0)
        if end < len(topic.partitions):
            self.next_cursor = Cursor(topic_name=name, partition_index=end)

    def _topic_row(self, topic: TopicImage, first: int, end: int) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[self._partition_row(index, topic.partitions[index]) for index in range(first, end)],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _partition_row(self, index: int, state: PartitionImage) -> DescribeTopicPartitionsResponsePartition:
        leadership = self._view.leadership(state)
        return DescribeTopicPartitionsResponsePartition(
            error_code=leadership.error_code,
            partition_index=index,
            leader_id=leadership.leader_id,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=self._view.offline_replicas(state),
        )


def _failed(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code, is_internal=name in INTERNAL_TOPICS)
