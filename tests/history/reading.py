"""The files of all processes as one history.

Nothing is judged here. The order between processes is not needed: what a write, a transaction or a session is follows
from the lines of one file, and times are kept where they matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import msgspec

from tests.history.events import (
    NO_OFFSET,
    AnyEvent,
    Committed,
    Committing,
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
from tests.history.recording import SUFFIX

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    opened: Opened

    @property
    def is_read_committed(self) -> bool:
        return self.opened.isolation == "read_committed"

    def place(self, line: int, what: str) -> str:
        return f"{self.name}{SUFFIX}:{line} {what}"


class Fate(Enum):
    COMMITTED = auto()
    GIVEN_UP = auto()
    UNKNOWN = auto()


@dataclass(slots=True, eq=False)
class Transaction:
    process: Process
    number: int
    writes: list[Write] = field(default_factory=list)
    # The line and time at which the commit was first asked for, and those of the answer.
    commit_line: int = 0
    commit_began: int | None = None
    commit_outcome: Outcome = "unknown"
    commit_ended: int | None = None
    abort_line: int = 0
    is_aborted: bool = False
    is_seen: bool = False  # by a reader with read_committed

    @property
    def fate(self) -> Fate:
        if self.commit_outcome == "ok":
            return Fate.COMMITTED
        if self.is_aborted or self.commit_began is None or self.commit_outcome == "failed":
            return Fate.GIVEN_UP
        return Fate.UNKNOWN

    @property
    def took_effect(self) -> bool:
        fate = self.fate
        return fate is Fate.COMMITTED or (fate is Fate.UNKNOWN and self.is_seen)

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.process.name}"

    def evidence(self) -> str:
        if self.commit_began is not None:
            return self.process.place(self.commit_line, f"commit of {self}, {self.commit_outcome}")
        if self.abort_line:
            return self.process.place(self.abort_line, f"abort of {self}")
        return self.process.place(self.writes[0].line if self.writes else 1, f"{self}, whose end nobody asked for")


@dataclass(slots=True, eq=False)
class Write:
    id: WriteId
    process: Process
    line: int
    partition: Partition
    transaction: Transaction | None
    key: str | None
    source: Position | None
    outcome: Outcome = "unknown"
    acked_line: int = 0
    acked_at: int = 0
    acked_offset: int = NO_OFFSET
    # Where readers found it, the lowest if it is there twice.
    read_offset: int = NO_OFFSET
    is_seen: bool = False
    is_seen_committed: bool = False

    @property
    def offset(self) -> int:
        """Where it is, if anybody knows. What was read tells more than what was promised."""
        return self.read_offset if self.read_offset != NO_OFFSET else self.acked_offset

    @property
    def exists(self) -> bool:
        return self.outcome == "ok" or self.is_seen

    def is_visible(self, *, read_committed: bool) -> bool:
        """Whether a reader that passes it must see it."""
        if not read_committed or self.transaction is None:
            return self.exists
        return self.outcome != "failed" and self.transaction.took_effect

    def evidence(self) -> tuple[str, ...]:
        topic, partition = self.partition
        written = self.process.place(self.line, f"write to {topic}-{partition}")
        if not self.acked_line:
            return (written,)
        at = f" at offset {self.acked_offset}" if self.acked_offset != NO_OFFSET else ""
        return written, self.process.place(self.acked_line, f"its outcome: {self.outcome}{at}")


class Read(msgspec.Struct, frozen=True, gc=False):  # there are as many as events: these are quick to make
    offset: int
    id: WriteId
    line: int
    end: int


@dataclass(slots=True, eq=False)
class Session:
    process: Process
    partition: Partition
    line: int
    begin: int
    start: int = NO_OFFSET
    reads: list[Read] = field(default_factory=list)
    end_offset: int = NO_OFFSET
    is_final: bool = False

    def evidence(self, read: Read) -> str:
        topic, partition = self.partition
        return self.process.place(read.line, f"poll: {read.id} at {topic}-{partition} offset {read.offset}")


@dataclass(slots=True, eq=False)
class GroupCommit:
    """A position that a group may have committed; with a transaction its outcome is the transaction's."""

    process: Process
    line: int
    began: int
    offset: int
    transaction: Transaction | None
    outcome: Outcome = "unknown"
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A position that a coordinator told a member of a group."""

    process: Process
    line: int
    begin: int
    end: int
    offset: int


GroupPartition = tuple[str, Partition]


@dataclass(slots=True)
class History:
    writes: dict[WriteId, Write] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    commits: dict[GroupPartition, list[GroupCommit]] = field(default_factory=dict)
    positions: dict[GroupPartition, list[GroupPosition]] = field(default_factory=dict)
    event_count: int = 0

    @classmethod
    def of(cls, processes: Mapping[str, Iterable[AnyEvent]]) -> History:
        history = cls()
        for name, events in processes.items():
            _ProcessReader(history, name).read(events)
        return history


class DamagedHistory(Exception):
    """A file that cannot be what a process wrote. Nothing may be concluded from it."""


def read_history(directory: Path) -> History:
    return History.of({path.name.removesuffix(SUFFIX): _events(path) for path in sorted(directory.glob(f"*{SUFFIX}"))})


def _events(path: Path) -> Iterable[AnyEvent]:
    decode = msgspec.json.Decoder(AnyEvent).decode
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return  # the process was killed in the middle of it
            try:
                yield decode(line)
            except msgspec.DecodeError as error:
                raise DamagedHistory(f"{path.name}:{number}: {error}") from error


class _ProcessReader:
    """Takes the events of one process into the history."""

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._name = name
        self._line = 0
        self._process = Process(name, Opened(0))
        self._writes: dict[int, Write] = {}
        self._transactions: dict[int, Transaction] = {}
        self._sessions: dict[Partition, Session] = {}
        self._commits: dict[int, list[GroupCommit]] = {}
        self._take: dict[type, Callable[..., None]] = {
            Opened: self._opened,
            Writing: self._writing,
            Written: self._written,
            TransactionOffsets: self._transaction_offsets,
            TransactionEnding: self._ending,
            TransactionEnded: self._ended,
            Positioned: self._positioned,
            Polled: self._polled,
            ReachedEnd: self._reached_end,
            Committing: self._committing,
            Committed: self._committed,
        }

    def read(self, events: Iterable[AnyEvent]) -> None:
        take = self._take
        for event in events:
            self._line += 1
            if (self._line == 1) != (type(event) is Opened):
                raise DamagedHistory(f"{self._name}{SUFFIX}:{self._line}: a process opens its history, once")
            take[type(event)](event)
        self._history.event_count += self._line

    def _opened(self, event: Opened) -> None:
        self._process = Process(self._name, event)

    def _writing(self, event: Writing) -> None:
        transaction = None if event.transaction is None else self._transaction(event.transaction)
        partition = (event.topic, event.partition)
        name = write_id(self._name, self._line)
        write = Write(name, self._process, self._line, partition, transaction, event.key, event.source)
        if transaction is not None:
            transaction.writes.append(write)
        self._writes[self._line] = write
        self._history.writes[name] = write

    def _written(self, event: Written) -> None:
        write = self._writes[event.write]
        write.outcome, write.acked_offset = event.outcome, event.offset
        write.acked_line, write.acked_at = self._line, event.at

    def _transaction(self, number: int) -> Transaction:
        transaction = self._transactions.get(number)
        if transaction is None:
            transaction = self._transactions[number] = Transaction(self._process, number)
            self._history.transactions.append(transaction)
        return transaction

    def _transaction_offsets(self, event: TransactionOffsets) -> None:
        transaction = self._transaction(event.transaction)
        self._add_commits(event.group, event.at, event.positions, transaction)

    def _ending(self, event: TransactionEnding) -> None:
        transaction = self._transaction(event.transaction)
        if event.ending == "abort":
            transaction.abort_line = self._line
        elif transaction.commit_began is None:
            transaction.commit_line, transaction.commit_began = self._line, event.at

    def _ended(self, event: TransactionEnded) -> None:
        transaction = self._transaction(event.transaction)
        if event.ending == "abort":
            transaction.is_aborted |= event.outcome == "ok"
        else:
            transaction.commit_outcome, transaction.commit_ended = event.outcome, event.at

    def _positioned(self, event: Positioned) -> None:
        partition = (event.topic, event.partition)
        self._begin_session(partition, event.begin).start = event.offset
        group = self._process.opened.group
        if event.is_committed and group is not None:
            told = GroupPosition(self._process, self._line, event.begin, event.end, event.offset)
            self._history.positions.setdefault((group, partition), []).append(told)

    def _begin_session(self, partition: Partition, begin: int) -> Session:
        session = self._sessions[partition] = Session(self._process, partition, self._line, begin)
        self._history.sessions.append(session)
        return session

    def _polled(self, event: Polled) -> None:
        for topic, number, offset, record_id in event.records:
            partition = (topic, number)
            session = self._sessions.get(partition) or self._begin_session(partition, event.begin)
            session.reads.append(Read(offset, record_id, self._line, event.end))

    def _reached_end(self, event: ReachedEnd) -> None:
        session = self._sessions.get((event.topic, event.partition))
        if session is None:
            raise DamagedHistory(f"{self._name}{SUFFIX}:{self._line}: the end of what was never begun")
        session.end_offset, session.is_final = event.offset, event.is_final

    def _committing(self, event: Committing) -> None:
        group = self._process.opened.group
        if group is None:
            raise DamagedHistory(f"{self._name}{SUFFIX}:{self._line}: a commit without a group")
        self._commits[self._line] = self._add_commits(group, event.at, event.positions, None)

    def _committed(self, event: Committed) -> None:
        for commit in self._commits[event.commit]:
            commit.outcome, commit.ended = event.outcome, event.at

    def _add_commits(
        self, group: str, began: int, positions: Iterable[Position], transaction: Transaction | None
    ) -> list[GroupCommit]:
        commits = []
        for topic, partition, offset in positions:
            commit = GroupCommit(self._process, self._line, began, offset, transaction)
            self._history.commits.setdefault((group, (topic, partition)), []).append(commit)
            commits.append(commit)
        return commits
