"""Heartbeat: a member of a classic group is alive, and hears whether the group rebalances.

v3: static members (KIP-345)    v4: flexible
"""

from __future__ import annotations

from penstock.coordinators.group.machine import GroupMachine
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.handlers.group_coordinator import check_group_id, submit
from penstock.protocol.messages.groups import HeartbeatRequest


def heartbeat(request: HeartbeatRequest, context: RequestContext, broker: Broker, done: Done) -> None:
    check_group_id(request.group_id)
    submit(GroupMachine.heartbeat, request, request.group_id, context, broker, done)
