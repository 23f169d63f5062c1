"""A process writes down what it does.

Every event is one write(2) of one line, before anything that depends on it: a SIGKILL at any moment leaves a file that
tells everything the process can have done. Not for more than one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.history.events import (
    NO_OFFSET,
    AnyEvent,
    Committed,
    Committing,
    Ending,
    Isolation,
    Opened,
    Outcome,
    Polled,
    Position,
    Positioned,
    ReachedEnd,
    TransactionEnded,
    TransactionEnding,
    TransactionOffsets,
    WriteId,
    Writing,
    Written,
    write_id,
)

SUFFIX = ".history"


class Recorder:
    """The history of one process, under a name that no process had before."""

    def __init__(
        self,
        process: str,
        append: Callable[[AnyEvent], None],
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        isolation: Isolation = "read_uncommitted",
        group: str | None = None,
        transactional_id: str | None = None,
        is_idempotent: bool = False,
    ) -> None:
        self.process = process
        self.now = clock
        self._lines = 0
        self._transactions = 0
        self._sink = append
        self._append(Opened(clock(), isolation, group, transactional_id, is_idempotent))

    def writing(
        self,
        topic: str,
        partition: int,
        *,
        transaction: int | None = None,
        key: str | None = None,
        source: Position | None = None,
    ) -> int:
        """The line that it is on; `id_of` makes the value of the record from it."""
        return self._append(Writing(self.now(), topic, partition, transaction, key, source))

    def id_of(self, line: int) -> WriteId:
        return write_id(self.process, line)

    def written(self, line: int, outcome: Outcome, offset: int = NO_OFFSET) -> None:
        self._append(Written(self.now(), line, outcome, offset))

    def transaction(self) -> int:
        """The number of a transaction that begins now."""
        self._transactions += 1
        return self._transactions

    def transaction_offsets(self, transaction: int, group: str, positions: Sequence[Position]) -> None:
        self._append(TransactionOffsets(self.now(), transaction, group, list(positions)))

    def ending(self, transaction: int, ending: Ending) -> None:
        self._append(TransactionEnding(self.now(), transaction, ending))

    def ended(self, transaction: int, ending: Ending, outcome: Outcome) -> None:
        self._append(TransactionEnded(self.now(), transaction, ending, outcome))

    def positioned(self, begin: int, position: Position, *, is_committed: bool = False) -> None:
        self._append(Positioned(begin, self.now(), *position, is_committed=is_committed))

    def polled(self, begin: int, records: Sequence[tuple[str, int, int, WriteId]]) -> None:
        self._append(Polled(begin, self.now(), list(records)))

    def reached_end(self, position: Position, *, is_final: bool = False) -> None:
        self._append(ReachedEnd(self.now(), *position, is_final=is_final))

    def committing(self, positions: Sequence[Position]) -> int:
        return self._append(Committing(self.now(), list(positions)))

    def committed(self, line: int, outcome: Outcome) -> None:
        self._append(Committed(self.now(), line, outcome))

    def _append(self, event: AnyEvent) -> int:
        self._sink(event)
        self._lines += 1
        return self._lines


class HistoryFile:
    """Where the events of a process go: `<directory>/<process>.history`."""

    def __init__(self, directory: Path, process: str) -> None:
        self._encode = msgspec.json.Encoder().encode
        path = directory / f"{process}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def append(self, event: AnyEvent) -> None:
        line = self._encode(event) + b"\n"
        assert os.write(self._file, line) == len(line), "the disk is full"

    def close(self) -> None:
        os.close(self._file)
