"""FindCoordinator: which broker looks after a group or a transactional id.

v0: groups, one key    v1: transactional ids    v3: flexible    v4: several keys, each with its answer (KIP-699)
v6: share groups (KIP-932)

A group is looked after by the leader of its partition of __consumer_offsets, which is created with the first question.
There are no coordinators of transactions and share groups yet: COORDINATOR_NOT_AVAILABLE, which clients wait for.
"""

from __future__ import annotations

from penstock.coordinators.groups import partition_of
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC
from penstock.handlers.cluster_view import ClusterView, ReachableBroker
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.internal_topics import internal_topic
from penstock.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEY_TYPES = {0: "consumer groups", 1: "transactions", 2: "share groups"}
GROUPS = 0
SHARE_GROUPS = 2
SHARE_GROUPS_SINCE = 6
SEVERAL_KEYS_SINCE = 4
NOWHERE = -1


async def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext, broker: Broker
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.api_version >= SEVERAL_KEYS_SINCE else [request.key]
    try:
        _check_type(request.key_type, context.api_version)
        topic = await internal_topic(GROUP_OFFSETS_TOPIC, broker)
        view = ClusterView(broker.image, context.listener)
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


def _check_type(key_type: int, api_version: int) -> None:
    if key_type not in KEY_TYPES or (key_type == SHARE_GROUPS and api_version < SHARE_GROUPS_SINCE):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
    if key_type != GROUPS:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker has no {KEY_TYPES[key_type]} yet")


def _coordinator(key: str, leader: ReachableBroker | None) -> Coordinator:
    if leader is None:
        return _nowhere(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads the group's partition now")
    return Coordinator(key=key, node_id=leader.broker_id, host=leader.endpoint.host, port=leader.endpoint.port)


def _nowhere(key: str, code: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NOWHERE, host="", port=NOWHERE, error_code=code, error_message=message)
