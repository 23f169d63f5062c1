"""A topic's configuration: its overrides over the broker's defaults."""

from __future__ import annotations

import pytest

from penstock.core.config import BrokerConfig, ConfigSource, set_assignments
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.log_keys import TOPIC_KEYS
from penstock.core.topic_config import (
    topic_config,
    topic_config_entries,
    topic_config_entry,
    validate_topic_config,
    validate_topic_overrides,
)

HOUR_MS = 3_600_000


def a_broker(*settings: str) -> BrokerConfig:
    return BrokerConfig(set_assignments(settings))


def test_given_no_overrides_then_a_topic_has_the_brokers_defaults() -> None:
    config = topic_config({}, a_broker())

    assert config.segment_bytes == 1_073_741_824
    assert config.segment_ms == 168 * HOUR_MS
    assert config.retention_ms == 336 * HOUR_MS
    assert config.retention_bytes == -1
    assert config.flush_ms == 2**63 - 1
    assert config.flush_messages == 1
    assert config.is_deleted_by_retention
    assert not config.is_compacted
    assert not config.is_log_append_time


def test_given_an_override_then_it_beats_the_broker() -> None:
    broker = a_broker("log.segment.bytes=65536", "log.flush.interval.messages=10")

    config = topic_config({"segment.bytes": "131072", "cleanup.policy": "compact"}, broker)

    assert config.segment_bytes == 131072
    assert config.cleanup_policy == ("compact",)
    assert config.flush_messages == 10


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        (["log.retention.hours=2"], 2 * HOUR_MS),
        (["log.retention.hours=2", "log.retention.minutes=3"], 180_000),
        (["log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"], 4),
        (["log.retention.hours=-1"], -1),
        (["log.retention.hours=-7"], -1),
        (["log.retention.minutes=-1"], -1),
    ],
)
def test_given_retention_in_several_units_then_the_finest_counts(settings: list[str], retention_ms: int) -> None:
    assert topic_config({}, a_broker(*settings)).retention_ms == retention_ms


def test_given_flush_and_roll_intervals_then_the_more_exact_key_counts() -> None:
    broker = a_broker("log.flush.scheduler.interval.ms=9", "log.roll.hours=1")

    assert (topic_config({}, broker).flush_ms, topic_config({}, broker).segment_ms) == (9, HOUR_MS)
    exact = a_broker(
        "log.flush.scheduler.interval.ms=9", "log.flush.interval.ms=8", "log.roll.hours=1", "log.roll.ms=7"
    )
    assert (topic_config({}, exact).flush_ms, topic_config({}, exact).segment_ms) == (8, 7)


def test_given_dynamic_broker_defaults_then_topics_follow_them() -> None:
    broker = a_broker("log.retention.ms=5").with_dynamic({"log.retention.ms": "6"}, {})

    assert topic_config({}, broker).retention_ms == 6


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retention.msec", "1", 'did you mean "retention.ms"?'),
        ("log.retention.ms", "1", 'a topic calls it "retention.ms"'),
        ("no such thing at all", "1", "unknown topic key"),
        ("retention.ms", "soon", "a whole number of at least -1"),
        ("retention.ms", "-2", "a whole number of at least -1"),
        ("retention.ms", None, "needs a value"),
        ("flush.messages", "0", "at least 1"),
        ("cleanup.policy", "none", "compact, delete"),
        ("message.timestamp.type", "logappendtime", "CreateTime, LogAppendTime"),
        ("compression.zstd.level", "23", "-131072 to 22"),
    ],
)
def test_given_a_bad_topic_setting_then_the_client_learns_why(name: str, value: str | None, reason: str) -> None:
    with pytest.raises(BrokerError) as refused:
        validate_topic_config(name, value)

    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert reason in refused.value.message
    assert name in refused.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", ""),
        ("delete.retention.ms", "0"),
        ("min.cleanable.dirty.ratio", "0.1"),
        ("retention.ms", "-1"),
        ("remote.storage.enable", "false"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,12:3"),
    ],
)
def test_given_kafkas_topic_keys_then_they_are_accepted(name: str, value: str) -> None:
    validate_topic_config(name, value)


def test_given_overrides_that_contradict_each_other_then_they_are_refused_together() -> None:
    overrides = {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}

    with pytest.raises(BrokerError, match=r"min\.compaction\.lag\.ms \(10\)"):
        validate_topic_overrides(overrides, a_broker())


def test_given_a_described_topic_then_synonyms_run_from_the_override_to_the_default() -> None:
    broker = a_broker("log.retention.minutes=3").with_dynamic({"log.retention.ms": "7"}, {})

    overridden = topic_config_entry("retention.ms", {"retention.ms": "5"}, broker)
    inherited = topic_config_entry("retention.ms", {}, broker)

    assert (overridden.value, overridden.source) == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in overridden.synonyms] == [
        ("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.minutes", "3", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "336", ConfigSource.DEFAULT_CONFIG),
    ]
    assert (inherited.value, inherited.source) == ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_given_nothing_set_then_a_described_topic_shows_defaults_in_its_own_unit() -> None:
    entries = {entry.key.name: entry for entry in topic_config_entries({}, a_broker())}

    assert set(entries) == set(TOPIC_KEYS)
    assert all(entry.is_default and entry.value is not None for entry in entries.values())
    assert entries["retention.ms"].value == str(336 * HOUR_MS)
    assert entries["cleanup.policy"].value == "delete"
    assert entries["preallocate"].value == "false"
    assert entries["local.retention.ms"].value == "-2"
