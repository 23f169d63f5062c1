"""OffsetDelete: forget offsets that a group has committed for topics that nobody in it subscribes to (KIP-496)."""

from __future__ import annotations

from typing import cast

from penstock.coordinators.group import offsets
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import ask, check_group_id
from penstock.protocol.messages.group_offsets import OffsetDeleteRequest, OffsetDeleteResponse


async def offset_delete(request: OffsetDeleteRequest, context: RequestContext, broker: Broker) -> OffsetDeleteResponse:
    check_group_id(request.group_id)
    return cast(OffsetDeleteResponse, await ask(offsets.delete, request, request.group_id, context, broker))
