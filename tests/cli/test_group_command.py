"""`penstock group` against a real broker, with groups of both protocols."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.cli.conftest import Tools
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.waiting import eventually
from typer.testing import CliRunner

from penstock.cli.app import build_app


@pytest.fixture
def numbers(tools: Tools, topic: str) -> str:
    """A topic with three partitions: five records in partition 0, one millisecond apart, two in 1, none in 2."""
    tools.output("topic", "create", topic, "-p", 3, "-c", "retention.ms=-1")
    lines = [{"value": f"n{number}", "partition": 0, "timestamp": 1_000 + number} for number in range(5)]
    lines += [{"value": "n", "partition": 1, "timestamp": 1_000}] * 2
    tools.output("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)).encode())
    return topic


@pytest.fixture
def group(broker: BrokerProcess, numbers: str) -> str:
    """A group without members, at offset 3 of partition 0 and at the end of partition 1."""
    name = f"group-{numbers}"
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    eventually(lambda: _is_committed(client, [TopicPartition(numbers, 0, 3), TopicPartition(numbers, 1, 2)]))
    client.close()
    return name


def _is_committed(client: Consumer, offsets: list[TopicPartition]) -> bool:
    try:
        client.commit(offsets=offsets, asynchronous=False)
        return True
    except KafkaException as refused:
        # The first group of a broker waits for the topic that offsets are kept in.
        assert refused.args[0].code() in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        return False


@contextmanager
def a_member(broker: BrokerProcess, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A member that has its partitions, as long as the block lasts."""
    settings = {"group.protocol": protocol, "client.id": "worker", "enable.auto.commit": False}
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **settings})
    member.subscribe([topic])
    try:
        eventually(lambda: member.poll(0.1) is not None or len(member.assignment()) == 3, 30)
        yield member
    finally:
        member.close()


def described(tools: Tools, group: str) -> dict[str, Any]:
    (document,) = json.loads(tools.output("group", "describe", group, "--json"))
    return document  # type: ignore[no-any-return]


def committed(tools: Tools, group: str) -> dict[int, int | None]:
    return {partition["partition"]: partition["committed"] for partition in described(tools, group)["partitions"]}


def cells(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_given_a_group_without_members_when_it_is_described_then_offsets_and_lag_are_shown(
    tools: Tools, numbers: str, group: str
) -> None:
    table, listed, document = tools.each_lines(
        ("group", "describe", group), ("group", "list", "--state", "empty"), ("group", "describe", "-a", "--json")
    )

    assert table[0].startswith(f"{group}  Empty  classic  coordinator 1 at 127.0.0.1:")
    assert cells(table[1:-1]) == [
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"],
        [numbers, "0", "3", "5", "2", "-"],
        [numbers, "1", "2", "2", "0", "-"],
        [numbers, "2", "-", "0", "-", "-"],
    ]
    assert table[-1] == "total lag 2, without 1 partition that nothing is committed for"
    assert [group, "Empty", "classic"] in cells(listed)
    (shown,) = [found for found in json.loads("\n".join(document)) if found["group"] == group]
    assert (shown["state"], shown["type"], shown["protocol_type"], shown["members"]) == ("Empty", "classic", "", [])
    assert shown["total_lag"] == 2
    assert shown["partitions"][2] == {
        "topic": numbers,
        "partition": 2,
        "committed": None,
        "log_end_offset": 0,
        "lag": None,
        "member_id": None,
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_given_a_group_with_a_member_then_it_is_shown_and_reset_and_delete_are_refused(
    broker: BrokerProcess, tools: Tools, numbers: str, group: str, protocol: str
) -> None:
    with a_member(broker, group, numbers, protocol):
        shown = eventually(lambda: found if (found := described(tools, group))["state"] == "Stable" else None)
        table, listed, others = tools.each_lines(
            ("group", "describe", group),
            ("group", "list", "--state", "Stable", "--type", protocol),
            ("group", "list", "--state", "Stable", "--type", "classic" if protocol == "consumer" else "consumer"),
        )
        no_reset, no_delete, no_offsets = tools.each_refusal(
            ("group", "reset-offsets", group, "-t", numbers, "--to-earliest", "--execute"),
            ("group", "delete", group, "--yes"),
            ("group", "delete", group, "--yes", "--offsets", "-t", numbers),
        )

    (member,) = shown["members"]
    assert (shown["type"], shown["protocol_type"]) == (protocol, "consumer")
    assert (member["client_id"], member["host"]) == ("worker", "127.0.0.1")
    assert member["assignment"] == [{"topic": numbers, "partition": partition} for partition in range(3)]
    assert {partition["member_id"] for partition in shown["partitions"]} == {member["member_id"]}
    assert table[2].split() == [member["member_id"], "worker", "127.0.0.1", f"{numbers}:0,1,2"]
    assert [group, "Stable", protocol] in cells(listed)
    assert group not in "\n".join(others)
    assert no_reset.startswith(f'penstock: group "{group}" is Stable with 1 member: stop its consumers first')
    assert "NON_EMPTY_GROUP" in no_delete and "stop its consumers first" in no_delete
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in no_offsets
    assert committed(tools, group) == {0: 3, 1: 2, 2: None}


def test_given_a_plan_when_it_is_a_dry_run_then_nothing_changes_until_it_is_executed(
    tools: Tools, numbers: str, group: str
) -> None:
    reset = ("group", "reset-offsets", group, "--topic", numbers, "--to-earliest")

    dry = tools.run(*reset)
    before = committed(tools, group)
    done = tools.run(*reset, "--execute")

    assert cells(dry.stdout.decode().splitlines()) == [
        ["TOPIC", "PARTITION", "BEFORE", "AFTER", "MESSAGES"],
        [numbers, "0", "3", "0", "-3"],
        [numbers, "1", "2", "0", "-2"],
        [numbers, "2", "-", "0", "-"],
    ]
    assert dry.stderr.decode() == "penstock: dry run, nothing was changed: the same command with --execute does it\n"
    assert before == {0: 3, 1: 2, 2: None}
    assert (done.returncode, done.stdout) == (0, dry.stdout)
    assert done.stderr.decode() == f"penstock: set 3 offsets of {group}\n"
    assert committed(tools, group) == {0: 0, 1: 0, 2: 0}


def test_given_ways_to_reset_then_offsets_go_there_and_stay_inside_the_log(
    tools: Tools, numbers: str, group: str
) -> None:
    def planned(*arguments: object) -> tuple[dict[int, int], str]:
        finished = tools.run("group", "reset-offsets", group, "--json", *arguments)
        assert finished.returncode == 0, finished.stderr
        plan = json.loads(finished.stdout)
        assert (plan["group"], plan["executed"]) == (group, False)
        return {row["partition"]: row["after"] for row in plan["offsets"]}, finished.stderr.decode()

    assert planned("--all-topics", "--to-latest")[0] == {0: 5, 1: 2}
    assert planned("-t", f"{numbers}:0", "--to-datetime", "1970-01-01T00:00:01.002")[0] == {0: 2}
    assert planned("--all-topics", "--to-datetime", "1970-01-01T01:00:01.001+01:00")[0] == {0: 1, 1: 2}
    assert planned("-t", f"{numbers}:0,1", "--shift-by", "-2")[0] == {0: 1, 1: 0}
    offsets, said = planned("-t", numbers, "--to-offset", 4)
    assert offsets == {0: 4, 1: 2, 2: 0}
    assert f"{numbers}-1 ends at offset 2: taking that, not 4" in said


def test_given_a_plan_in_a_file_when_it_is_executed_then_that_is_where_the_group_is(
    tools: Tools, numbers: str, group: str, tmp_path: Path
) -> None:
    plan, lines, bad = tmp_path / "plan.json", tmp_path / "plan.csv", tmp_path / "bad.csv"
    plan.write_text(tools.output("group", "reset-offsets", group, "-t", f"{numbers}:0", "--to-offset", 1, "--json"))
    lines.write_text(f"{numbers},0,2\n{numbers},1,1\n")
    bad.write_text(f"{numbers},0,2\n{numbers},9,1\n")

    tools.output("group", "reset-offsets", group, "--from-file", plan, "--execute")
    after_plan = committed(tools, group)
    tools.output("group", "reset-offsets", group, "--from-file", lines, "--execute")

    assert after_plan == {0: 1, 1: 2, 2: None}
    refused = tools.refusal("group", "reset-offsets", group, "--from-file", bad, "--execute")
    assert f'topic "{numbers}" has no partition 9: it has 3, from 0' in refused
    assert committed(tools, group) == {0: 2, 1: 1, 2: None}


def test_given_plans_that_are_invalid_then_all_is_named_and_nothing_is_written(
    tools: Tools, numbers: str, group: str
) -> None:
    reset = ("group", "reset-offsets", group, "--execute")
    unknown, uncommitted, no_offsets, no_file = tools.each_refusal(
        (*reset, "-t", f"{numbers}:0,7", "-t", "nope", "--to-earliest"),
        (*reset, "-t", numbers, "--shift-by", 1),
        ("group", "reset-offsets", f"new-{group}", "--all-topics", "--to-latest"),
        (*reset, "--from-file", "no-such-file"),
    )

    assert f'no topic "nope"; topic "{numbers}" has no partition 7: it has 3, from 0' in unknown
    assert f"no committed offset to shift in {numbers}-2" in uncommitted
    assert "no committed offsets: name topics with --topic" in no_offsets
    assert "No such file" in no_file
    assert committed(tools, group) == {0: 3, 1: 2, 2: None}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("reset-offsets group --all-topics", "give one of --to-earliest"),
        ("reset-offsets group --all-topics --to-latest --to-offset 1", "give one of --to-earliest"),
        ("reset-offsets group --to-latest", "give one of --topic and --all-topics"),
        ("reset-offsets group --to-latest --all-topics -t orders", "give one of --topic and --all-topics"),
        ("reset-offsets group --to-latest -t orders:x", "expected TOPIC, or TOPIC:0,1,2"),
        ("reset-offsets group -t orders --to-datetime noon", "expected a time like"),
        ("describe", "names of groups or --all"),
        ("describe group --all", "names of groups or --all"),
        ("list --state sleepy", 'no "sleepy"'),
        ("delete group --offsets", "--offsets and --topic go together"),
        ("delete ''", "cannot be empty"),
    ],
)
def test_given_mistakes_in_the_command_then_no_broker_is_asked_and_the_exit_code_is_2(command: str, said: str) -> None:
    finished = CliRunner().invoke(build_app(), ["group", *shlex.split(command)])

    assert (finished.exit_code, finished.stdout) == (2, "")
    assert said in finished.stderr


def test_given_a_group_when_it_is_deleted_then_only_after_a_yes(tools: Tools, group: str) -> None:
    unasked = tools.refusal("group", "delete", group)
    no = tools.refusal("group", "delete", group, stdin=b"n\n")
    yes = tools.run("group", "delete", group, stdin=b"y\n")
    missing, undescribed = tools.each_refusal(("group", "delete", group, "--yes"), ("group", "describe", group))

    assert "--yes deletes without asking" in unasked
    assert f"Delete {group}?" in no and "nothing was deleted" in no
    assert (yes.returncode, yes.stdout.decode()) == (0, f"deleted {group}\n")
    assert "GROUP_ID_NOT_FOUND" in missing
    assert undescribed == f'penstock: no group "{group}"\n'


def test_given_offsets_when_those_of_a_topic_are_deleted_then_the_others_stay(
    tools: Tools, numbers: str, group: str
) -> None:
    deleted = tools.output("group", "delete", group, "--offsets", "-t", f"{numbers}:0", "--yes")

    assert deleted == f"deleted offsets of {group}: {numbers}:0\n"
    assert committed(tools, group) == {0: None, 1: 2, 2: None}
    nothing = tools.refusal("group", "delete", group, "--offsets", "-t", "other", "--yes")
    assert 'no committed offset for topic "other"' in nothing
