"""CreateTopics: new topics, with as many partitions and replicas as asked for.

v2 to v4: names and errors    v4: -1 partitions or replicas for the broker's default (KIP-464)
v5: flexible; the answer has counts and configuration (KIP-525)    v6: may be throttled    v7: topic id

The answer comes when the topics can be used on this broker.
"""

from __future__ import annotations

from penstock.controller.commands import CreatedTopic, CreateTopicResult, CreateTopics, NewTopic
from penstock.core.config import BrokerConfig, ConfigEntry
from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId
from penstock.core.topic_config import topic_config_entries, topic_config_entry
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


async def create_topics(request: CreateTopicsRequest, context: RequestContext, broker: Broker) -> CreateTopicsResponse:
    topics = tuple(_new_topic(topic) for topic in request.topics)
    try:
        results = await broker.controller.ask(CreateTopics(topics, request.validate_only), context.principal)
    except BrokerError as error:
        results = tuple(CreateTopicResult(topic.name, error) for topic in topics)
    await broker.partitions.caught_up()
    configs = _ConfigRows(broker.config)
    return CreateTopicsResponse(topics=[_row(result, configs) for result in _each_name_once(results)])


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple(
            (each.partition_index, tuple(BrokerId(broker_id) for broker_id in each.broker_ids))
            for each in topic.assignments
        ),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )


def _each_name_once(results: tuple[CreateTopicResult, ...]) -> list[CreateTopicResult]:
    """Clients look results up by name: a name that was asked for twice gets one answer."""
    return list({result.name: result for result in results}.values())


def _row(result: CreateTopicResult, configs: _ConfigRows) -> CreatableTopicResult:
    if isinstance(result.outcome, BrokerError):
        return CreatableTopicResult(
            name=result.name, error_code=result.outcome.code, error_message=result.outcome.message
        )
    created = result.outcome
    return CreatableTopicResult(
        name=result.name,
        topic_id=created.topic_id,
        num_partitions=created.partition_count,
        replication_factor=created.replication_factor,
        configs=configs.of(created),
    )


class _ConfigRows:
    """The configurations of a request's topics. What a topic does not override is the same for all: one row serves."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._defaults: dict[str, CreatableTopicConfigs] = {}

    def of(self, created: CreatedTopic) -> list[CreatableTopicConfigs]:
        if not self._defaults:
            self._defaults = {entry.key.name: _config_row(entry) for entry in topic_config_entries({}, self._config)}
        return [
            _config_row(topic_config_entry(name, created.configs, self._config)) if name in created.configs else default
            for name, default in self._defaults.items()
        ]


def _config_row(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.key.name, value=entry.value, config_source=entry.source, is_sensitive=entry.key.sensitive
    )
