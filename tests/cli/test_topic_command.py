"""`penstock topic` against a real broker."""

from __future__ import annotations

import json

from tests.cli.conftest import Tools


def test_given_a_broker_when_a_topic_is_created_altered_and_deleted_then_each_step_can_be_seen(
    tools: Tools, topic: str
) -> None:
    assert tools.output("topic", "create", topic, "-p", 2, "-c", "retention.ms=3600000") == f"created {topic}\n"
    tools.output("produce", topic, "--partition", 1, stdin=b"a\nb\n")

    (described,) = json.loads(tools.output("topic", "describe", topic, "--json"))
    partitions = {partition["partition"]: partition for partition in described["partitions"]}
    assert described["configs"] == {"retention.ms": "3600000"}
    assert len(described["topic_id"]) == 22
    assert partitions[0] == {
        "partition": 0,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "log_start_offset": 0,
        "end_offset": 0,
    }
    assert partitions[1]["end_offset"] == 2

    alteration = ["-p", 3, "-c", "segment.bytes=2097152", "--delete-config", "retention.ms"]
    assert tools.output("topic", "alter", topic, *alteration) == f"altered {topic}\n"
    table = tools.lines("topic", "describe", topic)
    assert table[0] == f"{topic}  id {described['topic_id']}"
    assert table[1] == "  segment.bytes=2097152"
    assert table[2].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END"]
    assert [line.split() for line in table[3:]] == [
        [str(number), "1", "1", "1", "0", str(end)] for number, end in enumerate([0, 2, 0])
    ]
    assert {"topic": topic, "partitions": 3, "replicas": 1} in json.loads(tools.output("topic", "list", "--json"))

    assert tools.output("topic", "delete", topic) == f"deleted {topic}\n"
    assert topic not in tools.output("topic", "list")


def test_given_a_topic_that_exists_then_creating_it_fails_unless_that_is_allowed(tools: Tools, topic: str) -> None:
    tools.output("topic", "create", topic)

    assert "TOPIC_ALREADY_EXISTS" in tools.refusal("topic", "create", topic)
    assert tools.output("topic", "create", topic, "--if-not-exists") == f"{topic} exists already\n"


def test_given_requests_that_the_broker_refuses_then_its_reason_is_shown(tools: Tools, topic: str) -> None:
    no_key, no_partitions, undescribed, undeleted = tools.each_refusal(
        ("topic", "create", topic, "-c", "retention.msec=1"),
        ("topic", "create", topic, "-p", 0),
        ("topic", "describe", topic),
        ("topic", "delete", topic),
    )

    assert "INVALID_CONFIG" in no_key
    assert "INVALID_PARTITIONS" in no_partitions
    assert f'topic "{topic}"' in undescribed
    assert "UNKNOWN_TOPIC_OR_PART" in undeleted


def test_given_mistakes_in_the_command_then_nothing_is_sent_and_the_exit_code_is_2(tools: Tools, topic: str) -> None:
    nothing, no_value, no_port, no_setting, internal = tools.each_refusal(
        ("topic", "alter", topic),
        ("topic", "create", topic, "-c", "retention.ms"),
        ("topic", "list", "-b", "localhost"),
        ("topic", "list", "-X", "nonsense=1"),
        ("topic", "delete", "__consumer_offsets"),
        exit_code=2,
    )

    assert "nothing to alter" in nothing
    assert "KEY=VALUE" in no_value
    assert "HOST:PORT" in no_port
    assert '-X: No such configuration property: "nonsense"' in no_setting
    assert "--internal" in internal
