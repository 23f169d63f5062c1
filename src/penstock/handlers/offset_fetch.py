"""OffsetFetch: how far groups have come.

v1: by name    v2: all topics (null), and an error of the group    v5: leader epoch (KIP-320)    v6: flexible
v7: only stable offsets (KIP-447)    v8: several groups (KIP-709)    v9: consumer groups (KIP-848)
v10: topic ids instead of names
"""

from __future__ import annotations

import asyncio

from penstock.coordinators.group import offsets
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.group_coordinator import Work, ask
from penstock.metadata.image import ClusterImage
from penstock.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

GROUP_ERROR_SINCE = 2
SEVERAL_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10


async def offset_fetch(request: OffsetFetchRequest, context: RequestContext, broker: Broker) -> OffsetFetchResponse:
    work = offsets.fetch_stable if request.require_stable else offsets.fetch
    if context.api_version >= SEVERAL_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=list(await asyncio.gather(*(_fetched(work, group, context, broker) for group in request.groups)))
        )
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=request.topics)
    group = await _fetched(work, asked, context, broker)
    if context.api_version < GROUP_ERROR_SINCE and group.error_code:
        group.topics = [_failed(topic, ErrorCode(group.error_code)) for topic in request.topics or ()]
    return OffsetFetchResponse(topics=group.topics, error_code=group.error_code)


async def _fetched(
    work: Work, group: OffsetFetchRequestGroup, context: RequestContext, broker: Broker
) -> OffsetFetchResponseGroup:
    by_id = context.api_version >= TOPIC_IDS_SINCE
    unknown = _name_by_id(group, broker.image) if by_id else []
    try:
        answer: OffsetFetchResponseGroup = await ask(work, group, group.group_id, context, broker)
    except BrokerError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    if by_id:
        _put_ids(answer, broker.image)
    answer.topics += unknown
    return answer


def _name_by_id(group: OffsetFetchRequestGroup, image: ClusterImage) -> list[OffsetFetchResponseTopic]:
    """Puts names into the request; those that have none are taken out and answered here."""
    if group.topics is None:
        return []
    unknown, known = [], []
    for topic in group.topics:
        found = image.topics_by_id.get(topic.topic_id)
        if found is None:
            unknown.append(_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID))
        else:
            topic.name = found.name
            known.append(topic)
    group.topics = known
    return unknown


def _put_ids(answer: OffsetFetchResponseGroup, image: ClusterImage) -> None:
    """A topic that was deleted a moment ago has no id to be named by, and is left out."""
    named = []
    for topic in answer.topics:
        found = image.topics.get(topic.name)
        if found is not None:
            topic.topic_id = found.topic_id
            named.append(topic)
    answer.topics = named


def _failed(topic: OffsetFetchRequestTopic, code: ErrorCode) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartition(partition_index=index, committed_offset=offsets.NO_OFFSET, error_code=code)
            for index in topic.partition_indexes
        ],
    )
