"""DeleteGroups: forget groups without members, and their offsets.

v2: flexible
"""

from __future__ import annotations

from penstock.coordinators.group.machine import GroupMachine
from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import for_each
from penstock.protocol.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def delete_groups(request: DeleteGroupsRequest, context: RequestContext, broker: Broker) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    return DeleteGroupsResponse(results=await for_each(names, GroupMachine.delete_group, _failed, context, broker))


def _failed(group_id: str, error: BrokerError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=error.code)
