"""`penstock produce` and `penstock consume` against a real broker."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Tools
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.waiting import eventually


@pytest.fixture
def numbers(tools: Tools, topic: str) -> str:
    """A topic with two partitions: n0 to n4, one millisecond apart, even ones in partition 0."""
    tools.output("topic", "create", topic, "-p", 2, "-c", "message.timestamp.type=CreateTime")
    lines = [{"value": f"n{number}", "partition": number % 2, "timestamp": 1_000 + number} for number in range(5)]
    tools.output("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)).encode())
    return topic


def documents(tools: Tools, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tools.lines("consume", *arguments, "--format", "json")]


def test_given_lines_on_standard_input_when_they_are_produced_then_consume_prints_them_and_stops(
    tools: Tools, topic: str
) -> None:
    tools.output("topic", "create", topic)

    produced = tools.run("produce", topic, stdin="eins\nzwei\r\n\ndrei ü".encode())

    assert produced.stderr.decode() == f"4 records delivered to {topic}\n"
    assert tools.lines("consume", topic) == ["eins", "zwei", "", "drei ü"]


def test_given_keys_headers_codecs_and_acks_when_a_file_is_produced_then_records_have_them(
    broker: BrokerProcess, tools: Tools, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    # librdkafka leaves alone what compression would not make smaller, and either line may have a batch of its own.
    long = "x" * 1_000
    file.write_text(f"a=1={long}\nb=2={long}\n")
    tools.output("topic", "create", topic)
    modes = [("gzip", "all"), ("snappy", "1"), ("lz4", "0"), ("zstd", "all")]

    tools.each_lines(
        *(("produce", topic, file, "-K", "=", "-H", f"z={codec}", "-z", codec, "--acks", acks) for codec, acks in modes)
    )

    found = eventually(lambda: [] if len(read := documents(tools, topic)) < 8 else read)  # acks=0 waits for nobody
    for codec, _ in modes:
        records = [document for document in found if document["headers"] == [["z", codec]]]
        assert [(document["key"], document["value"]) for document in records] == [
            ("a", f"1={long}"),
            ("b", f"2={long}"),
        ]
    (segment,) = (broker.data / f"{topic}-0").glob("*.log")
    dumped = map(json.loads, tools.lines("log", "dump", "--json", segment))
    assert {line["codec"] for line in dumped if line["kind"] == "batch"} == {codec for codec, _ in modes}


def test_given_a_topic_printed_as_json_when_it_is_piped_into_another_then_that_is_a_copy(
    tools: Tools, topic: str
) -> None:
    tools.output("topic", "create", topic, "-p", 2)
    tools.output("topic", "create", f"{topic}-copy", "-p", 2)
    lines = [
        {"key": "k", "value": {"a": 1}, "headers": {"h": "v"}, "partition": 1, "timestamp": 1_700_000_000_000},
        {"key_base64": "/w==", "value": None, "partition": 0},
    ]
    tools.output("produce", topic, "--json", stdin="\n".join(map(json.dumps, lines)).encode())

    printed = tools.output("consume", topic, "-f", "json")
    tools.output("produce", f"{topic}-copy", "--json", stdin=printed.encode())

    copied = documents(tools, f"{topic}-copy")
    by_partition = {document.pop("partition"): document for document in copied}
    assert by_partition[1]["value"] == '{"a":1}'
    assert (by_partition[0]["key_base64"], by_partition[0]["value"]) == ("/w==", None)
    originals = {document.pop("partition"): document for document in map(json.loads, printed.splitlines())}
    assert originals == {partition: document | {"topic": topic} for partition, document in by_partition.items()}


def test_given_lines_that_fail_then_they_are_named_the_others_delivered_and_the_exit_code_is_1(
    tools: Tools, topic: str
) -> None:
    tools.output("topic", "create", topic, "-c", "max.message.bytes=1000")
    lines = [json.dumps({"value": "ok"}), "{", json.dumps({"value": "x" * 2_000}), json.dumps({"value": "fine"})]

    said = tools.refusal(
        "produce", topic, "--json", "-X", "linger.ms=0", "-X", "batch.num.messages=1", stdin="\n".join(lines).encode()
    )

    assert f"2 records delivered to {topic}" in said
    assert "penstock: line 2: not JSON" in said
    assert "penstock: line 3: " in said and "MSG_SIZE_TOO_LARGE" in said
    assert said.endswith("penstock: 2 of 4 lines failed\n")
    assert tools.lines("consume", topic) == ["ok", "fine"]


def test_given_starting_points_then_consume_begins_there(tools: Tools, numbers: str) -> None:
    place = "{partition}:{offset}={value}"
    beginning, partition, offset, last, last_of_few, time, future, first = tools.each_lines(
        ("consume", numbers, "--from-beginning"),
        ("consume", numbers, "-p", 0, "-f", place),
        ("consume", numbers, "--offset", 1),
        ("consume", numbers, "--last", 3),
        ("consume", numbers, "--last", 99, "-f", "{value}"),
        ("consume", numbers, "--from-timestamp", 1_003),
        ("consume", numbers, "--from-timestamp", "2100-01-01T00:00:00Z"),
        ("consume", numbers, "-p", 1, "--count", 1, "-f", "key-value"),
    )

    assert sorted(beginning) == ["n0", "n1", "n2", "n3", "n4"]
    assert partition == ["0:0=n0", "0:1=n2", "0:2=n4"]
    assert sorted(offset) == ["n2", "n3", "n4"]
    assert last == ["n2", "n3", "n4"]
    assert last_of_few == ["n0", "n1", "n2", "n3", "n4"]
    assert sorted(time) == ["n3", "n4"]
    assert future == []
    assert first == ["null\tn1"]


def test_given_an_offset_outside_the_log_then_consume_says_where_the_log_is(tools: Tools, numbers: str) -> None:
    finished = tools.run("consume", numbers, "-p", 1, "--offset", 50)

    assert (finished.returncode, finished.stdout) == (0, b"")
    assert finished.stderr.decode() == "penstock: partition 1 ends at offset 2, not 50\n"


def test_given_mistakes_then_consume_and_produce_say_so(tools: Tools, numbers: str) -> None:
    no_topic, no_partition, no_file = tools.each_refusal(
        ("consume", "no-such-topic"), ("consume", numbers, "-p", 7), ("produce", numbers, "no-such-file")
    )
    two_starts, no_format, no_time, two_keys = tools.each_refusal(
        ("consume", numbers, "--last", 1, "--offset", 1),
        ("consume", numbers, "-f", "jsno"),
        ("consume", numbers, "--from-timestamp", "noon"),
        ("produce", numbers, "--json", "-K", ":"),
        exit_code=2,
    )

    assert 'no topic "no-such-topic"' in no_topic
    assert "no partition 7: it has 2" in no_partition
    assert "No such file" in no_file
    assert "exclude each other" in two_starts
    assert "did you mean json?" in no_format
    assert "--from-timestamp" in no_time
    assert "--json" in two_keys


def test_given_follow_when_records_arrive_then_they_are_printed_until_ctrl_c(tools: Tools, numbers: str) -> None:
    command = tools.command("consume", numbers, "--follow", "--last", 1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=tools.environment) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"n4\n"

        tools.output("produce", numbers, stdin=b"new\n")

        assert following.stdout.readline() == b"new\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 0


def test_given_a_terminal_and_input_that_takes_long_then_a_progress_bar_is_shown(tools: Tools, topic: str) -> None:
    tools.output("topic", "create", topic)

    _produce_until_a_bar_is_shown(tools, topic)


def _produce_until_a_bar_is_shown(tools: Tools, topic: str) -> None:
    """In the foreground of a terminal of its own."""
    terminal, stderr = pty.openpty()
    os.set_blocking(terminal, False)
    shown = bytearray()
    with subprocess.Popen(
        tools.command("produce", topic), stdin=subprocess.PIPE, stderr=stderr, env=tools.environment
    ) as producing:
        os.close(stderr)
        assert producing.stdin is not None

        def bar_is_shown() -> bool:
            assert producing.stdin is not None
            producing.stdin.write(b"line\n")
            producing.stdin.flush()
            shown.extend(_available(terminal))
            return b" records" in shown

        eventually(bar_is_shown, 20)
        producing.stdin.close()
        assert producing.wait(10) == 0
    os.close(terminal)


def test_given_a_terminal_when_the_command_is_in_its_background_then_no_progress_bar_covers_it(
    tools: Tools, topic: str, tmp_path: Path
) -> None:
    for each in (topic, f"{topic}-foreground"):
        tools.output("topic", "create", each)
    lines = tmp_path / "lines"
    os.mkfifo(lines)
    # In a shell with job control, as somebody at a terminal has it.
    script = f"set -m; {shlex.join(tools.command('produce', topic))} < {shlex.quote(str(lines))} & wait"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "-c", script], tools.environment)
    with lines.open("wb", buffering=0) as writing:
        writing.write(b"line\n")
        eventually(lambda: tools.lines("consume", topic) == ["line"], 30)
        # One that began later takes long enough by now.
        _produce_until_a_bar_is_shown(tools, f"{topic}-foreground")
        writing.write(b"line\n")
    shown = b""
    while chunk := _until_closed(terminal):
        shown += chunk
    os.close(terminal)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert f"2 records delivered to {topic}".encode() in shown
    assert b"\x1b" not in shown


def _until_closed(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # what a terminal says when nobody has it open any more
        return b""


def _available(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except (BlockingIOError, OSError):
        return b""
