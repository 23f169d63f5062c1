"""FindCoordinator: which broker looks after a group or a transactional id.

v0: groups, one key    v1: transactional ids    v3: flexible    v4: several keys, each with its answer (KIP-699)
v6: share groups (KIP-932)

There are no coordinators yet: every key is answered with COORDINATOR_NOT_AVAILABLE, which clients know how to wait for.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEY_TYPES = {0: "consumer groups", 1: "transactions", 2: "share groups"}
SHARE_GROUPS = 2
SHARE_GROUPS_SINCE = 6
SEVERAL_KEYS_SINCE = 4
NOWHERE = -1


async def find_coordinator(
    request: FindCoordinatorRequest, context: RequestContext, broker: Broker
) -> FindCoordinatorResponse:
    refusal = _refusal(request.key_type, context.api_version)
    if context.api_version < SEVERAL_KEYS_SINCE:
        return FindCoordinatorResponse(
            error_code=refusal.code, error_message=refusal.message, node_id=NOWHERE, host="", port=NOWHERE
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=NOWHERE,
                host="",
                port=NOWHERE,
                error_code=refusal.code,
                error_message=refusal.message,
            )
            for key in request.coordinator_keys
        ]
    )


def _refusal(key_type: int, api_version: int) -> BrokerError:
    if key_type not in KEY_TYPES or (key_type == SHARE_GROUPS and api_version < SHARE_GROUPS_SINCE):
        return BrokerError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
    return BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"this broker has no {KEY_TYPES[key_type]} yet")
