"""A topic goes through `penstock pipeline transform` while its driver, its Python workers and the broker are killed.

Every record comes out once, in the order of its partition, with its key and time, whatever is killed and when. A
pipeline that dies is started again with its checkpoint, as an operator would have it.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.chaos.conftest import luck, rounds
from tests.chaos.faults import inject, strace_or_skip
from tests.spark.piping import Found, Given, create, fill, read
from tests.testkit import Broker, eventually

__all__ = ["luck"]  # a fixture

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="no Java here: Spark cannot be tried")

SOURCE, TARGET = "source", "target"
PARTITIONS = 3
PER_BATCH = 200
RECORDS_PER_KILL = 6 * PER_BATCH  # more batches than are waited for, so that there is a commit to come
NOW_MS = 1_790_000_000_000
VICTIMS = ("driver", "worker", "broker", "driver in a commit", "broker in a commit")
# Where Spark notes that a batch has begun and that it is done, and about how often in two batches; each write of the
# broker for the transactions of a batch.
DRIVER_COMMITS, BROKER_COMMITS = ("rename", 8), ("pwritev,pwritev2", 24)

_PROJECT = Path(__file__).parents[2]
_PROGRESS_WITHIN_S = 180
_END_WITHIN_S = 90
_FURTHER = "batch done"


@pytest.mark.timeout(3600)
def test_given_a_transform_when_driver_workers_and_broker_are_killed_then_its_output_is_its_input_in_order(
    tmp_path: Path, luck: random.Random
) -> None:
    strace = strace_or_skip()
    victims = [*VICTIMS, *(luck.choice(VICTIMS) for _ in range(rounds(short=5, full=20) - len(VICTIMS)))]
    luck.shuffle(victims)
    with Broker.start(tmp_path / "data") as broker:
        broker.restart(same_port=True)
        create(broker.bootstrap, SOURCE, TARGET, partitions=PARTITIONS)
        source = Source(broker.bootstrap)
        with Pipeline(broker.bootstrap, tmp_path) as pipeline:
            for victim in victims:
                source.write(RECORDS_PER_KILL)
                pipeline.until(pipeline.further(luck.randint(1, 2)))
                if victim == "driver in a commit":
                    _kill_in(DRIVER_COMMITS, pipeline.java, strace, luck)
                elif victim == "broker in a commit":
                    _kill_in(BROKER_COMMITS, broker.pid, strace, luck)
                else:
                    _let_pass(luck.random())  # any moment of a batch
                if victim == "worker":
                    pipeline.kill_a_worker(luck)
                elif victim == "driver":
                    pipeline.kill()
                elif victim.startswith("broker"):
                    broker.kill()
                    broker.restart(same_port=True)
            # Something to do after the last kill too: a pipeline that is still starting does not hear SIGTERM yet.
            source.write(RECORDS_PER_KILL)
            pipeline.until(lambda: source.is_copied(broker.bootstrap))
            pipeline.end()
            print(f"killed: {', '.join(victims)}; {pipeline.starts} starts, {pipeline.said(_FURTHER)} batches")

        assert read(broker.bootstrap, TARGET) == source.expected


def _kill_in(calls: tuple[str, int], pid: int, strace: str, luck: random.Random) -> None:
    """Any of the next calls of this kind ends the process."""
    kind, count = calls
    tracer = inject(strace, pid, f"{kind}:signal=SIGKILL:when={luck.randint(1, count)}")
    eventually(lambda: tracer.poll() is not None, _PROGRESS_WITHIN_S, "there was no such call")


class Source:
    """Numbers, in turn to each partition, with keys and times of their own."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._numbers = itertools.count()
        self.expected: list[list[Found]] = [[] for _ in range(PARTITIONS)]

    def write(self, count: int) -> None:
        records = list(self._records(count))
        fill(self._bootstrap, SOURCE, records)
        for record in records:
            assert isinstance(record.key, str) and isinstance(record.value, str)
            key, value = record.key.encode(), f"{record.value} seen".encode()
            self.expected[record.partition].append(Found(value, key, record.headers, record.timestamp_ms))

    def _records(self, count: int) -> Iterator[Given]:
        for number in itertools.islice(self._numbers, count):
            headers = (("number", b"%d" % number),)
            yield Given(f"{number:09}", f"key-{number % 7}", number % PARTITIONS, headers, NOW_MS + number)

    def is_copied(self, bootstrap: str) -> bool:
        return sum(map(len, read(bootstrap, TARGET))) >= sum(map(len, self.expected))


class Pipeline:
    """The command as a process, started again whenever it has ended. All of them say what they do in one file."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.starts = 0
        self._said = directory / "pipeline.said"
        self._command = [
            *(sys.executable, "-m", "penstock.cli.main", "pipeline", "transform", SOURCE, "--to", TARGET),
            *("--sql", "SELECT concat(value, ' seen') AS value FROM input"),
            *("--checkpoint", str(directory / "checkpoint"), "--bootstrap-server", bootstrap),
            *("--follow", "--interval", "0", "--max-per-batch", str(PER_BATCH), "--master", "local[2]"),
            *("--spark", f"spark.local.dir={directory / 'spark'}", "--spark", "spark.driver.memory=512m"),
        ]
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self._said.open("ab") as said:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(_PROJECT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"},
                process_group=0,
            )

    def said(self, word: str) -> int:
        return self._said.read_bytes().count(word.encode())

    def further(self, batches: int) -> Callable[[], bool]:
        """Whether that many batches more than now are done."""
        wanted = self.said(_FURTHER) + batches
        return lambda: self.said(_FURTHER) >= wanted

    def until(self, condition: Callable[[], bool]) -> None:
        def is_met() -> bool:
            if self._process.poll() is not None:
                self._process = self._started()
            return condition()

        eventually(is_met, _PROGRESS_WITHIN_S, "the pipeline does not get on")

    @property
    def java(self) -> int:
        """The process of Java's that the driver has started."""
        return next(pid for pid in _descendants(self._process.pid) if _name_of(pid) == "java")

    def kill(self) -> None:
        """SIGKILL to the driver and all that it has started: the JVM and the workers are processes of their own."""
        for pid in (self._process.pid, *_descendants(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def kill_a_worker(self, luck: random.Random) -> None:
        """A Python process that reads, transforms or writes for a task; if there is none, the next one."""
        self.until(lambda: self._has_killed_a_worker(luck))

    def _has_killed_a_worker(self, luck: random.Random) -> bool:
        workers = [pid for pid in _descendants(self._process.pid) if b"pyspark" in _command_of(pid)]
        if not workers:
            return False
        try:
            os.kill(luck.choice(workers), signal.SIGKILL)
        except ProcessLookupError:  # it has ended meanwhile
            return False
        return True

    def end(self) -> None:
        """SIGTERM, after which it finishes its batch and says how it went."""
        if self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(_END_WITHIN_S) == 0, self._tail()

    def _tail(self) -> str:
        return "\n".join(self._said.read_text(errors="replace").splitlines()[-40:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            error.add_note(self._tail())


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(directory.name))
    found, unseen = [], [pid]
    while unseen:
        of_one = children.get(unseen.pop(), [])
        found += of_one
        unseen += of_one
    return found


def _name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _command_of(pid: int) -> bytes:
    """Of a Python process; the JVM's is left out."""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return command if b"python" in command.split(b"\0", 1)[0] else b""
    return b""


def _let_pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= until)
