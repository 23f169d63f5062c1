"""FindCoordinator: which broker looks after a group or a transactional id.

v0: groups, one key    v1: transactional ids    v3: flexible    v4: several keys, each with its answer (KIP-699)
v6: share groups (KIP-932)

A group is looked after by the leader of its partition of __consumer_offsets, a transactional id by that of
__transaction_state; both are created with the first question. There are no share groups: COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from penstock.coordinators.coordinators import partition_of
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.handlers.cluster_view import ClusterView, ReachableBroker
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.internal_topics import internal_topic
from penstock.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

SHARE_GROUPS = 2
TOPICS = {0: GROUP_OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
SHARE_GROUPS_SINCE = 6
SEVERAL_KEYS_SINCE = 4
NOWHERE = -1


async def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext, broker: Broker
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.api_version >= SEVERAL_KEYS_SINCE else [request.key]
    try:
        topic = await internal_topic(_topic_of(request.key_type, context.api_version), broker)
        view = ClusterView(broker.image, context.listener, broker.node_id, is_cut_off=broker.partitions.is_cut_off)
        coordinators = [
            _coordinator(key, view.leader(topic.partitions[partition_of(key, len(topic.partitions))])) for key in keys
        ]
    except BrokerError as error:
        coordinators = [_nowhere(key, error.code, error.message) for key in keys]
    if context.api_version >= SEVERAL_KEYS_SINCE:
        return FindCoordinatorResponse(coordinators=coordinators)
    [only] = coordinators
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _topic_of(key_type: int, api_version: int) -> str:
    if key_type == SHARE_GROUPS and api_version >= SHARE_GROUPS_SINCE:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no share groups")
    topic = TOPICS.get(key_type)
    if topic is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
    return topic


def _coordinator(key: str, leader: ReachableBroker | None) -> Coordinator:
    if leader is None:
        return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads its partition now")
    return Coordinator(key=key, node_id=leader.broker_id, host=leader.endpoint.host, port=leader.endpoint.port)


def _nowhere(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NOWHERE, host="", port=NOWHERE, error_code=code, error_message=message)
