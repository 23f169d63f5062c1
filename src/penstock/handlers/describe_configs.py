"""DescribeConfigs: what a key's value is, and who set it.

v1: source and synonyms    v3: type and documentation (KIP-569)    v4: flexible

Topics, this broker, what is set for all brokers (a broker without a name), and of a broker that is away what was set
for it while brokers ran. Sensitive values are never shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.controller.commands import ResourceType
from penstock.core.config import ConfigEntry, ConfigSource, ConfigSynonym
from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import Key, Scope
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.topic_config import topic_config_entries
from penstock.handlers.cluster_view import unknown_topic_code
from penstock.handlers.context import Broker, RequestContext
from penstock.metadata.image import Configs
from penstock.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext, broker: Broker
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_result(resource, request, broker) for resource in request.resources])


def _result(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, broker: Broker
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        entries = _entries(resource, broker)
    except BrokerError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    wanted = set(resource.configuration_keys or ())
    result.configs = [_row(entry, request) for entry in entries if not wanted or entry.key.name in wanted]
    return result


def _entries(resource: DescribeConfigsResource, broker: Broker) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        topic = broker.image.topics.get(name)
        if topic is None:
            raise BrokerError(unknown_topic_code(name), f"there is no topic {name!r}")
        return topic_config_entries(topic.configs, broker.config)
    if resource.resource_type != ResourceType.BROKER:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} have no configuration here"
        )
    if name == "":
        return _defaults_of_all_brokers(broker)
    if name == str(broker.node_id):
        return broker.config.entries()
    away = next((each for each in broker.image.brokers if str(each) == name), None)
    if away is None or away in broker.image.sessions:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"this is broker {broker.node_id}, not {name!r}: ask that one")
    return _overrides(broker.image.broker_configs.get(away, {}), ConfigSource.DYNAMIC_BROKER_CONFIG)


def _defaults_of_all_brokers(broker: Broker) -> list[ConfigEntry]:
    return _overrides(broker.image.broker_configs.get(None, {}), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def _overrides(overrides: Configs, source: ConfigSource) -> list[ConfigEntry]:
    return [
        ConfigEntry(BROKER_KEYS[name], value, source, (ConfigSynonym(name, value, source),))
        for name, value in sorted(overrides.items())
    ]


def _row(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    key = entry.key
    return DescribeConfigsResourceResult(
        name=key.name,
        value=_shown(key, entry.value),
        read_only=key.scope is Scope.BROKER and not key.dynamic,
        config_source=entry.source,
        is_sensitive=key.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=_shown(key, synonym.value), source=synonym.source)
            for synonym in entry.synonyms
            if request.include_synonyms
        ],
        config_type=key.type,
        documentation=key.doc if request.include_documentation else None,
    )


def _shown(key: Key, value: str | None) -> str | None:
    return None if key.sensitive else value
