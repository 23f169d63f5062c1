"""A broker with another protocol than Kafka's: started on loopback as its makers ship it, measured, and ended.

What must stay true: nothing of a peer outlives its `with` block, whatever happened in it; every load runs in a process
of its own with requests made beforehand, as the one on Kafka's protocol does, so that no client library is measured in
the peer's place; a peer that is not installed says so and how to get it.
"""

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import psutil  # type: ignore[import-untyped]

from bench import process
from bench.machine import in_own_process
from bench.percentiles import latency_figures
from bench.replay import Replayed

Answer = TypeVar("Answer")

START_TIMEOUT_S = 600  # an Erlang node has a lot to load, on a machine that may do other things as well
STOP_TIMEOUT_S = 60
POLL_S = 0.002
IDLE_S = 2.0
LOG_TAIL_LINES = 25
LATENCY_S = 5.0
LATENCY_VALUE_BYTES = 1_000
# Enough for a second or two, and with small values not for minutes.
VOLUME_BYTES = 256_000_000
VALUES_COUNT_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """So many values of this size into, or out of, one stream of the peer at this port."""

    port: int
    stream: str
    value_bytes: int
    count: int

    @classmethod
    def of(cls, port: int, stream: str, value_bytes: int, volume_bytes: int) -> Self:
        """In whole hundreds, which protocols with frames of many values need."""
        count = min(volume_bytes // value_bytes, VALUES_COUNT_LIMIT)
        return cls(port, stream, value_bytes, max(1, count // 100) * 100)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of values alone: headers of the protocol are not counted."""

    mb_per_s: float
    messages_per_s: float
    cpu_s_per_gb: float
    """Of all processes of the peer."""

    client_cpu_share: float
    """Of one core; near 1 the client is what was measured."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a peer's clients do, as functions that another process can run. Streams are named, one partition each."""

    create_stream: Callable[[int, str], None]
    delete_stream: Callable[[int, str], None]
    write_one: Callable[[int, str, bytes], None]
    """Returns when the peer has acknowledged it."""

    produce: Callable[[Load], Replayed]
    consume: Callable[[Load], Replayed]
    """From the first value of the stream on."""

    latencies_ms: Callable[[Load, int, float], list[float]]
    """From the moment a value was due until a consumer had it, at a rate per second, for so many seconds."""


class Peer(ABC):
    """One node of a peer in a directory of its own."""

    title: ClassVar[str]
    durability: ClassVar[str]
    """What an acknowledgement means with the settings it is measured with, by its own documentation."""

    unable: ClassVar[Mapping[str, str]]
    """The columns of durability that it has no setting for, each with the reason."""

    protocol: ClassVar[Protocol]

    def __init__(self, directory: Path, cores: Collection[int]) -> None:
        self.directory = directory
        self.port = 0
        self._launcher = ("taskset", "--cpu-list", ",".join(map(str, sorted(cores)))) if cores else ()
        self._log_path = directory / "output.log"
        self._children: list[subprocess.Popen[bytes]] = []

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why it cannot be had here, and what would bring it; None when it can."""

    @classmethod
    @abstractmethod
    def version(cls) -> str: ...

    @classmethod
    def start(cls, directory: Path, cores: Collection[int] = ()) -> Self:
        """Starts it in a directory that is made for it, on these cores or on all, and returns when it answers."""
        directory.mkdir(parents=True, exist_ok=True)
        peer = cls(directory, cores)
        try:
            peer._launch()
            peer._await_answer()
        except BaseException as error:
            error.add_note(peer.log_tail())
            peer.stop()
            raise
        return peer

    @classmethod
    def cold_start_s(cls, directory: Path, cores: Collection[int] = ()) -> float:
        """From the start of the process, without any data, to the first acknowledged write to a new stream."""
        started = time.perf_counter()
        with cls.start(directory, cores) as peer:
            peer.protocol.create_stream(peer.port, "bench-first")
            peer.protocol.write_one(peer.port, "bench-first", b"first")
            return time.perf_counter() - started

    @property
    def pids(self) -> list[int]:
        """Its processes and all theirs."""
        running = _of_each([child.pid for child in self._children if child.poll() is None], psutil.Process)
        return [each.pid for parent in running.values() for each in (parent, *parent.children(recursive=True))]

    def idle_resident_mb(self) -> float:
        """Of all its processes, after two seconds without work."""
        time.sleep(IDLE_S)
        return sum(_of_each(self.pids, process.resident_mb).values())

    def produce(self, value_bytes: int, volume_bytes: int = VOLUME_BYTES) -> Throughput:
        """All acknowledged, on one connection, to one stream."""
        with self._stream("bench-produce") as stream:
            return self._measured(self.protocol.produce, Load.of(self.port, stream, value_bytes, volume_bytes))

    def consume(self, value_bytes: int, volume_bytes: int = VOLUME_BYTES) -> Throughput:
        """What was written just before, on one connection, from one stream."""
        with self._stream("bench-consume") as stream:
            load = Load.of(self.port, stream, value_bytes, volume_bytes)
            in_own_process(self.protocol.produce, load)
            return self._measured(self.protocol.consume, load)

    def latency(
        self, rate_per_s: int, seconds: float = LATENCY_S, value_bytes: int = LATENCY_VALUE_BYTES
    ) -> dict[str, float]:
        """End to end in an open loop: p50_ms, p99_ms, p99.9_ms and max_ms."""
        with self._stream("bench-latency") as stream:
            load = Load(self.port, stream, value_bytes, count=0)
            return latency_figures(in_own_process(self.protocol.latencies_ms, load, rate_per_s, seconds))

    def stop(self) -> None:
        """Asks politely, last started first; what has not ended in time is killed, by its id."""
        everything = list(_of_each(self.pids, psutil.Process).values())
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        _, left = psutil.wait_procs(everything, timeout=5)
        for each in left:
            each.kill()

    def log_tail(self) -> str:
        if not self._log_path.exists():
            return ""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join([f"--- end of {self._log_path}:", *lines[-LOG_TAIL_LINES:]])

    @abstractmethod
    def _launch(self) -> None:
        """Starts its processes with `_run` and sets `port`."""

    @abstractmethod
    def _answers(self) -> bool: ...

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        with self._log_path.open("ab") as log:
            child = subprocess.Popen(
                [*self._launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **environment},
            )
        self._children.append(child)

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            for child in self._children:
                if child.poll() is not None:
                    raise RuntimeError(f"{self.title} ended with {child.returncode} before it answered")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.title} does not answer on port {self.port} after {START_TIMEOUT_S} s")
            time.sleep(POLL_S)

    @contextmanager
    def _stream(self, name: str) -> Iterator[str]:
        self.protocol.create_stream(self.port, name)
        try:
            yield name
        finally:
            self.protocol.delete_stream(self.port, name)

    def _measured(self, client: Callable[[Load], Replayed], load: Load) -> Throughput:
        before = _of_each(self.pids, process.cpu_s)
        run = in_own_process(client, load)
        after = _of_each(self.pids, process.cpu_s)
        peer_cpu_s = sum(seconds - before.get(pid, 0) for pid, seconds in after.items())
        volume_mb = load.count * load.value_bytes / 1e6
        return Throughput(
            volume_mb / run.elapsed_s,
            load.count / run.elapsed_s,
            peer_cpu_s / volume_mb * 1e3,
            run.client_cpu_s / run.elapsed_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(self.log_tail())
        self.stop()


def _of_each(pids: Sequence[int], ask: Callable[[int], Answer]) -> dict[int, Answer]:
    """Of those that are still there: some last only as long as a question to the system."""
    answers = {}
    for pid in pids:
        with suppress(OSError, LookupError, psutil.NoSuchProcess):
            answers[pid] = ask(pid)
    return answers
