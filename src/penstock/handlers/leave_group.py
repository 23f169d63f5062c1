"""LeaveGroup: members leave a classic group, themselves or sent by an administrator.

v3: several members, by member or instance id (KIP-345)    v4: flexible    v5: reason (KIP-800)
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group.machine import GroupMachine
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse


async def leave_group(request: LeaveGroupRequest, context: RequestContext, broker: Broker) -> LeaveGroupResponse:
    check_group_id(request.group_id)
    return cast(LeaveGroupResponse, await ask(GroupMachine.leave_group, request, request.group_id, context, broker))
