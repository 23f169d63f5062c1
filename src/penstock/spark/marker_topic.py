"""The topic that markers are written to: made when it is first needed, and looked after."""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.spark.errors import BadOption
from penstock.spark.markers import PARTITIONS
from penstock.spark.sink_options import SinkOptions
from penstock.wire.cluster import Cluster, Topic
from penstock.wire.errors import UnknownTopic, check, reason
from penstock.wire.patience import Patience

_REPLICAS = 3
_CREATED_WITHIN_MS = 30_000
_CONFIG = {
    "cleanup.policy": "compact",
    # A worker that knows nothing reads all that is not compacted yet, which the last segment never is.
    "segment.bytes": str(8 << 20),
}
_TOPIC_RESOURCE = 2


def ensure_marker_topic(cluster: Cluster, options: SinkOptions) -> None:
    """Raises BadOption, WireError."""
    name = options.marker_topic
    if name == options.topic:
        raise BadOption("markerTopic", f'"{name}" is where the rows go: markers need a topic of their own')
    try:
        topic = cluster.look_up([name])[name]
    except UnknownTopic:
        _create(cluster, name)
        topic = _appeared(cluster, name)
    if len(topic.leaders) < PARTITIONS:
        raise BadOption(
            "markerTopic",
            f'"{name}" has {len(topic.leaders)} partitions, and needs {PARTITIONS}: name one that is not there, and it '
            "is made",
        )
    policy = _cleanup_policy(cluster, name)
    if policy not in (None, "compact"):
        raise BadOption(
            "markerTopic",
            f'"{name}" has cleanup.policy={policy}, which loses markers and would write rows twice: it must be compact',
        )


def _create(cluster: Cluster, name: str) -> None:
    wanted = CreatableTopic(
        name=name,
        num_partitions=PARTITIONS,
        replication_factor=min(_REPLICAS, len(cluster.nodes())),
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in _CONFIG.items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=_CREATED_WITHIN_MS)
    (made,) = cluster.ask_any(request, CreateTopicsResponse).topics
    try:
        check(made.error_code, made.error_message)
    except BrokerError as refused:
        if refused.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # somebody else was quicker, or it was asked for twice
            raise BadOption("markerTopic", f'"{name}" could not be created: {reason(refused)}') from None


def _appeared(cluster: Cluster, name: str) -> Topic:
    patience = Patience(cluster.settings)
    while True:
        try:
            return cluster.look_up([name])[name]
        except UnknownTopic as error:
            patience.after(f'looking for markerTopic "{name}"', error)


def _cleanup_policy(cluster: Cluster, name: str) -> str | None:
    """None when we are not allowed to know."""
    resource = DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=["cleanup.policy"]
    )
    answer = cluster.ask_any(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    (result,) = answer.results
    if result.error_code != ErrorCode.NONE:
        return None
    return next((row.value for row in result.configs if row.name == "cleanup.policy"), None)
