"""The exactly-once examples as processes that are killed, stay away for a while, and come back under their names."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.testkit import eventually
from tests.testkit.java import CLASS_PATH, java_command

SOURCE, TARGET = "source", "target"
PARTITIONS = 4
GROUP = "copiers"
COPIERS = 2
TRANSACTION_SIZE = 750
ABORT_RATIO = 0.15
SESSION_MS = 3_000
TRANSACTION_TIMEOUT_MS = 10_000

_PROJECT = Path(__file__).parents[2]
_PROGRESS_WITHIN_S = 60
_END_WITHIN_S = 60
# A JVM says that a signal ended it, after it has closed everything; who is asked before he listens is ended by it.
_ENDED_WELL = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
# How long a copier stays away at most: long enough for another to get its partitions, and to wait for its offsets.
_AWAY_S = 1.5 * SESSION_MS / 1000


def command_of(kind: str) -> list[str]:
    if kind == "java":
        return [*java_command("-Xmx128m", "-Dtest.log.level=WARN"), "-cp", CLASS_PATH, "ExactlyOnceCopy"]
    return [sys.executable, str(_PROJECT / "examples" / "exactly_once.py")]


class Copier:
    """One process. Everything that its predecessors of that name said is in the same file."""

    def __init__(self, command: list[str], name: str, directory: Path, seed: int) -> None:
        self.name = name
        self.path = directory / f"{name}.said"
        self.back_at = 0.0
        with self.path.open("ab") as said:
            self._process = subprocess.Popen(
                [*command, "--transactional-id", name, "--seed", str(seed)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONPATH": str(_PROJECT / "src")},
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask_to_end(self) -> None:
        self._process.terminate()

    def until_ended(self) -> None:
        code = self._process.wait(_END_WITHIN_S)
        assert code in _ENDED_WELL, f"{self.name} ended with {code}\n{self.log_tail()}"

    def log_tail(self) -> str:
        return "\n".join([f"--- {self.name}:", *self.path.read_text(errors="replace").splitlines()[-25:]])


class Copiers:
    """They share one group. Whoever ends by itself is started again, as an operator would have it, and is counted."""

    def __init__(self, kind: str, bootstrap: str, directory: Path, luck: random.Random) -> None:
        directory.mkdir()
        self._directory = directory
        self._luck = luck
        self._command = [
            *command_of(kind),
            *("--bootstrap-server", bootstrap, "--source", SOURCE, "--target", TARGET, "--group", GROUP),
            *("--transaction-size", str(TRANSACTION_SIZE), "--abort-ratio", str(ABORT_RATIO)),
            *("--session-timeout-ms", str(SESSION_MS), "--transaction-timeout-ms", str(TRANSACTION_TIMEOUT_MS)),
        ]
        self.ended_by_themselves = 0
        self._copiers = {name: self._start(name) for name in (f"copier-{number}" for number in range(COPIERS))}

    def _start(self, name: str) -> Copier:
        return Copier(self._command, name, self._directory, self._luck.randrange(2**31))

    def kill_one(self) -> None:
        """It comes back at once, or after a while."""
        victim = self._copiers[self._luck.choice(sorted(self._copiers))]
        victim.kill()
        victim.back_at = time.monotonic() + self._luck.choice((0, self._luck.random() * _AWAY_S))

    def bring_back(self) -> None:
        for name, copier in self._copiers.items():
            if copier.is_running or time.monotonic() < copier.back_at:
                continue
            if copier.back_at == 0:
                self.ended_by_themselves += 1
            self._copiers[name] = self._start(name)

    def said(self, word: str) -> int:
        """How many transactions they said to have committed, or aborted."""
        return sum(copier.path.read_bytes().count(word.encode()) for copier in self._copiers.values())

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for it, with all copiers brought back when it is time."""

        def is_met() -> bool:
            self.bring_back()
            return condition()

        eventually(is_met, _PROGRESS_WITHIN_S, "the copiers do not get on")

    def end(self) -> None:
        """Who is away need not come back."""
        running = [copier for copier in self._copiers.values() if copier.is_running]
        for copier in running:
            copier.ask_to_end()
        for copier in running:
            copier.until_ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for copier in self._copiers.values():
            copier.kill()
            if error is not None:
                error.add_note(copier.log_tail())


class Source:
    """Numbers, in turn to each partition."""

    def __init__(self, bootstrap: str) -> None:
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._numbers = itertools.count()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def write(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            value = b"%09d" % number
            self._producer.produce(SOURCE, value, partition=number % PARTITIONS)
            self.written[number % PARTITIONS].append(value)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def is_copied(self, bootstrap: str) -> bool:
        """Whether the group has come to its end."""
        config = {"bootstrap.servers": bootstrap, "group.id": GROUP, "isolation.level": "read_committed"}
        with closing(Consumer(config | {"log_level": 0})) as consumer:
            try:
                told = consumer.committed([TopicPartition(SOURCE, each) for each in range(PARTITIONS)], timeout=5)
            except KafkaException:
                return False
        return [each.offset for each in told] == [len(values) for values in self.written]


def read_target(bootstrap: str) -> list[list[bytes]]:
    """What a reader of committed records finds in each partition."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "never-joined",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
    }
    ends = 0
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(TARGET, partition, 0) for partition in range(PARTITIONS)])
        while ends < PARTITIONS:
            message = consumer.poll(20)
            assert message is not None, "no record and no end within 20 s"
            partition, value, error = message.partition(), message.value(), message.error()
            if error is None:
                assert partition is not None and value is not None
                found[partition].append(value)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends += 1
    return found
