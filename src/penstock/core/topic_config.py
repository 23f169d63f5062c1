"""What a topic's overrides and the broker's defaults make together: the settings of a log.

`overrides` is the map kept in the metadata store: key to text, only what somebody set. It is checked when it is
written; a map read back later is trusted to be valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from penstock.core.config import BrokerConfig, ConfigEntry, ConfigSource, ConfigSynonym
from penstock.core.config_values import BrokerDefault, ConfigError, ConfigValue, Key, nearest, to_text
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.log_keys import TOPIC_KEYS


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Each field is the topic key of the same name, dots for underscores."""

    cleanup_policy: tuple[str, ...]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


_FIELD_KEYS = {field.name: TOPIC_KEYS[field.name.replace("_", ".")] for field in fields(TopicConfig)}


def topic_config(overrides: Mapping[str, str], broker: BrokerConfig) -> TopicConfig:
    values = {name: _value(key, overrides, broker) for name, key in _FIELD_KEYS.items()}
    return TopicConfig(**values)  # type: ignore[arg-type]  # the table gives each field its type


def _value(key: Key, overrides: Mapping[str, str], broker: BrokerConfig) -> ConfigValue:
    text = overrides.get(key.name)
    if text is not None:
        return key.parse(text)
    for default in key.broker_defaults:
        value = broker[default.name]
        if value is not None:
            return _in_unit(value, default)
    return key.default


def _in_unit(value: ConfigValue, default: BrokerDefault) -> ConfigValue:
    if default.unit_ms == 1:
        return value
    assert isinstance(value, int)
    return value * default.unit_ms if value >= 0 else -1  # any negative retention means "for ever"


def validate_topic_config(name: str, value: str | None) -> None:
    """Raises BrokerError for a key that topics do not have or a value that it does not take."""
    key = _topic_key(name)
    if value is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f'"{name}" needs a value: {key.allowed()}')
    try:
        key.parse(value)
    except ConfigError as refused:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f'{name}="{value}": {refused}') from None


def _topic_key(name: str) -> Key:
    key = TOPIC_KEYS.get(name)
    if key is not None:
        return key
    for topic_key in TOPIC_KEYS.values():
        if any(default.name == name for default in topic_key.broker_defaults):
            raise BrokerError(
                ErrorCode.INVALID_CONFIG, f'unknown topic key "{name}": a topic calls it "{topic_key.name}"'
            )
    guess = nearest(name, TOPIC_KEYS)
    hint = f'; did you mean "{guess}"?' if guess else ""
    raise BrokerError(ErrorCode.INVALID_CONFIG, f'unknown topic key "{name}"{hint}')


def validate_topic_overrides(overrides: Mapping[str, str | None], broker: BrokerConfig) -> TopicConfig:
    """All overrides of a topic, each alone and then together."""
    for name, value in overrides.items():
        validate_topic_config(name, value)
    config = topic_config({name: value for name, value in overrides.items() if value is not None}, broker)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is above "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})",
        )
    return config


def topic_config_entry(name: str, overrides: Mapping[str, str], broker: BrokerConfig) -> ConfigEntry:
    """What DescribeConfigs says of one key of a topic. Raises BrokerError for a key that topics do not have."""
    key = _topic_key(name)
    synonyms = []
    if name in overrides:
        synonyms.append(ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    for default in key.broker_defaults:
        synonyms.extend(synonym for synonym in broker.synonyms(default.name) if synonym.value is not None)
    if not key.broker_defaults:
        synonyms.append(ConfigSynonym(name, to_text(key.default), ConfigSource.DEFAULT_CONFIG))
    return ConfigEntry(key, to_text(_value(key, overrides, broker)), synonyms[0].source, tuple(synonyms))


def topic_config_entries(overrides: Mapping[str, str], broker: BrokerConfig) -> tuple[ConfigEntry, ...]:
    return tuple(topic_config_entry(name, overrides, broker) for name in sorted(TOPIC_KEYS))
