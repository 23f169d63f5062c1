"""A standalone Spark cluster: a master and workers, each a process of its own, as in `sbin/start-all.sh`.

Driver and executors share nothing there but the file system: what works on it works on any cluster that has this
package installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

from tests.testkit import eventually

_HOME = Path(pyspark.__file__).parent
_HOST = "127.0.0.1"
_SETTINGS = ("spark.ui.enabled=false", "spark.executor.memory=512m", "spark.executor.cores=1")
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 10
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


class Standalone:
    """`address` is what `--master` takes."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, script: Path, *arguments: str, timeout_s: float) -> str:
        """A driver of its own; what it printed. Raises AssertionError with what it said if it fails."""
        return _run([sys.executable, str(script), self.address, *arguments], timeout_s)

    def pipeline(self, *arguments: str, timeout_s: float) -> str:
        """`penstock pipeline`, on the cluster; what it printed, likewise."""
        settings = [part for setting in _SETTINGS for part in ("--spark", setting)]
        command = [sys.executable, "-m", "penstock.cli.main", "pipeline", *arguments]
        return _run([*command, "--master", self.address, *settings], timeout_s)


def _run(command: Sequence[str], timeout_s: float) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=_environment())
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@contextlib.contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[Standalone]:
    directory.mkdir(parents=True)
    with contextlib.ExitStack() as processes:
        bind = ["--host", _HOST, "--port", "0", "--webui-port", "0"]
        log = directory / "master.log"
        processes.enter_context(_process("master.Master", bind, log))
        address = _said(log, _ADDRESS)[1]
        logs = [directory / f"worker-{number}.log" for number in range(workers)]
        for log in logs:
            held = ["--cores", "1", "--memory", "512m", "--work-dir", str(log.with_suffix(""))]
            processes.enter_context(_process("worker.Worker", [*bind, *held, address], log))
        for log in logs:
            _said(log, _REGISTERED)
        yield Standalone(address)


@contextlib.contextmanager
def _process(name: str, arguments: Sequence[str], log: Path) -> Iterator[None]:
    command = [str(_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environment())
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    ours = {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": _HOST, "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **ours, "SPARK_DAEMON_MEMORY": "256m"}


def _said(log: Path, what: re.Pattern[str]) -> re.Match[str]:
    found = eventually(
        lambda: what.search(log.read_text(errors="replace")),
        _START_TIMEOUT_S,
        f"{log.name} does not say {what.pattern}",
    )
    assert found is not None
    return found
