"""ConsumerGroupHeartbeat: join, stay in and leave a group whose partitions the coordinator assigns (KIP-848).

v1: regular expressions; the member chooses its id (KIP-1082)
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group import consumer
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, context: RequestContext, broker: Broker
) -> ConsumerGroupHeartbeatResponse:
    check_group_id(request.group_id)
    return cast(
        ConsumerGroupHeartbeatResponse, await ask(consumer.heartbeat, request, request.group_id, context, broker)
    )
