"""DescribeGroups: members, protocol and assignment of classic groups.

v3: authorized operations    v4: static members    v5: flexible    v6: a group that is not there is an error (KIP-1043)
"""

from __future__ import annotations

from penstock.coordinators.group.machine import GroupMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.authorized_operations import GROUP_OPERATIONS
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import for_each
from penstock.protocol.messages.groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse


async def describe_groups(
    request: DescribeGroupsRequest, context: RequestContext, broker: Broker
) -> DescribeGroupsResponse:
    groups = await for_each(request.groups, GroupMachine.describe_group, _failed, context, broker)
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _failed(group_id: str, error: BrokerError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
