"""Decisions about configuration that changes while brokers run: of topics, of one broker, of all brokers.

The store holds only what somebody set; defaults stay in the table of keys, so that a better default of a later release
reaches every topic that did not choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from penstock.controller.commands import (
    AlterConfigs,
    AlterConfigsResult,
    AlterOperation,
    ChangeConfigs,
    ConfigChange,
    ReplaceConfigs,
    ResourceType,
)
from penstock.controller.decision import Decision, Writes
from penstock.controller.elections import forget_eligible
from penstock.core.config import BrokerConfig, validate_broker_config
from penstock.core.config_keys import BROKER_KEYS
from penstock.core.config_values import ConfigError, ConfigType, Key
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.log_keys import TOPIC_KEYS
from penstock.core.topic_config import topic_config_entry, validate_topic_overrides
from penstock.metadata.image import ClusterImage, Configs, TopicImage
from penstock.metadata.records import BrokerConfigsRecord, broker_configs_key, topic_key

MIN_ISR = "min.insync.replicas"

ValueOf = Callable[[str], str | None]


def alter_configs(
    command: AlterConfigs, image: ClusterImage, config: BrokerConfig
) -> Decision[tuple[AlterConfigsResult, ...]]:
    """`config` is the static configuration of the controller's broker: defaults and checks come from it."""
    asked = Counter(alteration.resource for alteration in command.resources)
    writes = Writes()
    results = []
    for alteration in command.resources:
        error = None
        try:
            if asked[alteration.resource] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "the request names a resource more than once")
            _alter(alteration, image, config, writes)
        except BrokerError as refused:
            error = refused
        results.append(AlterConfigsResult(alteration.resource, error))
    return Decision(() if command.validate_only else writes.transactions(), tuple(results))


def _alter(
    alteration: ReplaceConfigs | ChangeConfigs, image: ClusterImage, config: BrokerConfig, writes: Writes
) -> None:
    resource = alteration.resource
    if resource.resource_type == ResourceType.TOPIC:
        _alter_topic(_topic(resource.name, image), alteration, config, writes)
    elif resource.resource_type == ResourceType.BROKER:
        _alter_brokers(_broker(resource.name, image), alteration, image, config, writes)
    else:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} have no configuration here"
        )


def _topic(name: str, image: ClusterImage) -> TopicImage:
    topic = image.topics.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
    return topic


def _broker(name: str, image: ClusterImage) -> BrokerId | None:
    """None for all brokers."""
    if name == "":
        return None
    broker_id = BrokerId(int(name)) if name.isascii() and name.isdigit() else None
    if broker_id not in image.brokers:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}")
    return broker_id


def _alter_topic(
    topic: TopicImage, alteration: ReplaceConfigs | ChangeConfigs, config: BrokerConfig, writes: Writes
) -> None:
    def value_in_force(name: str) -> str | None:
        return topic_config_entry(name, topic.configs, config).value

    configs = _altered(alteration, topic.configs, TOPIC_KEYS, value_in_force)
    validate_topic_overrides(configs, config)
    if configs != topic.configs:
        if configs.get(MIN_ISR) != topic.configs.get(MIN_ISR):
            forget_eligible(topic, writes)
        writes.put(topic_key(topic.name), replace(topic.record(), configs=configs), mod_revision=topic.mod_revision)


def _alter_brokers(
    broker_id: BrokerId | None,
    alteration: ReplaceConfigs | ChangeConfigs,
    image: ClusterImage,
    config: BrokerConfig,
    writes: Writes,
) -> None:
    present = image.broker_configs.get(broker_id, {})

    def value_in_force(name: str) -> str | None:
        return present.get(name) or config.entry(name).value

    configs = _altered(alteration, present, BROKER_KEYS, value_in_force)
    for name, value in configs.items():
        validate_broker_config(name, value)
    _check_together(broker_id, configs, image, config)
    if configs != present:
        key = broker_configs_key(broker_id)
        writes.put(key, BrokerConfigsRecord(configs=configs), mod_revision=image.mod_revisions.get(key, 0))


def _check_together(broker_id: BrokerId | None, configs: Configs, image: ClusterImage, config: BrokerConfig) -> None:
    try:
        if broker_id is None:
            config.with_dynamic(configs, {})
        else:
            config.with_dynamic(image.broker_configs.get(None, {}), configs)
    except ConfigError as refused:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(refused)) from None


def _altered(
    alteration: ReplaceConfigs | ChangeConfigs, present: Configs, keys: Mapping[str, Key], value_in_force: ValueOf
) -> dict[str, str]:
    """The overrides after the alteration, not yet checked."""
    if isinstance(alteration, ReplaceConfigs):
        _check_distinct([name for name, _ in alteration.configs])
        return {name: _given(name, value) for name, value in alteration.configs}
    _check_distinct([change.name for change in alteration.changes])
    configs = dict(present)
    for change in alteration.changes:
        match change.operation:
            case AlterOperation.SET:
                configs[change.name] = _given(change.name, change.value)
            case AlterOperation.DELETE:
                configs.pop(change.name, None)
            case AlterOperation.APPEND | AlterOperation.SUBTRACT:
                configs[change.name] = _with_list_changed(change, keys, value_in_force)
            case unknown:
                raise BrokerError(ErrorCode.INVALID_REQUEST, f"there is no operation {unknown} on a configuration key")
    return configs


def _check_distinct(names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a configuration key is given twice")


def _given(name: str, value: str | None) -> str:
    if value is None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f'"{name}" is to be set to no value')
    return value


def _with_list_changed(change: ConfigChange, keys: Mapping[str, Key], value_in_force: ValueOf) -> str:
    """The list with elements added that it lacks, or removed that it has."""
    key = keys.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f'"{change.name}" is not a list: it can only be set or deleted')
    elements = _elements(value_in_force(change.name))
    named = _elements(_given(change.name, change.value))
    if change.operation == AlterOperation.APPEND:
        elements += [element for element in named if element not in elements]
    else:
        elements = [element for element in elements if element not in named]
    return ",".join(elements)


def _elements(text: str | None) -> list[str]:
    return [element.strip() for element in text.split(",")] if text else []
