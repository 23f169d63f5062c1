"""Looks for anomalies in what groups committed, and in what was copied from one topic to another.

Two things are assumed of the processes: a group's position only ever rises (nobody resets it), and who copies a topic
copies all of it from where it began, each record to one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.history.events import NO_OFFSET
from tests.history.findings import Anomaly, Finding
from tests.history.reading import Fate, GroupCommit, GroupPartition, GroupPosition, History, Partition, Write


def check_positions(history: History) -> Iterator[Finding]:
    """A group is told no less than what was acknowledged before it asked, no more than what it may have committed."""
    for group_partition, positions in history.positions.items():
        commits = history.commits.get(group_partition, [])
        by_end = sorted((end, order, each) for order, each in enumerate(commits) if (end := _acknowledged(each)))
        by_begin = sorted((each.began, order, each) for order, each in enumerate(commits) if _is_possible(each))
        given_up = {each.offset: each for each in commits if not _is_possible(each)}
        least = _Highest((end, each) for end, _, each in by_end)
        least_plain = _Highest((end, each) for end, _, each in by_end if each.transaction is None)
        most = _Highest((begin, each) for begin, _, each in by_begin)
        for told in sorted(positions, key=lambda position: position.begin):
            # Only who reads committed data waits for the marker of a transaction's offsets.
            lower = (least if told.process.is_read_committed else least_plain).before(told.begin)
            if lower is not None and told.offset < lower.offset:
                yield _went_back(group_partition, told, lower)
        for told in sorted(positions, key=lambda position: position.end):
            upper = most.before(told.end)
            if told.offset > (NO_OFFSET if upper is None else upper.offset):
                yield _went_too_far(group_partition, told, given_up.get(told.offset))


class _Highest:
    """The highest commit before a time; asked with rising times."""

    def __init__(self, timed: Iterator[tuple[int, GroupCommit]]) -> None:
        self._timed = list(timed)
        self._next = 0
        self._highest: GroupCommit | None = None

    def before(self, time: int) -> GroupCommit | None:
        while self._next < len(self._timed) and self._timed[self._next][0] < time:
            commit = self._timed[self._next][1]
            if self._highest is None or commit.offset > self._highest.offset:
                self._highest = commit
            self._next += 1
        return self._highest


def _acknowledged(commit: GroupCommit) -> int | None:
    """When it was acknowledged, if it was."""
    if commit.transaction is None:
        return commit.ended if commit.outcome == "ok" else None
    return commit.transaction.commit_ended if commit.transaction.fate is Fate.COMMITTED else None


def _is_possible(commit: GroupCommit) -> bool:
    if commit.transaction is None:
        return commit.outcome != "failed"
    return commit.transaction.fate is not Fate.GIVEN_UP


def _went_back(of: GroupPartition, told: GroupPosition, lower: GroupCommit) -> Finding:
    evidence = (
        lower.process.place(lower.line, f"commit of offset {lower.offset}"),
        told.process.place(told.line, f"the position it was told: {told.offset}"),
    )
    if lower.transaction is None:
        what = f"{_name(of)} was told {told.offset} after the commit of {lower.offset} was acknowledged"
        return Finding(Anomaly.LOST_COMMIT, what, evidence)
    what = f"{lower.transaction} was committed, and {_name(of)} was told {told.offset} instead of {lower.offset}"
    return Finding(Anomaly.TORN_TRANSACTION, what, (lower.transaction.evidence(), *evidence))


def _went_too_far(of: GroupPartition, told: GroupPosition, given_up: GroupCommit | None) -> Finding:
    position = told.process.place(told.line, f"the position it was told: {told.offset}")
    if given_up is None or given_up.transaction is None:
        return Finding(Anomaly.PHANTOM, f"{_name(of)} was told {told.offset}, which nobody committed", (position,))
    what = f"{given_up.transaction} was given up, and its offset {told.offset} is the position of {_name(of)}"
    offsets = given_up.process.place(given_up.line, f"offset {given_up.offset} with {given_up.transaction}")
    return Finding(Anomaly.TORN_TRANSACTION, what, (given_up.transaction.evidence(), offsets, position))


def _name(of: GroupPartition) -> str:
    group, (topic, partition) = of
    return f"group {group} on {topic}-{partition}"


def check_copies(history: History) -> Iterator[Finding]:
    copies: dict[GroupPartition, list[Write]] = {}
    for write in history.writes.values():
        if write.source is not None:
            topic, partition, _ = write.source
            copies.setdefault((write.process.opened.group or "", (topic, partition)), []).append(write)
    if not copies:
        return
    sources: dict[Partition, list[Write]] = {}
    for write in history.writes.values():
        if write.offset != NO_OFFSET and write.is_visible(read_committed=True):
            sources.setdefault(write.partition, []).append(write)
    read_to_the_end = {each.partition for each in history.sessions if each.is_final and each.process.is_read_committed}
    for of, writes in copies.items():
        firsts: dict[int, Write] = {}
        for write in writes:
            if write.is_visible(read_committed=True):
                first = firsts.setdefault(_source_offset(write), write)
                # Without a transaction a consumer may get, and copy, a record again.
                if first is not write and write.transaction is not None and first.transaction is not None:
                    yield _copied_twice(of, first, write)
        yield from _check_copied_order(of, firsts)
        yield from _check_left_out(of, writes, firsts, sources.get(of[1], []), read_to_the_end)


def _source_offset(write: Write) -> int:
    assert write.source is not None
    return write.source[2]


def _copied_twice(of: GroupPartition, first: Write, second: Write) -> Finding:
    what = f"{_name(of)} copied offset {_source_offset(first)} twice, as {first.id} and as {second.id}"
    return Finding(Anomaly.DUPLICATE, what, (*first.evidence(), *second.evidence()))


def _check_copied_order(of: GroupPartition, firsts: dict[int, Write]) -> Iterator[Finding]:
    copied_to: dict[Partition, list[Write]] = {}
    for write in firsts.values():
        if write.offset != NO_OFFSET and write.transaction is not None:
            copied_to.setdefault(write.partition, []).append(write)
    for writes in copied_to.values():
        writes.sort(key=_source_offset)
        for before, after in pairwise(writes):
            if before.offset > after.offset:
                what = f"{_name(of)} has {after.id} before {before.id}, whose source comes first"
                yield Finding(Anomaly.REORDERING, what, (*before.evidence(), *after.evidence()))


def _check_left_out(
    of: GroupPartition,
    writes: list[Write],
    copied: dict[int, Write],
    sources: list[Write],
    read_to_the_end: set[Partition],
) -> Iterator[Finding]:
    """A record between two that were copied was copied too, or may have been."""
    if not copied:
        return
    undecided = {_source_offset(each) for each in writes if each.partition not in read_to_the_end and _is_open(each)}
    first, last = min(copied), max(copied)
    for source in sources:
        if first < source.offset < last and source.offset not in copied and source.offset not in undecided:
            what = f"{_name(of)} copied offsets {first} to {last}, and left out {source.offset}"
            evidence = (*source.evidence(), *copied[first].evidence(), *copied[last].evidence())
            yield Finding(Anomaly.LOST_WRITE, what, evidence)


def _is_open(write: Write) -> bool:
    """Whether it may have taken effect, for all that is known."""
    if write.transaction is None:
        return write.outcome == "unknown"
    return write.outcome != "failed" and write.transaction.fate is Fate.UNKNOWN
