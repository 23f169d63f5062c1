"""Heartbeat: a member of a classic group is alive, and hears whether the group rebalances.

v3: static members (KIP-345)    v4: flexible
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group.machine import GroupMachine
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.groups import HeartbeatRequest, HeartbeatResponse


async def heartbeat(request: HeartbeatRequest, context: RequestContext, broker: Broker) -> HeartbeatResponse:
    check_group_id(request.group_id)
    return cast(HeartbeatResponse, await ask(GroupMachine.heartbeat, request, request.group_id, context, broker))
