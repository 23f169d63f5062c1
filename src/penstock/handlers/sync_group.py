"""SyncGroup: the leader of a classic group brings the assignment, every member gets its own.

v3: static members (KIP-345)    v4: flexible    v5: protocol type and name (KIP-559)

The answer comes when the leader's assignment is durable.
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group.machine import GroupMachine
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.groups import SyncGroupRequest, SyncGroupResponse


async def sync_group(request: SyncGroupRequest, context: RequestContext, broker: Broker) -> SyncGroupResponse:
    check_group_id(request.group_id)
    return cast(SyncGroupResponse, await ask(GroupMachine.sync_group, request, request.group_id, context, broker))
