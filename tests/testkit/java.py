"""Kafka's own Java code, lent to the tests: its clients through a driver process, its tools, its broker.

The jars are fetched once by scripts/fetch_jars.sh. Where that is impossible the tests that need them are skipped
with the reason; a driver that does not compile is a failure, not a skip.
"""

import base64
import json
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PROJECT = Path(__file__).parents[2]
CLASS_PATH = f"{PROJECT}/.jars/lib/*:{PROJECT}/.jars/driver.jar"

# What a JVM has to say of itself, of an archive that does not fit for example, is no answer of what runs in it.
LOG_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr")

_LOG_CONFIGURATION = PROJECT / "tests/compat/java/log4j2.properties"
_JARS_OUT_OF_REACH = 3


def require_jars(which: str = "kafka") -> None:
    """Makes the jars ready, or skips the asking test loudly."""
    fetched = _fetch_jars(which)
    if fetched.returncode == _JARS_OUT_OF_REACH:
        pytest.skip(f"jars are out of reach: {fetched.stdout.strip()}")
    assert fetched.returncode == 0, fetched.stdout


@cache  # out of reach once is out of reach for the whole run: Maven may take minutes to find out
def _fetch_jars(which: str) -> subprocess.CompletedProcess[str]:
    script = PROJECT / "scripts/fetch_jars.sh"
    return subprocess.run([script, which], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def java_command(*options: str) -> list[str]:
    """A JVM tuned to start fast rather than to run long."""
    require_jars()
    archive = f"-XX:SharedArchiveFile={PROJECT}/.jars/classes.jsa"  # without it all works, more slowly
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", archive, *LOG_TO_STDERR]
    return ["java", *quick, f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}", *options]


class JavaError(Exception):
    """What a Java client threw: the simple name of the exception class, and its message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaDriver:
    """A running tests/compat/java/Driver: `call` sends one command and waits for its answer."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        options = ["-Xmx256m", "-Dtest.log.level=WARN", "-Dtest.session.log.level=DEBUG"]
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*java_command(*options), "-cp", CLASS_PATH, "Driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def call(self, command: str, **arguments: object) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"command": command, **arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"the Java driver died\n{self.log_path.read_text()}"
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer["message"])
        return answer["result"]

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closing its input ends it


def to_java(data: bytes | None) -> str | None:
    """Bytes as the driver's JSON carries them."""
    return None if data is None else base64.b64encode(data).decode()


def from_java(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
