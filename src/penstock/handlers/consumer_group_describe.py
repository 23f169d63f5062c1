"""ConsumerGroupDescribe: members, epochs and assignments of consumer groups (KIP-848).

v1: which protocol a member speaks (KIP-1099)
"""

from __future__ import annotations

from penstock.coordinators.group.machine import GroupMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.authorized_operations import GROUP_OPERATIONS
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import for_each
from penstock.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


async def consumer_group_describe(
    request: ConsumerGroupDescribeRequest, context: RequestContext, broker: Broker
) -> ConsumerGroupDescribeResponse:
    groups = await for_each(request.group_ids, GroupMachine.describe_consumer_group, _failed, context, broker)
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = GROUP_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def _failed(group_id: str, error: BrokerError) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(group_id=group_id, error_code=error.code, error_message=error.message)
