"""ListGroups: the groups that this broker coordinates; a client asks every broker.

v3: flexible    v4: by state (KIP-518)    v5: by type (KIP-848)
"""

from __future__ import annotations

from penstock.coordinators.group.machine import GroupMachine
from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask_shard
from penstock.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse


async def list_groups(request: ListGroupsRequest, context: RequestContext, broker: Broker) -> ListGroupsResponse:
    response = ListGroupsResponse()
    for shard in broker.groups.shards():
        try:
            response.groups += (await ask_shard(shard, GroupMachine.list_groups, request, context)).groups
        except BrokerError as error:
            response.error_code = error.code  # an incomplete list must not look complete
    return response
