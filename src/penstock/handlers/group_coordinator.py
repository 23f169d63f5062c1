"""What the handlers of group requests share: finding the group's coordinator here, and asking it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.shard import Shard
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, Done, RequestContext

Work = Callable[[GroupMachine, Any, Caller, Now, Decision], None]
Answer = TypeVar("Answer")


def check_group_id(group_id: str) -> None:
    """For membership; offsets may be committed under the empty name, as clients of old did."""
    if not group_id:
        raise BrokerError(ErrorCode.INVALID_GROUP_ID, "a group needs a name")


async def ask(work: Work, request: object, group_id: str, context: RequestContext, broker: Broker) -> Any:
    """Raises BrokerError when this broker does not coordinate the group, or not yet."""
    return await ask_shard(broker.groups.shard_of(group_id, broker.image), work, request, context)


async def ask_shard(shard: Shard[GroupMachine], work: Work, request: object, context: RequestContext) -> Any:
    return await shard.ask(
        work,
        request,
        api_version=context.api_version,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
    )


def submit(work: Work, request: object, group_id: str, context: RequestContext, broker: Broker, done: Done) -> None:
    """`ask` without a task, for requests that come often."""
    broker.groups.shard_of(group_id, broker.image).submit(
        work, request, done, context.api_version, context.client_id or "", f"/{context.session.client_host}"
    )


async def for_each(
    group_ids: Iterable[str],
    work: Work,
    failed: Callable[[str, BrokerError], Answer],
    context: RequestContext,
    broker: Broker,
) -> list[Answer]:
    """One answer for each group, whatever becomes of the others."""

    async def one(group_id: str) -> Answer:
        try:
            answer: Answer = await ask(work, group_id, group_id, context, broker)
            return answer
        except BrokerError as error:
            return failed(group_id, error)

    return list(await asyncio.gather(*(one(group_id) for group_id in group_ids)))
