"""A broker for the tools to talk to, and the tools as processes.

The tools work with any broker of the protocol: PENSTOCK_TEST_BROKER=kafka runs these tests against Apache Kafka.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.testkit.broker import Broker
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.kafka_broker import KafkaBroker
from typer.testing import CliRunner

from penstock.cli.app import build_app


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    kind = KafkaBroker if os.environ.get("PENSTOCK_TEST_BROKER") == "kafka" else Broker
    # Groups wait three seconds for a second member otherwise.
    with kind.start(tmp_path_factory.mktemp("cli") / "data", group_initial_rebalance_delay_ms=0) as broker:
        yield broker


class Tools:
    """Runs `penstock ...` against a broker."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PENSTOCK_BOOTSTRAP": self._bootstrap}

    def run(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, env=self.environment, timeout=60
        )

    def output(self, *arguments: object, stdin: bytes = b"") -> str:
        """What the command prints; it must succeed."""
        finished = self.run(*arguments, stdin=stdin)
        assert finished.returncode == 0, finished.stderr.decode()
        return finished.stdout.decode()

    def lines(self, *arguments: object) -> list[str]:
        return self.output(*arguments).splitlines()

    def each_lines(self, *commands: tuple[object, ...]) -> list[list[str]]:
        """As `lines`, for commands that do not depend on each other."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda command: self.lines(*command), commands))

    def each_refusal(self, *commands: tuple[object, ...], exit_code: int = 1) -> list[str]:
        """As `refusal`, for commands that do not depend on each other."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda command: self.refusal(*command, exit_code=exit_code), commands))

    def refusal(self, *arguments: object, stdin: bytes = b"", exit_code: int = 1) -> str:
        """What the command says on standard error; it must fail."""
        finished = self.run(*arguments, stdin=stdin)
        assert finished.returncode == exit_code, (finished.returncode, finished.stderr.decode())
        return finished.stderr.decode()


class QuickTools(Tools):
    """Runs the commands in this process: they are many here, and starting one takes longer than its work."""

    def run(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        finished = CliRunner().invoke(build_app(), [*map(str, arguments)], input=stdin, env=self.environment)
        assert finished.exception is None or isinstance(finished.exception, SystemExit), finished.exception
        return subprocess.CompletedProcess(
            [*map(str, arguments)], finished.exit_code, finished.stdout_bytes, finished.stderr_bytes
        )

    def each_lines(self, *commands: tuple[object, ...]) -> list[list[str]]:
        return [self.lines(*command) for command in commands]

    def each_refusal(self, *commands: tuple[object, ...], exit_code: int = 1) -> list[str]:
        return [self.refusal(*command, exit_code=exit_code) for command in commands]


@pytest.fixture
def tools(broker: BrokerProcess) -> Tools:
    return Tools(broker.bootstrap)


@pytest.fixture
def quick(broker: BrokerProcess) -> Tools:
    return QuickTools(broker.bootstrap)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:8]}"
