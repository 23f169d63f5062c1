"""Commands that are told to stop: while Spark starts, while they are planned, and together with Spark's own process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from penstock.cli.pipeline_options import spark_session
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.running import StopRequest, stopping_on_signals
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess, eventually

_STARTS_WITHIN_S = 90
_ENDS_WITHIN_S = 60
Start = Callable[[str], "Command"]

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java here: Spark cannot be tried")


class Command:
    """An archive that follows a topic, in a process group of its own as a service is."""

    def __init__(self, home: Path, bootstrap: str, topic: str) -> None:
        self._said = home / "said"
        command = [
            *(sys.executable, "-m", "penstock.cli.main", "pipeline", "archive", topic, "--to", str(home / "archive")),
            *("--format", "parquet", "--follow", "--bootstrap-server", bootstrap, "--master", "local[1]"),
            *("--spark", f"spark.local.dir={home / 'spark'}", "--spark", "spark.driver.memory=512m"),
        ]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                process_group=0,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def until(self, condition: Callable[[], bool]) -> None:
        def is_met() -> bool:
            assert self._process.poll() is None, self.said
            return condition()

        eventually(is_met, _STARTS_WITHIN_S)

    def has_java(self) -> bool:
        return "java" in self._names()

    def ended(self, how: signal.Signals) -> int:
        """The exit code, after a signal to all of them."""
        os.killpg(self._process.pid, how)
        return self._process.wait(_ENDS_WITHIN_S)

    def leaves_nothing(self) -> bool:
        return not self._names()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _names(self) -> list[str]:
        """Of the processes in its group."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
                state, _, group = rest.split()[:3]
                if int(group) == self._process.pid and state != "Z":
                    found.append(name)
        return found


@pytest.fixture
def start(broker: BrokerProcess, tmp_path: Path) -> Iterator[Start]:
    commands: list[Command] = []

    def started(topic: str) -> Command:
        commands.append(Command(tmp_path, broker.bootstrap, topic))
        return commands[-1]

    yield started
    for command in commands:
        command.kill()


@needs_java
def test_given_a_service_that_follows_when_all_its_processes_get_sigterm_then_it_ends_with_0_and_says_so(
    start: Start, broker: BrokerProcess, topic_name: str
) -> None:
    create(broker.bootstrap, topic_name)
    fill(broker.bootstrap, topic_name, [Given("a"), Given("b")])
    command = start(topic_name)
    command.until(lambda: "batch done" in command.said)

    exit_code = command.ended(signal.SIGTERM)

    assert exit_code == 0, command.said
    assert "stopped on request" in command.said and "Traceback" not in command.said
    eventually(command.leaves_nothing, _ENDS_WITHIN_S)


@needs_java
def test_given_a_command_whose_spark_starts_when_it_is_interrupted_then_it_ends_with_0_and_leaves_no_process(
    start: Start, topic_name: str
) -> None:
    command = start(topic_name)
    command.until(command.has_java)

    exit_code = command.ended(signal.SIGINT)

    assert exit_code == 0, command.said
    assert command.said.splitlines()[-1] == "penstock: archive: stopped on request"
    eventually(command.leaves_nothing, _ENDS_WITHIN_S)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_given_a_pipeline_that_is_planned_when_it_is_told_to_stop_then_it_ends_at_once_with_0(
    spark: SparkSession, how: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    with pytest.raises(typer.Exit) as ended, spark_session("archive", None, None):
        os.kill(os.getpid(), how)
        pytest.fail("it was not told")

    assert ended.value.exit_code == 0
    assert capsys.readouterr().err == "penstock: archive: stopped on request\n"
    assert {each: signal.getsignal(each) for each in before} == before


@pytest.mark.parametrize("error", [Py4JNetworkError("gone"), ConnectionRefusedError(), PipelineError("it failed")])
def test_given_a_query_that_was_told_to_stop_when_something_fails_without_spark_then_it_has_stopped(
    spark: SparkSession, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, spark_session("replay", None, None):
        with stopping_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_made
        raise error

    assert ended.value.exit_code == 0
    assert capsys.readouterr().err.startswith("penstock: replay: stopped on request")


def test_given_a_second_request_when_its_signal_comes_several_times_then_it_stays_urgent() -> None:
    stop = StopRequest()

    requests = [stop.make(now_s) for now_s in (1.0, 1.1, 2.0, 2.1)]

    assert requests == [True, False, True, False]
    assert stop.is_made and stop.is_urgent
