"""Correct histories of random interleavings: nothing is found in them. With one thing broken, exactly that is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.history.checker import check
from tests.history.events import AnyEvent, Polled, Positioned, WriteId, Written
from tests.history.findings import Anomaly, report
from tests.history.reading import Fate, History, Partition, Transaction, Write
from tests.history.simulated import Cluster

SEEDS = st.integers(0, 2**32)
Records = list[tuple[str, int, int, WriteId]]


def a_run(seed: int, steps: int) -> Cluster:
    cluster = Cluster(random.Random(seed))
    cluster.run(steps)
    return cluster


@given(SEEDS, st.integers(0, 1_500))
@settings(max_examples=60)
def test_given_a_correct_history_when_checked_then_nothing_is_found(seed: int, steps: int) -> None:
    cluster = a_run(seed, steps)

    findings = check(History.of(cluster.events))

    assert not findings, report(findings)


class Broken:
    """A correct history with tools to break it. What cannot be broken in this one is assumed away."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        self.cluster = a_run(seed, 900)
        self.history = History.of(self.cluster.events)
        check(self.history)  # which also notes who saw what

    def choose(self, candidates: Iterator[Write]) -> Write:
        found = list(candidates)
        assume(found)
        return self.luck.choice(found)

    def writes(self, *, copied: bool = True) -> Iterator[Write]:
        """Those whose place in the log is known and which are there once."""
        sources = {each.source for each in self.history.writes.values()}
        for write in self.history.writes.values():
            is_source = (*write.partition, write.offset) in sources
            if write.offset >= 0 and write.process.opened.is_idempotent and (copied or not is_source):
                yield write

    def committed(self, *, at_least: int = 1) -> Iterator[Write]:
        for write in self.writes():
            transaction = write.transaction
            if transaction is not None and transaction.fate is Fate.COMMITTED and len(transaction.writes) >= at_least:
                yield write

    def change_records(self, change: Callable[[str, Records], Records]) -> None:
        for process, events in self.cluster.events.items():
            for index, event in enumerate(events):
                if isinstance(event, Polled):
                    events[index] = replace(event, records=change(process, event.records))

    def hide(self, write: Write, from_process: Callable[[str], bool]) -> None:
        self.change_records(
            lambda process, records: [each for each in records if each[3] != write.id or not from_process(process)]
        )

    def is_read_committed(self, process: str) -> bool:
        opened = self.cluster.events[process][0]
        return getattr(opened, "isolation", "") == "read_committed"

    def find(self) -> set[Anomaly]:
        return {finding.anomaly for finding in check(History.of(self.cluster.events))}

    def add_to_final_read(self, partition: Partition, offset: int, record: WriteId, isolation: str) -> None:
        """In its place by offset, as a reader would have got it."""

        def add(process: str, records: Records) -> Records:
            is_final = process.startswith(f"final-{isolation}")
            if is_final and records and records[0][:2] == partition:
                return sorted([*records, (*partition, offset, record)], key=lambda each: each[2])
            return records

        self.change_records(add)


def lose(broken: Broken) -> None:
    """A record in no transaction, acknowledged and read by nobody."""
    write = broken.choose(each for each in broken.writes() if each.transaction is None and each.outcome == "ok")
    broken.hide(write, lambda process: True)


def skip(broken: Broken) -> None:
    write = broken.choose(each for each in broken.writes() if each.is_seen_committed)
    broken.hide(write, lambda process: process.startswith("final-read_uncommitted"))


def double(broken: Broken) -> None:
    write = broken.choose(each for each in broken.writes() if each.transaction is None)
    offset = len(broken.cluster.logs[write.partition])
    for isolation in ("read_committed", "read_uncommitted"):
        broken.add_to_final_read(write.partition, offset, write.id, isolation)


def reorder(broken: Broken) -> None:
    """Two records of a producer have each other's places, for everybody."""
    first = broken.choose(each for each in broken.writes(copied=False) if each.transaction is None and each.is_seen)
    second = broken.choose(
        each
        for each in broken.writes(copied=False)
        if each.process is first.process and each.partition == first.partition and each.line != first.line
        # Who passed the place of one passed that of the other.
        if each.transaction is None and each.is_seen and abs(each.offset - first.offset) == 1
    )
    swapped = {first.id: second.id, second.id: first.id}
    broken.change_records(lambda _, records: [(*each[:3], swapped.get(each[3], each[3])) for each in records])
    events = broken.cluster.events[first.process.name]
    for write, other in ((first, second), (second, first)):
        if write.acked_offset >= 0:
            acked = events[write.acked_line - 1]
            assert isinstance(acked, Written)
            events[write.acked_line - 1] = replace(acked, offset=other.offset)


def acknowledge_elsewhere(broken: Broken) -> None:
    write = broken.choose(each for each in broken.writes() if each.acked_offset >= 0 and each.is_seen)
    events = broken.cluster.events[write.process.name]
    acked = events[write.acked_line - 1]
    assert isinstance(acked, Written)
    events[write.acked_line - 1] = replace(acked, offset=len(broken.cluster.logs[write.partition]) + 7)


def show_aborted(broken: Broken) -> None:
    write = broken.choose(
        each
        for each in broken.writes()
        if each.transaction is not None and each.transaction.is_aborted and each.transaction.fate is Fate.GIVEN_UP
        # A copier's input would be incomplete if there was more of it.
        if each.source is None
    )
    broken.add_to_final_read(write.partition, write.offset, write.id, "read_committed")


def show_early(broken: Broken) -> None:
    """A reader that had it before anybody asked for the commit."""
    write = broken.choose(broken.committed())
    assert write.transaction is not None and write.transaction.commit_began is not None
    recorder = broken.cluster.recorder("early", isolation="read_committed")
    asked = write.transaction.commit_began
    events = broken.cluster.events[recorder.process]
    events.append(Polled(asked - 1, asked - 1, [(*write.partition, write.offset, write.id)]))


def poll_again(broken: Broken) -> None:
    def repeat(process: str, records: Records) -> Records:
        return [*records, records[0]] if process.startswith("final-read_committed") and records else records

    before = [list(events) for events in broken.cluster.events.values()]
    broken.change_records(repeat)
    assume(before != [list(events) for events in broken.cluster.events.values()])


def tear(broken: Broken) -> None:
    """One record of a transaction is not there for anybody who reads committed data."""
    write = broken.choose(each for each in broken.committed(at_least=2) if each.source is None)
    others = [each for each in transaction_of(write).writes if each is not write]
    assume(any(each.is_seen_committed for each in others))
    broken.hide(write, broken.is_read_committed)


def transaction_of(write: Write) -> Transaction:
    assert write.transaction is not None
    return write.transaction


def forget_commit(broken: Broken) -> None:
    """A group that had committed is told that it had not."""
    for (group, partition), told in broken.history.positions.items():
        for position in told:
            commits = broken.history.commits.get((group, partition), [])
            if group == "readers" and any(
                each.outcome == "ok" and each.ended is not None and each.ended < position.begin and each.offset
                for each in commits
            ):
                _tell(broken.cluster.events[position.process.name], position.line, -1)
                return
    assume(False)


def _tell(events: list[AnyEvent], line: int, offset: int) -> None:
    told = events[line - 1]
    assert isinstance(told, Positioned)
    events[line - 1] = replace(told, offset=offset)


def invent(broken: Broken) -> None:
    partition = broken.luck.choice(list(broken.cluster.logs))
    offset = len(broken.cluster.logs[partition])
    assume(any(record is not None for record, _ in broken.cluster.logs[partition]))
    broken.add_to_final_read(partition, offset, WriteId("nobody:1"), "read_uncommitted")


BREAKAGES = [
    (lose, Anomaly.LOST_WRITE),
    (skip, Anomaly.SKIPPED_READ),
    (double, Anomaly.DUPLICATE),
    (reorder, Anomaly.REORDERING),
    (acknowledge_elsewhere, Anomaly.INCONSISTENT_OFFSETS),
    (show_aborted, Anomaly.ABORTED_READ),
    (show_early, Anomaly.EARLY_READ),
    (poll_again, Anomaly.NON_MONOTONIC_POLL),
    (tear, Anomaly.TORN_TRANSACTION),
    (forget_commit, Anomaly.LOST_COMMIT),
    (invent, Anomaly.PHANTOM),
]


@pytest.mark.parametrize(("break_it", "anomaly"), BREAKAGES)
@given(seed=SEEDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_given_a_correct_history_when_one_thing_is_broken_then_exactly_that_is_found(
    break_it: Callable[[Broken], None], anomaly: Anomaly, seed: int
) -> None:
    broken = Broken(seed)
    break_it(broken)

    found = broken.find()

    assert found == {anomaly}


def test_given_the_anomalies_when_the_ways_to_break_a_history_are_counted_then_each_has_one() -> None:
    assert {anomaly for _, anomaly in BREAKAGES} == set(Anomaly)
