"""A broker as its users meet it: an operating-system process with a data directory, a port and a log.

What must stay true: nothing of a broker outlives its `with` block; a broker that leaves the block without a failure
must stop on SIGTERM with exit code 0; when anything fails, its log's tail is in the failure message and its files are
kept.
"""

import itertools
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testkit.waiting import eventually

_SOURCES = Path(__file__).parents[2] / "src"
_LOG_TAIL_LINES = 25
_NUMBERS = itertools.count(1)


class BrokerProcess(ABC):
    """Penstock and Apache Kafka behind one surface, so that a test can be run against either."""

    START_TIMEOUT_S: float = 60
    STOP_TIMEOUT_S: float = 20

    def __init__(
        self,
        data: Path,
        settings: Mapping[str, str],
        *,
        arguments: Sequence[str] = (),
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.data = data
        self.settings = dict(settings)
        self.arguments = tuple(arguments)
        self.launcher = tuple(launcher)
        self.environment = dict(environment or {})
        self.port = port
        # A second broker may be tried on the same directory: each has files of its own beside it.
        self.name = f"{data.name}.{next(_NUMBERS)}"
        self.stdout_path = data.with_name(self.name + ".stdout")
        self.stderr_path = data.with_name(self.name + ".stderr")
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        port: int = 0,
        **settings: object,
    ) -> Self:
        """Starts a broker on `data` and returns when clients can connect.

        `launcher` is a command that becomes the one behind it, in a network of its own for example (testkit/hosts.py).

        Settings are Kafka's keys, with underscores for dots (`num_partitions=3`), or as they are
        (`**{"num.partitions": 3}`).
        """
        values = {name.replace("_", "."): _setting_text(value) for name, value in settings.items()}
        broker = cls(data, values, arguments=arguments, launcher=launcher, environment=environment, port=port)
        broker._launch()
        return broker

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def until_loaded(self) -> None:
        """Returns when nothing is left to be done of a start that already serves clients."""
        return

    @property
    @abstractmethod
    def bootstrap(self) -> str:
        """host:port of the Kafka listener."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to flush or to mark a clean shutdown."""
        process = self._running()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """SIGTERM, and exit code 0 within seconds or the test fails."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(self.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"no exit within {self.STOP_TIMEOUT_S} s of SIGTERM\n{self.log_tail()}") from None
        assert exit_code in self._clean_exit_codes(), f"exit code {exit_code} after SIGTERM\n{self.log_tail()}"

    def restart(self, *, same_port: bool = False) -> None:
        """Starts again on the same data directory; stops the old process first if it still runs."""
        port = self.address[1] if same_port else self.port
        if self.is_running:
            self.stop()
        self.port = port
        self._launch()

    def log_text(self) -> str:
        """Everything the broker has written to standard error and standard output, over all its starts."""
        return "".join(
            path.read_text(errors="replace") for path in (self.stderr_path, self.stdout_path) if path.exists()
        )

    def resident_bytes(self) -> int:
        resident_pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE")

    def descriptor_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _clean_exit_codes(self) -> tuple[int, ...]:
        return (0,)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker was never started"
        return self._process

    def _launch(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        with self.stdout_path.open("ab") as stdout, self.stderr_path.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*self.launcher, *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # The tests are about this tree, whatever version of it is installed.
                env={**os.environ, "PYTHONPATH": str(_SOURCES), **self.environment},
            )
        try:
            eventually(self._is_ready_or_dead, self.START_TIMEOUT_S, "the broker did not become ready")
        except BaseException as error:
            self._end()
            error.add_note(self.log_tail())
            raise

    def _is_ready_or_dead(self) -> bool:
        exit_code = self._running().poll()
        if exit_code is not None:
            raise BrokerDied(f"the broker exited with {exit_code} before it was ready")
        return self._is_ready()

    def _end(self) -> None:
        if self.is_running:
            self.kill()

    def log_tail(self) -> str:
        lines = self.log_text().splitlines()
        return "\n".join([f"--- end of {self.stderr_path} and {self.stdout_path}:", *lines[-_LOG_TAIL_LINES:]])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._end()
            error.add_note(self.log_tail())
        elif self.is_running:
            self.stop()


class BrokerDied(Exception):
    """The process ended while the test still needed it."""


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
