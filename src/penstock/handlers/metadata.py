"""Metadata: where the brokers are, and which of them leads which partition. May create topics that are asked for.

v0: no topics means all    v1: null means all, no topics means none; racks, controller    v2: cluster id
v4: the client may forbid auto-creation    v5: offline replicas    v7: leader epochs    v8: authorized operations
v9: flexible    v10: topic ids in the answer    v11: cluster operations moved to DescribeCluster
v12: topics by id    v13: error code for the whole answer

A topic that is created on the way is in the same answer, ready to use; Kafka has the client ask again.

The controller is the broker that answers, which passes on what is for the controller; KRaft names any broker that is
alive. Clients send it such requests and, if it has died, wait for it as long as they may (librdkafka 2.16, also when
there has been another one for long). DescribeCluster names the real one.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.controller.commands import CreateTopics
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import NO_TOPIC_ID
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.handlers.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from penstock.handlers.cluster_view import ClusterView, unknown_topic_code
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.internal_topics import new_topic
from penstock.metadata.image import PartitionImage, TopicImage
from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_IDS_SINCE = 12


async def metadata(request: MetadataRequest, context: RequestContext, broker: Broker) -> MetadataResponse:
    asked = _asked_topics(request, context.api_version)
    failures: dict[str, ErrorCode] = {}
    if asked is not None and request.allow_auto_topic_creation:
        failures = await _create_missing([topic.name for topic in asked if topic.name is not None], context, broker)
    view = ClusterView(broker.image, context.listener, broker.node_id, is_cut_off=broker.partitions.is_cut_off)
    if asked is None:
        topics = [_topic_row(topic, view) for topic in view.image.topics.values()]
    else:
        topics = [_row(topic, view, context.api_version, failures) for topic in asked]
    if request.include_topic_authorized_operations:
        for row in topics:
            if row.error_code == ErrorCode.NONE:
                row.topic_authorized_operations = TOPIC_OPERATIONS
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=each.broker_id, host=each.endpoint.host, port=each.endpoint.port, rack=each.rack
            )
            for each in view.brokers
        ],
        cluster_id=view.image.cluster_id,
        controller_id=view.way_to_controller(is_overdue=broker.partitions.is_overdue),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _asked_topics(request: MetadataRequest, api_version: int) -> list[MetadataRequestTopic] | None:
    """Each topic once; None for all topics."""
    if request.topics is None or (api_version == 0 and not request.topics):
        return None
    return list({(topic.topic_id, topic.name): topic for topic in request.topics}.values())


async def _create_missing(names: Iterable[str], context: RequestContext, broker: Broker) -> dict[str, ErrorCode]:
    """Create the topics that do not exist, if the broker does that; the codes of those that could not be."""
    missing = [name for name in names if name not in broker.image.topics]
    possible = [name for name in missing if unknown_topic_code(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if not possible or not broker.config.bool("auto.create.topics.enable"):
        return {}
    try:
        topics = tuple(new_topic(name, broker) for name in possible)
        results = await broker.controller.ask(CreateTopics(topics), context.principal)
    except BrokerError as error:
        return dict.fromkeys(possible, error.code)
    await broker.partitions.caught_up()
    return {result.name: result.outcome.code for result in results if isinstance(result.outcome, BrokerError)}


def _row(
    asked: MetadataRequestTopic, view: ClusterView, api_version: int, failures: dict[str, ErrorCode]
) -> MetadataResponseTopic:
    by_id = asked.topic_id != NO_TOPIC_ID
    if api_version < TOPIC_IDS_SINCE and (by_id or asked.name is None):
        return MetadataResponseTopic(name=asked.name or "", error_code=ErrorCode.INVALID_REQUEST)
    if by_id:
        topic = view.image.topic_by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(name=None, topic_id=asked.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        return _topic_row(topic, view)
    if asked.name is None:
        return MetadataResponseTopic(name=None, error_code=ErrorCode.INVALID_REQUEST)
    # Another client may have been quicker to create it: what is there now counts more than what failed.
    topic = view.image.topics.get(asked.name)
    if topic is None:
        code = failures.get(asked.name) or unknown_topic_code(asked.name)
        return MetadataResponseTopic(name=asked.name, error_code=code, is_internal=asked.name in INTERNAL_TOPICS)
    return _topic_row(topic, view)


def _topic_row(topic: TopicImage, view: ClusterView) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition_row(index, state, view) for index, state in enumerate(topic.partitions)],
    )


def _partition_row(index: int, state: PartitionImage, view: ClusterView) -> MetadataResponsePartition:
    leadership = view.leadership(state)
    return MetadataResponsePartition(
        error_code=leadership.error_code,
        partition_index=index,
        leader_id=leadership.leader_id,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=view.offline_replicas(state),
    )
