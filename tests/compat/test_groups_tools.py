"""Kafka's own tools on our groups: kafka-consumer-groups, and the formatters that decode __consumer_offsets."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.compat.clients.confluent import ConfluentClient
from tests.compat.clients.interface import Message
from tests.compat.members import OFFSETS_PARTITIONS, OFFSETS_TOPIC, PARTITIONS, Feeder, Group, Kind
from tests.testkit import BrokerProcess, eventually
from tests.testkit.java import CLASS_PATH, JavaDriver, java_command

pytestmark = pytest.mark.xdist_group("groups-tools")

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
# Kinds of records of __consumer_offsets.
OFFSET_COMMIT, CONSUMER_GROUP_METADATA, CONSUMER_GROUP_CURRENT_ASSIGNMENT = "1", "3", "8"
KINDS = [Kind("confluent-kafka", "classic", ("range",)), Kind("confluent-kafka", "consumer", ())]

Tool = Callable[..., list[list[str]]]


@pytest.fixture
def tool(java_driver: JavaDriver, group_broker: BrokerProcess) -> Tool:
    """Runs kafka-consumer-groups and returns the words of every line it printed."""

    def run(*arguments: str) -> list[list[str]]:
        words = ["--bootstrap-server", group_broker.bootstrap, *arguments]
        answer = java_driver.call("run_tool", tool=GROUPS_TOOL, arguments=words)
        return [line.split() for line in answer["printed"].splitlines() if line.strip()]

    return run


@pytest.fixture(params=KINDS, ids=str)
def group(request: pytest.FixtureRequest, new_group: Callable[[], Group]) -> Iterator[Group]:
    """Two members that have processed everything there is."""
    group = new_group()
    with group:
        with Feeder(group.broker.bootstrap, group.topics) as feeder:
            members = [group.join(request.param) for _ in range(2)]
            group.wait_until_shared_by(*members)
            sent = feeder.stop()
        ends = {(topic, partition): 1 + max(o for t, p, o in sent if p == partition) for topic, partition, _ in sent}
        eventually(lambda: group.committed() == ends, 20, "not all is committed")
        yield group


def ended(group: Group) -> Group:
    for member in group.members:
        member.leave()
    return group


def table(lines: list[list[str]], *columns: str) -> set[tuple[str, ...]]:
    """These columns of what the tool prints under its line of names."""
    start = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    # "COORDINATOR (ID)" and what stands under it are two words each.
    names = lines[start]
    rows = [dict(zip(names, line, strict=False)) for line in lines[start + 1 :]]
    return {tuple(row[column] for column in columns) for row in rows}


def test_given_a_group_when_listed_then_its_type_and_state_are_told(group: Group, tool: Tool) -> None:
    kind = group.members[0].kind.protocol

    listed = tool("--list", "--state", "--type")

    (row,) = [line for line in listed if line[0] == group.group_id]
    assert row[1:] == [kind.capitalize(), "Stable"]
    assert [group.group_id, kind.capitalize()] in tool("--list", "--type", kind)
    assert [group.group_id, "Stable"] not in tool("--list", "--state", "empty")


def test_given_a_group_when_described_then_position_end_and_owner_of_every_partition_are_told(
    group: Group, tool: Tool
) -> None:
    (topic,) = group.topics
    owners = {
        str(partition): f"{member.said('assigned')[-1]['id']}"
        for member in group.members
        for _, partition in member.owned()
    }
    committed = {partition: offset for (_, partition), offset in group.committed().items()}

    described = table(
        tool("--describe", "--group", group.group_id), "TOPIC", "PARTITION", "CURRENT-OFFSET", "LAG", "CONSUMER-ID"
    )

    expected = {(topic, str(index), str(committed[index]), "0", owners[str(index)]) for index in range(PARTITIONS)}
    assert described == expected


def test_given_a_group_when_its_members_and_state_are_described_then_each_is_there(group: Group, tool: Tool) -> None:
    ids = {member.said("assigned")[-1]["id"] for member in group.members}

    members = table(tool("--describe", "--members", "--group", group.group_id), "CONSUMER-ID", "#PARTITIONS")
    (state,) = table(
        tool("--describe", "--state", "--group", group.group_id), "STATE", "#MEMBERS", "ASSIGNMENT-STRATEGY"
    )

    assert members == {(member_id, "6") for member_id in ids}
    assert state == ("Stable", "2", "range" if group.members[0].kind.protocol == "classic" else "uniform")


def test_given_a_group_when_its_offsets_are_reset_then_only_without_members(group: Group, tool: Tool) -> None:
    (topic,) = group.topics
    reset = ["--reset-offsets", "--group", group.group_id, "--topic", topic, "--to-offset", "1", "--execute"]

    refused = tool(*reset)
    ended(group)
    done = table(tool(*reset), "TOPIC", "PARTITION", "NEW-OFFSET")

    assert "inactive" in " ".join(map(" ".join, refused))
    assert done == {(topic, str(index), "1") for index in range(PARTITIONS)}
    offsets = table(tool("--describe", "--group", group.group_id), "PARTITION", "CURRENT-OFFSET")
    assert offsets == {(str(index), "1") for index in range(PARTITIONS)}


def test_given_a_group_when_it_is_deleted_then_only_without_members_and_it_is_gone(group: Group, tool: Tool) -> None:
    (topic,) = group.topics

    refused = tool("--delete", "--group", group.group_id)
    ended(group)
    offsets_deleted = tool("--delete-offsets", "--group", group.group_id, "--topic", f"{topic}:0,1")
    left = table(tool("--describe", "--group", group.group_id), "PARTITION")
    deleted = tool("--delete", "--group", group.group_id)

    assert "not empty" in " ".join(map(" ".join, refused)), refused
    assert "Successful" in " ".join(map(" ".join, offsets_deleted)), offsets_deleted
    assert left == {(str(index),) for index in range(2, PARTITIONS)}
    assert "successful" in " ".join(map(" ".join, deleted)), deleted
    assert [group.group_id] not in tool("--list")


def test_given_our_offsets_topic_when_kafkas_formatters_read_it_then_every_record_is_understood(
    group: Group, java_driver: JavaDriver
) -> None:
    protocol = group.members[0].kind.protocol
    committed = {partition: offset for (_, partition), offset in group.committed().items()}

    offsets = formatted(java_driver, group.broker, "OffsetsMessageFormatter", group.group_id)

    commits = {
        record["key"]["data"]["partition"]: record["value"]["data"]["offset"]
        for record in offsets
        if record["key"]["data"]["group"] == group.group_id
    }
    assert commits == committed
    if protocol == "classic":
        groups = formatted(java_driver, group.broker, "GroupMetadataMessageFormatter", group.group_id)
        last = [record for record in groups if record["key"]["data"]["group"] == group.group_id][-1]
        ids = {member["memberId"] for member in last["value"]["data"]["members"]}
        assert ids == {member.said("assigned")[-1]["id"] for member in group.members}
        assert last["value"]["data"]["generation"] == group.members[0].generation()


def formatted(java_driver: JavaDriver, broker: BrokerProcess, formatter: str, group_id: str) -> list[Any]:
    partition = offsets_partition(group_id)
    with_client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "never-joined"})
    _, end = with_client.get_watermark_offsets(TopicPartition(OFFSETS_TOPIC, partition), 10)
    with_client.close()
    words = ["--bootstrap-server", broker.bootstrap, "--topic", OFFSETS_TOPIC, "--partition", str(partition)]
    words += ["--offset", "earliest", "--max-messages", str(end)]
    words += ["--timeout-ms", "5000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    printed = java_driver.call("run_tool", tool=CONSOLE_CONSUMER, arguments=words)["printed"]
    assert f"Processed a total of {end} messages" in printed, printed[-2000:]
    return list(json_values(printed))


def json_values(text: str) -> Iterator[Any]:
    """The formatters put nothing between one record and the next."""
    position = text.find("{")
    while position >= 0:
        value, position = json.JSONDecoder().raw_decode(text, position)
        yield value
        position = text.find("{", position)


def offsets_partition(group_id: str) -> int:
    """As Java hashes a text."""
    hashed = 0
    for unit in group_id:
        hashed = (31 * hashed + ord(unit)) & 0xFFFFFFFF
    return (hashed if hashed < 1 << 31 else (1 << 32) - hashed) % OFFSETS_PARTITIONS


@pytest.mark.parametrize("group", KINDS[1:], ids=str, indirect=True)
def test_given_our_offsets_files_when_kafka_dumps_them_then_every_key_and_value_is_decoded(group: Group) -> None:
    directory = group.broker.data / f"{OFFSETS_TOPIC}-{offsets_partition(group.group_id)}"
    files = ",".join(str(file) for file in sorted(directory.glob("*.log")))
    command = [*java_command(), "-cp", CLASS_PATH, "kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", files]

    # In a JVM of its own: Scala remembers where it printed first.
    dump = subprocess.run(command, capture_output=True, text=True, timeout=60)

    records = re.findall(r"^\| offset: .* key: (\S.*?) payload: (.*)$", dump.stdout, re.MULTILINE)
    of_group = [(key, payload) for key, payload in records if group.group_id in key]
    kinds = {json.loads(key)["type"] for key, _ in of_group}
    assert {OFFSET_COMMIT, CONSUMER_GROUP_METADATA, CONSUMER_GROUP_CURRENT_ASSIGNMENT} <= kinds, dump.stdout[-2000:]
    assert all(payload.startswith(("{", "<")) for _, payload in of_group), of_group
    assert "not be decoded" not in dump.stdout


def test_given_a_group_that_only_committed_when_described_then_it_has_offsets_and_no_members(
    tool: Tool, new_group: Callable[[], Group]
) -> None:
    empty = new_group()
    (topic,) = empty.topics
    client = ConfluentClient(empty.broker.bootstrap)
    client.produce(topic, [Message(b"x")] * 3)
    consumer = client.consumer(**{"group.id": empty.group_id})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()

    described = table(
        tool("--describe", "--group", empty.group_id), "PARTITION", "CURRENT-OFFSET", "LAG", "CONSUMER-ID"
    )

    assert described == {("0", "2", "1", "-")}
