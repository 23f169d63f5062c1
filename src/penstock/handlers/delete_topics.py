"""DeleteTopics: topics go at once, their files soon after.

v1: names    v3: TOPIC_DELETION_DISABLED has a code of its own    v4: flexible    v5: error message
v6: by name or by id

A topic is gone for clients when the answer comes; its files go in the background.
"""

from __future__ import annotations

from penstock.controller.commands import DeleteTopicResult, DeleteTopics, TopicReference
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import NO_TOPIC_ID
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

IDS_SINCE = 6
DISABLED_SINCE = 3


async def delete_topics(request: DeleteTopicsRequest, context: RequestContext, broker: Broker) -> DeleteTopicsResponse:
    references = _references(request, context.api_version)
    try:
        _check_enabled(context.api_version, broker)
        results = await broker.controller.ask(DeleteTopics(references), context.principal)
    except BrokerError as error:
        results = tuple(DeleteTopicResult(reference, error) for reference in references)
    return DeleteTopicsResponse(responses=[_row(result) for result in results])


def _references(request: DeleteTopicsRequest, api_version: int) -> tuple[TopicReference, ...]:
    if api_version < IDS_SINCE:
        return tuple(TopicReference(name) for name in request.topic_names)
    return tuple(
        TopicReference(topic.name, None if topic.topic_id == NO_TOPIC_ID else topic.topic_id)
        for topic in request.topics
    )


def _check_enabled(api_version: int, broker: Broker) -> None:
    if not broker.config.bool("delete.topic.enable"):
        disabled = ErrorCode.TOPIC_DELETION_DISABLED if api_version >= DISABLED_SINCE else ErrorCode.INVALID_REQUEST
        raise BrokerError(disabled, "this broker does not delete topics (delete.topic.enable=false)")


def _row(result: DeleteTopicResult) -> DeletableTopicResult:
    row = DeletableTopicResult(name=result.reference.name, topic_id=result.reference.topic_id or NO_TOPIC_ID)
    if result.error is not None:
        row.error_code, row.error_message = result.error.code, result.error.message
    return row
