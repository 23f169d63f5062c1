"""JoinGroup: become a member of a classic group, or join again because it rebalances.

v1: rebalance timeout    v4: a new member is told its id first (KIP-394)    v5: static members (KIP-345)    v6: flexible
v7: protocol type (KIP-559)    v8: reason (KIP-800)    v9: the leader may be told to skip the assignment (KIP-814)

The answer comes when all members have joined, or those that did not are given up.
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group.machine import GroupMachine
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.groups import JoinGroupRequest, JoinGroupResponse


async def join_group(request: JoinGroupRequest, context: RequestContext, broker: Broker) -> JoinGroupResponse:
    check_group_id(request.group_id)
    return cast(JoinGroupResponse, await ask(GroupMachine.join_group, request, request.group_id, context, broker))
