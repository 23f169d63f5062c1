"""Looks for anomalies in what was written and read. The definitions are in findings.py.

Pure: a history goes in, findings come out. Every check is one pass over writes or reads, with dictionaries and one sort
per partition, so that a million events take seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator

from tests.history.events import NO_OFFSET
from tests.history.findings import Anomaly, Finding
from tests.history.groups import check_copies, check_positions
from tests.history.reading import Fate, History, Partition, Read, Session, Transaction, Write


def check(history: History, *, compacted: Collection[str] = ()) -> list[Finding]:
    """Every anomaly that the history proves; in `compacted` topics a later record of a key replaces earlier ones."""
    log = _Log(history)
    return [
        *log.findings,
        *_check_reads(history),
        *_Missing(history, log, frozenset(compacted)).findings(),
        *_check_order(history),
        *check_positions(history),
        *check_copies(history),
    ]


class _Log:
    """What all promises and reads together say is in the log, and where they contradict each other."""

    def __init__(self, history: History) -> None:
        self.findings: list[Finding] = []
        # Offsets of which it is not known what they hold; nobody can be blamed for not seeing it.
        self.disputed: set[tuple[Partition, int]] = set()
        self._holders: dict[Partition, dict[int, tuple[Write, str]]] = {}
        self._doubled: set[Write] = set()
        for write in history.writes.values():
            if write.acked_offset != NO_OFFSET:
                self._place(write, write.acked_offset, None)
        for session in history.sessions:
            for read in session.reads:
                self._take(history, session, read)
        self._compare_promises(history)

    def _place(self, write: Write, offset: int, reading: tuple[Session, Read] | None) -> None:
        holders = self._holders.setdefault(write.partition, {})
        held = holders.get(offset)
        if held is None:
            holders[offset] = write, "" if reading is None else reading[0].evidence(reading[1])
        elif held[0] is not write and (write.partition, offset) not in self.disputed:
            self.disputed.add((write.partition, offset))
            what = f"{held[0].id} and {write.id} are both at {_at(write.partition, offset)}"
            seen = "" if reading is None else reading[0].evidence(reading[1])
            evidence = (*held[0].evidence(), held[1], *write.evidence(), seen)
            self.findings.append(Finding(Anomaly.INCONSISTENT_OFFSETS, what, tuple(filter(None, evidence))))

    def _take(self, history: History, session: Session, read: Read) -> None:
        write = history.writes.get(read.id)
        if write is None or write.partition != session.partition:
            what = f"nobody wrote {read.id} to {_at(session.partition, read.offset)}"
            self.findings.append(Finding(Anomaly.PHANTOM, what, (session.evidence(read),)))
            return
        self._place(write, read.offset, (session, read))
        write.is_seen = True
        if session.process.is_read_committed:
            write.is_seen_committed = True
            if write.transaction is not None:
                write.transaction.is_seen = True
        if write.read_offset == NO_OFFSET:
            write.read_offset = read.offset
        elif write.read_offset != read.offset:
            self._double(write, session, read)

    def _double(self, write: Write, session: Session, read: Read) -> None:
        if write.process.opened.is_idempotent and write not in self._doubled:
            what = f"{write.id} is at {_at(write.partition, write.read_offset)} and at offset {read.offset}"
            _, first = self._holders[write.partition][write.read_offset]
            evidence = (*write.evidence(), first, session.evidence(read))
            self.findings.append(Finding(Anomaly.DUPLICATE, what, tuple(filter(None, evidence))))
        self._doubled.add(write)
        write.read_offset = min(write.read_offset, read.offset)

    def _compare_promises(self, history: History) -> None:
        for write in history.writes.values():
            is_elsewhere = write.is_seen and write.acked_offset not in (NO_OFFSET, write.read_offset)
            # Without idempotence it may well be at both.
            if is_elsewhere and write.process.opened.is_idempotent and write not in self._doubled:
                _, read = self._holders[write.partition][write.read_offset]
                what = f"{write.id} was acknowledged at offset {write.acked_offset} and is at {write.read_offset}"
                evidence = tuple(filter(None, (*write.evidence(), read)))
                self.findings.append(Finding(Anomaly.INCONSISTENT_OFFSETS, what, evidence))


def _check_reads(history: History) -> Iterator[Finding]:
    """What each session should not have seen, or not in this order."""
    for session in history.sessions:
        last: Read | None = None
        for read in session.reads:
            if last is not None and read.offset <= last.offset:
                what = f"{_at(session.partition, read.offset)} came after offset {last.offset}"
                evidence = (session.evidence(last), session.evidence(read))
                yield Finding(Anomaly.NON_MONOTONIC_POLL, what, evidence)
            last = read
            write = history.writes.get(read.id)
            if write is not None and (found := _undue(session, read, write)) is not None:
                anomaly, what = found
                proof = () if write.transaction is None else (write.transaction.evidence(),)
                yield Finding(anomaly, what, (*write.evidence(), *proof, session.evidence(read)))


def _undue(session: Session, read: Read, write: Write) -> tuple[Anomaly, str] | None:
    transaction = write.transaction
    if write.outcome == "failed":
        return Anomaly.ABORTED_READ, f"{write.id} failed, and was read"
    if transaction is None or not session.process.is_read_committed:
        return None
    if transaction.fate is Fate.GIVEN_UP and (transaction.abort_line or transaction.commit_began is not None):
        return Anomaly.ABORTED_READ, f"{write.id} was read, and {transaction} was aborted"
    if transaction.commit_began is None or read.end < transaction.commit_began:
        return Anomaly.EARLY_READ, f"{write.id} was read, and nobody had asked for the commit of {transaction}"
    return None


class _Missing:
    """What sessions passed and did not see."""

    def __init__(self, history: History, log: _Log, compacted: frozenset[str]) -> None:
        self._history = history
        self._disputed = log.disputed
        self._compacted = compacted
        self._located: dict[Partition, list[tuple[int, Write]]] = {}
        self._unlocated: dict[Partition, list[Write]] = {}
        self._last_of_key: dict[tuple[Partition, str | None], int] = {}
        for write in history.writes.values():
            if write.offset == NO_OFFSET:
                self._unlocated.setdefault(write.partition, []).append(write)
                continue
            self._located.setdefault(write.partition, []).append((write.offset, write))
            if write.is_visible(read_committed=True):
                key = (write.partition, write.key)
                self._last_of_key[key] = max(write.offset, self._last_of_key.get(key, NO_OFFSET))
        for located in self._located.values():
            located.sort(key=lambda place: place[0])

    def findings(self) -> Iterator[Finding]:
        reported: set[object] = set()
        for session in self._history.sessions:
            seen = {read.id for read in session.reads}
            for write in self._passed(session):
                if write.id not in seen and self._must_be_seen(session, write):
                    finding, about = _miss(session, write)
                    if (finding.anomaly, about) not in reported:
                        reported.add((finding.anomaly, about))
                        yield finding

    def _passed(self, session: Session) -> Iterator[Write]:
        start = session.start
        if start == NO_OFFSET and session.reads:
            start = session.reads[0].offset
        end = max((read.offset + 1 for read in session.reads), default=start)
        end = max(end, session.end_offset)
        if start == NO_OFFSET:
            return
        located = self._located.get(session.partition, [])
        first = bisect_left(located, start, key=lambda place: place[0])
        behind = bisect_left(located, end, key=lambda place: place[0])
        for index in range(first, behind):
            yield located[index][1]
        if session.is_final:
            beyond = [write for _, write in located[behind:]] + self._unlocated.get(session.partition, [])
            yield from (write for write in beyond if _was_promised_before(session, write))

    def _must_be_seen(self, session: Session, write: Write) -> bool:
        if (write.partition, write.offset) in self._disputed:
            return False
        if write.partition[0] in self._compacted:
            is_replaced = write.offset < self._last_of_key.get((write.partition, write.key), NO_OFFSET)
            if is_replaced or not write.is_visible(read_committed=True):
                return False
        return write.is_visible(read_committed=session.process.is_read_committed)


def _was_promised_before(session: Session, write: Write) -> bool:
    """Whether it had been acknowledged, or its transaction committed, when the session began."""
    transaction = write.transaction
    if transaction is not None and transaction.commit_outcome == "ok" and session.process.is_read_committed:
        return transaction.commit_ended is not None and transaction.commit_ended < session.begin
    return write.outcome == "ok" and write.acked_at < session.begin


def _miss(session: Session, write: Write) -> tuple[Finding, Write | Transaction]:
    """What it is called that the session did not see the write, and what it is about."""
    transaction = write.transaction
    is_seen = write.is_seen_committed if session.process.is_read_committed else write.is_seen
    passed = session.process.place(session.line, f"a session that passed {_at(write.partition, write.offset)}")
    if is_seen:
        what = f"{write.id} was not seen by {session.process.name}, and by others it was"
        return Finding(Anomaly.SKIPPED_READ, what, (*write.evidence(), passed)), write
    if transaction is not None and transaction.is_seen and session.process.is_read_committed:
        other = next(each for each in transaction.writes if each.is_seen_committed)
        what = f"{transaction}: {other.id} was read and {write.id} is not there"
        evidence = (transaction.evidence(), *other.evidence(), *write.evidence(), passed)
        return Finding(Anomaly.TORN_TRANSACTION, what, evidence), transaction
    proof = () if transaction is None else (transaction.evidence(),)
    what = f"{write.id} is not in {_at(write.partition, write.offset)}"
    return Finding(Anomaly.LOST_WRITE, what, (*write.evidence(), *proof, passed)), write


def _check_order(history: History) -> Iterator[Finding]:
    """The writes of a producer to a partition have rising offsets."""
    last_of: dict[tuple[str, Partition], Write] = {}
    for write in history.writes.values():  # in the order in which each process wrote them
        if write.offset == NO_OFFSET or not write.process.opened.is_idempotent:
            continue
        key = (write.process.name, write.partition)
        last = last_of.get(key)
        if last is not None and write.offset < last.offset:
            what = f"{write.id} at {_at(write.partition, write.offset)} was written after {last.id} at {last.offset}"
            yield Finding(Anomaly.REORDERING, what, (*last.evidence(), *write.evidence()))
        last_of[key] = write


def _at(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[1]} offset {'unknown' if offset == NO_OFFSET else offset}"
