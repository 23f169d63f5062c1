"""`penstock up` as a real process, and the brokers that it starts."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.testkit.waiting import eventually

_SOURCES = Path(__file__).parents[2] / "src"
_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 30
_OUTPUT_TAIL_CHARACTERS = 5_000


class Up:
    """Use as `with Up.start(tmp_path, "--brokers", "2") as up: ...`; nothing of it outlives the block."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.data = directory / "cluster"
        self.ready_path = directory / "ready.json"
        self._output_path = directory / "output"
        self._seen_pids: set[int] = set()
        command = [sys.executable, "-m", "penstock.cli.main", "up", "--data-dir", str(self.data), "--port", "0"]
        with self._output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--ready-file", str(self.ready_path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(_SOURCES)},
                process_group=0,
            )

    @classmethod
    def start(cls, directory: Path, *arguments: str) -> Self:
        """Returns when all brokers are ready."""
        up = cls(directory, *arguments)
        try:
            eventually(lambda: up.ready_path.exists() or up.process.poll() is not None, _START_TIMEOUT_S)
            assert up.process.poll() is None, up.output()
        except BaseException:
            up.kill()
            raise
        return up

    def brokers(self) -> list[dict[str, Any]]:
        """What the ready file says."""
        brokers: list[dict[str, Any]] = json.loads(self.ready_path.read_text())
        self._seen_pids |= {broker["pid"] for broker in brokers}
        return brokers

    def output(self) -> str:
        return self._output_path.read_text(errors="replace")

    def interrupt(self) -> int:
        """Ctrl-C, which a terminal sends to every process of the group; the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, to the supervisor alone."""
        self.process.kill()
        self.process.wait()

    def left_running(self) -> set[int]:
        """The brokers that the ready file ever named to us and that still run."""
        return {pid for pid in self._seen_pids if _is_broker(pid)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.process.poll() is None:
                assert self.interrupt() == 0, self.output()
        finally:
            if self.process.poll() is None:
                self.kill()
            for pid in self.left_running():
                os.kill(pid, signal.SIGKILL)
        if error is not None:
            error.add_note(self.output()[-_OUTPUT_TAIL_CHARACTERS:])


def _is_broker(pid: int) -> bool:
    """Not merely a process with that id: one that serves, and is not a zombie, whose command line is empty."""
    try:
        return b"penstock.cli.main\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
