"""The table of keys, and the layers that a broker's configuration is made of."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from penstock.core.config import (
    Assignment,
    BrokerConfig,
    ConfigSource,
    environment_assignments,
    environment_name,
    file_assignments,
    set_assignments,
    validate_broker_config,
)
from penstock.core.config_keys import BROKER_KEY_GROUPS, BROKER_KEYS
from penstock.core.config_values import INT_MAX, LONG_MAX, ConfigError, Key, to_text
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.log_keys import TOPIC_KEYS

SOURCES = Path(__file__).parents[2] / "src" / "penstock"
ALL_KEYS = [*BROKER_KEYS.values(), *TOPIC_KEYS.values()]


def a_config(*settings: str) -> BrokerConfig:
    return BrokerConfig(set_assignments(settings))


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_given_a_row_then_it_has_a_doc_and_its_own_default_is_allowed(key: Key) -> None:
    text = to_text(key.default)

    assert key.doc.endswith("."), f"{key.name} has no doc, or one that is not a sentence"
    assert text is None or key.parse(text) == key.default


def test_given_the_table_then_every_name_is_there_once_and_ours_are_marked() -> None:
    rows = [key.name for keys in BROKER_KEY_GROUPS.values() for key in keys]

    assert len(rows) == len(set(rows))
    assert all(name == name.lower() for name in [*rows, *TOPIC_KEYS])


@pytest.mark.parametrize("key", TOPIC_KEYS.values(), ids=lambda key: key.name)
def test_given_a_topic_key_then_it_has_a_default_of_its_own_or_from_broker_keys_that_exist(key: Key) -> None:
    assert (key.default is not None) != bool(key.broker_defaults)
    assert all(default.name in BROKER_KEYS for default in key.broker_defaults)


def test_given_no_settings_then_defaults_are_kafkas_but_for_the_two_that_the_design_changes() -> None:
    config = BrokerConfig()

    assert config.int("log.segment.bytes") == 1_073_741_824
    assert config.int("message.max.bytes") == 1_048_588
    assert config.int("fetch.max.bytes") == 57_671_680
    assert config.int("socket.request.max.bytes") == 104_857_600
    assert config.int("log.message.timestamp.after.max.ms") == 3_600_000
    assert config.int("log.retention.hours") == 336
    assert config.int("log.flush.interval.messages") == 1
    assert config.str("compression.type") == "producer"
    assert config.bool("auto.create.topics.enable") is True
    assert config.list("log.cleanup.policy") == ("delete",)
    assert config.float("log.cleaner.min.cleanable.ratio") == 0.5
    assert config.optional_str("broker.rack") is None


def test_given_all_layers_when_each_is_taken_away_then_the_next_lower_one_counts() -> None:
    file = file_assignments({"num.partitions": 2}, "penstock.toml")
    environment = environment_assignments({"PENSTOCK_NUM_PARTITIONS": "3"})
    sets = set_assignments(["num.partitions=4"])
    flag = (Assignment("num.partitions", "5", "--num-partitions"),)

    layers = [file, environment, sets, flag]
    values = [BrokerConfig(sum(layers[:count], ())).int("num.partitions") for count in range(5)]

    assert values == [1, 2, 3, 4, 5]


def test_given_dynamic_overrides_then_the_brokers_own_beats_the_default_for_all_which_beats_the_static_one() -> None:
    static = a_config("num.partitions=2")

    for_all = static.with_dynamic({"num.partitions": "3"}, {})
    own = static.with_dynamic({"num.partitions": "3"}, {"num.partitions": "4"})

    assert [static.int("num.partitions"), for_all.int("num.partitions"), own.int("num.partitions")] == [2, 3, 4]
    assert [(synonym.value, synonym.source) for synonym in own.entry("num.partitions").synonyms] == [
        ("4", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("2", ConfigSource.STATIC_BROKER_CONFIG),
        ("1", ConfigSource.DEFAULT_CONFIG),
    ]
    assert own.with_dynamic({}, {}).int("num.partitions") == 2


def test_given_a_described_key_then_source_and_default_flag_say_who_set_it() -> None:
    entries = {entry.key.name: entry for entry in a_config("broker.rack=west").entries()}

    assert set(entries) == set(BROKER_KEYS)
    assert (entries["broker.rack"].value, entries["broker.rack"].is_default) == ("west", False)
    assert entries["broker.rack"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert (entries["num.partitions"].value, entries["num.partitions"].is_default) == ("1", True)
    assert entries["log.retention.ms"].value is None


@pytest.mark.parametrize(
    "text",
    [
        "[log]\nsegment.bytes = 65536\n[log.retention]\nms = 5\n[auto.create.topics]\nenable = false",
        '"log.segment.bytes" = 65536\n"log.retention.ms" = "5"\n"auto.create.topics.enable" = "FALSE"',
        'log.segment.bytes = 65536\nlog."retention.ms" = 5\n[auto]\n"create.topics.enable" = false',
    ],
)
def test_given_a_file_when_tables_are_nested_or_keys_quoted_then_it_means_the_same(text: str) -> None:
    config = BrokerConfig(file_assignments(tomllib.loads(text), "penstock.toml"))

    assert config.int("log.segment.bytes") == 65536
    assert config["log.retention.ms"] == 5
    assert config.bool("auto.create.topics.enable") is False


def test_given_a_list_in_a_file_then_it_equals_the_text_with_commas() -> None:
    from_file = BrokerConfig(file_assignments({"log.cleanup.policy": ["compact", "delete"]}, "penstock.toml"))

    assert from_file.list("log.cleanup.policy") == a_config("log.cleanup.policy=compact, delete").list(
        "log.cleanup.policy"
    )


def refusal(*assignments: Assignment) -> str:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(assignments)
    return str(refused.value)


def test_given_an_unknown_key_then_the_message_has_its_name_its_origin_and_the_nearest_key() -> None:
    message = refusal(*file_assignments({"log": {"segement": {"bytes": 1}}}, "/etc/penstock.toml"))

    assert '"log.segement.bytes"' in message
    assert "/etc/penstock.toml" in message
    assert 'did you mean "log.segment.bytes"?' in message


def test_given_a_topic_key_for_the_broker_then_the_message_names_the_brokers_key() -> None:
    assert '"log.retention.ms"' in refusal(*set_assignments(["retention.ms=1"]))


def test_given_an_unknown_variable_then_it_is_refused_with_the_nearest_variable() -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_NUM_PARTITONS; did you mean PENSTOCK_NUM_PARTITIONS"):
        environment_assignments({"PENSTOCK_NUM_PARTITONS": "1"})


def test_given_variables_that_are_not_keys_then_they_are_left_alone() -> None:
    others = {
        "PATH": "/bin",
        "PENSTOCK_BOOTSTRAP": "127.0.0.1:9092",
        "PENSTOCK_PURE_RECORDS": "1",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9092",
        "PENSTOCK_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_KAFKA": "9092",
    }

    assert environment_assignments(others) == ()


def test_given_the_environment_names_then_no_two_keys_share_one_and_none_is_left_alone() -> None:
    for name in BROKER_KEYS:
        (assignment,) = environment_assignments({environment_name(name): "x"})
        assert assignment.name == name


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("log.segment.bytes=abc", "a whole number of at least 1024"),
        ("log.segment.bytes=12", "a whole number of at least 1024"),
        (f"log.segment.bytes={INT_MAX + 1}", "a whole number"),
        (f"log.retention.ms={LONG_MAX + 1}", "a whole number of at least -1"),
        ("num.partitions=1_000", "a whole number"),
        ("num.partitions=", "a whole number"),
        ("num.partitions=1.5", "a whole number"),
        ("penstock.http.port=65536", "a whole number from 0 to 65535"),
        ("auto.create.topics.enable=yes", "true or false"),
        ("compression.type=brotli", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleaner.min.cleanable.ratio=1.1", "a number from 0 to 1"),
        ("log.cleaner.min.cleanable.ratio=nan", "a number from 0 to 1"),
        ("log.cleanup.policy=delete,shred", "compact, delete"),
        ("log.cleanup.policy=delete,delete", "different elements"),
        ("broker.rack=", "text"),
    ],
)
def test_given_a_bad_value_then_the_message_has_key_value_origin_and_what_is_allowed(
    setting: str, allowed: str
) -> None:
    name, _, value = setting.partition("=")

    message = refusal(*set_assignments([setting]))

    assert message.startswith(f'{name}="{value}" (from --set): expected ')
    assert allowed in message


def test_given_a_mistake_that_a_higher_layer_hides_then_it_is_refused_all_the_same() -> None:
    file = file_assignments({"num.partitions": "many"}, "penstock.toml")

    assert "penstock.toml" in refusal(*file, *set_assignments(["num.partitions=2"]))


def test_given_a_key_twice_in_a_file_or_a_value_without_meaning_then_the_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        file_assignments({"num": {"partitions": 1}, "num.partitions": 2}, "penstock.toml")
    with pytest.raises(ConfigError, match=r"broker\.rack"):
        file_assignments(tomllib.loads('"broker.rack" = 2020-01-01'), "penstock.toml")


def test_given_set_without_a_value_then_it_says_what_it_takes() -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        set_assignments(["num.partitions"])


def test_given_a_dynamic_override_that_cannot_be_then_the_client_gets_a_code_and_a_reason() -> None:
    for name, text, code in [
        ("num.partition", "1", ErrorCode.INVALID_CONFIG),
        ("num.partitions", "0", ErrorCode.INVALID_CONFIG),
        ("node.id", "2", ErrorCode.INVALID_REQUEST),
    ]:
        with pytest.raises(BrokerError, match=name) as refused:
            validate_broker_config(name, text)
        assert refused.value.code is code


def test_given_log_dirs_then_it_beats_log_dir_and_may_name_one_directory_only() -> None:
    assert a_config("log.dir=a").data_dir == "a"
    assert a_config("log.dir=a", "log.dirs=b").data_dir == "b"
    with pytest.raises(ConfigError, match="several"):
        a_config("log.dirs=a,b")


def test_given_a_key_in_effect_then_the_broker_asks_for_it_somewhere_outside_the_table() -> None:
    sources = [path.read_text() for path in SOURCES.rglob("*.py") if path.name not in ("config_keys.py", "log_keys.py")]
    through_topics = {default.name for key in TOPIC_KEYS.values() for default in key.broker_defaults}

    asked_for = {name for name in BROKER_KEYS if any(f'"{name}"' in source for source in sources)}

    assert {key.name for key in BROKER_KEYS.values() if key.in_effect} - through_topics - asked_for == set()
