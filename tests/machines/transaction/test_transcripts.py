"""A transcript for each row of the transaction state table, cut off by a crash after anything that can be cut off.

A life runs until it is done. Then it is lived again, once for every moment in it: after each record that the
coordinator wrote, after each answer, after each marker. There the coordinator dies, another one is loaded from the
records alone, whoever had no answer asks again, and all goes on; and once more with a second crash soon after it.
However often that happens, each transaction has one outcome, the same in every partition and in the log, and the one
that its producer was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import pytest
from tests.machines.transaction.dialogue import (
    NOBODY,
    OFFSETS,
    P0,
    P1,
    TIMEOUT_MS,
    V1,
    V2,
    WALL_MS,
    Dialogue,
    Producer,
    Said,
    records_of,
    replayed,
)

from penstock.coordinators.decision import Decision, LogRecord
from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.records import TransactionRecord, decode, encode
from penstock.coordinators.transaction.state import AT_REST, COMPLETE_COMMIT, EMPTY, ENDED, LAST_EPOCH_GIVEN, NEXT
from penstock.core.ids import TopicPartition

DAYS_MS = 8 * 24 * 60 * 60 * 1000
ALL = (P0, P1, OFFSETS)

Answer = TypeVar("Answer")


class Crash(Exception):
    """Of the coordinator."""


@dataclass
class FragileDialogue(Dialogue):
    crashes: frozenset[int] = frozenset()
    moments: int = 0

    def moment(self) -> None:
        self.moments += 1
        if self.moments in self.crashes:
            raise Crash

    def _carry_out(self, decision: Decision) -> None:
        """Record by record. Effects and answers come after the last of them."""
        self.decisions.append(decision)
        for record in decision.records:
            self.log.append(LogRecord(record.key, record.value))
            self.machine.apply(record)
            self.moment()
        self.effects += decision.effects


@dataclass
class Partition:
    """What it knows of transactions: who writes in one, and how those ended, in their order."""

    writers: set[int] = field(default_factory=set)
    outcomes: list[bool] = field(default_factory=list)

    def mark(self, markers: WriteMarkers) -> None:
        if markers.producer_id in self.writers:  # otherwise it is a marker that had come before
            self.writers.remove(markers.producer_id)
            self.outcomes.append(markers.is_commit)


class Life:
    """Producers that ask until they are answered, partitions, and a coordinator that dies at given moments."""

    def __init__(self, crashes: Iterable[int], *, compacted: bool, log: Iterable[TransactionRecord]) -> None:
        self.talk = FragileDialogue(log=[encode(record) for record in log], crashes=frozenset(crashes))
        self.partitions = {each: Partition() for each in ALL}
        self.told: list[bool] = []
        """The outcomes of the transactions, in their order, as producers know them."""

        self._compacted = compacted

    # Producers

    def init(self, expected: Producer = NOBODY) -> Said:
        return self._until_answered(lambda: self.talk.init(expected=expected), lambda said: said.error)

    def begin(self, producer: Producer, *partitions: TopicPartition) -> None:
        for partition in partitions or ALL:
            if partition == OFFSETS:
                answer = self._until_answered(lambda: self.talk.add_offsets(producer))
            else:
                answer = self._until_answered(lambda partition=partition: self.talk.add(producer, partition))  # type: ignore[misc]
            assert answer == "ok"
            self.partitions[partition].writers.add(producer.producer_id)

    def end(self, producer: Producer, *, commit: bool, version: int) -> Producer:
        said = self.try_to_end(producer, commit=commit, version=version)
        assert said.error == "ok"
        self.told.append(commit)
        return said.producer if version == V2 else producer

    def try_to_end(self, producer: Producer, *, commit: bool, version: int) -> Said:
        return self._until_answered(
            lambda: self.talk.end(producer, commit=commit, version=version), lambda said: said.error
        )

    def _until_answered(self, ask: Callable[[], Answer], error_of: Callable[[Answer], str] = str) -> Answer:
        for _ in range(len(self.talk.crashes) + 3):
            answer = None
            try:
                answer = ask()
                self.talk.moment()
            except Crash:
                self._recover()
            if answer is not None and error_of(answer) != "CONCURRENT_TRANSACTIONS":
                return answer
            self.write_markers()
        raise AssertionError("what was decided is not carried out")

    # The world

    def write_markers(self) -> None:
        while self.talk.effects:
            try:
                self._write_one(self.talk.effects[0])
            except Crash:
                self._recover()

    def _write_one(self, markers: WriteMarkers) -> None:
        for partition in markers.partitions:
            self.partitions[partition].mark(markers)
            self.talk.moment()
        self.talk.effects.remove(markers)
        self.talk.markers_written(markers)

    def pass_ms(self, duration_ms: int) -> None:
        try:
            self.talk.pass_ms(duration_ms)
        except Crash:
            self._recover()
            self.pass_ms(duration_ms)

    def _recover(self) -> None:
        while True:
            try:
                self.talk.crash(compacted=self._compacted)
                return
            except Crash:
                continue

    # What must be true in the end

    def check(self) -> None:
        self.write_markers()
        self.pass_ms(TIMEOUT_MS)
        self.write_markers()
        assert all(record.status in AT_REST for record in records_of(self.talk.machine).values())
        assert replayed(self.talk) == records_of(self.talk.machine)
        for partition in self.partitions.values():
            assert not partition.writers, "it waits for a marker"
        outcomes = {each: partition.outcomes for each, partition in self.partitions.items() if partition.outcomes}
        assert all(each == self.told for each in outcomes.values()), (self.told, outcomes)
        assert not self.told or outcomes.keys() == set(ALL)
        if not self._compacted:
            assert self._decided() == self.told

    def _decided(self) -> list[bool]:
        """The outcomes by the log, of transactions that had partitions."""
        outcomes = []
        for before, after in pairwise(self.records()):
            if before is None or after is None:
                continue
            assert after.status in NEXT[before.status], "not a row of the table"
            if after.status in ENDED and before.partitions:
                outcomes.append(after.status is COMPLETE_COMMIT)
        return outcomes

    def records(self) -> list[TransactionRecord | None]:
        """None for a tombstone."""
        decoded = [decode(record) for record in self.talk.log]
        return [each if isinstance(each, TransactionRecord) else None for each in decoded]


# Lives


def _new_instance(life: Life, version: int) -> None:
    """Empty to Empty, and the first one is fenced."""
    first = life.init().producer
    second = life.init().producer
    assert second.producer_id == first.producer_id and second.epoch > first.epoch
    assert life.talk.add(first) == "PRODUCER_FENCED"


def _ended(commit: bool) -> Callable[[Life, int], None]:
    """Empty to Ongoing, more partitions, prepared, completed."""

    def live(life: Life, version: int) -> None:
        producer = life.init().producer
        life.begin(producer)
        life.end(producer, commit=commit, version=version)

    return live


def _next_one(first: bool, second: bool) -> Callable[[Life, int], None]:
    """Complete to Ongoing. Its producer goes on while the markers of the first are still being written."""

    def live(life: Life, version: int) -> None:
        producer = life.init().producer
        life.begin(producer)
        producer = life.end(producer, commit=first, version=version)
        life.begin(producer)
        life.end(producer, commit=second, version=version)

    return live


def _new_instance_after(commit: bool) -> Callable[[Life, int], None]:
    """Complete to Empty, and a transaction of the new one."""

    def live(life: Life, version: int) -> None:
        old = life.init().producer
        life.begin(old)
        old = life.end(old, commit=commit, version=version)
        new = life.init().producer
        assert life.talk.add(old) == "PRODUCER_FENCED"
        life.begin(new)
        life.end(new, commit=True, version=version)

    return live


def _fenced(life: Life, version: int) -> None:
    """Ongoing to PrepareAbort: a new instance comes, and the old one asks for its commit in vain."""
    old = life.init().producer
    life.begin(old)
    life.told.append(False)
    new = life.init()
    assert new.error == "ok"
    assert life.try_to_end(old, commit=True, version=version).error == "PRODUCER_FENCED"
    life.begin(new.producer)
    life.end(new.producer, commit=True, version=version)


def _recovered(life: Life, version: int) -> None:
    """Ongoing to PrepareAbort: the producer itself comes again (KIP-360). A new coordinator may not know it."""
    producer = life.init().producer
    life.begin(producer)
    life.told.append(False)
    again = life.init(expected=producer)
    assert again.error == "ok" or (again.error == "PRODUCER_FENCED" and life.talk.crashes)
    if again.error != "ok":
        again = life.init()
    life.begin(again.producer)
    life.end(again.producer, commit=True, version=version)


def _timed_out(life: Life, version: int) -> None:
    """Ongoing to PrepareAbort: time is up, and the commit comes too late."""
    producer = life.init().producer
    life.begin(producer)
    life.pass_ms(TIMEOUT_MS)
    life.told.append(False)
    assert life.try_to_end(producer, commit=True, version=version).error in ("PRODUCER_FENCED", "INVALID_TXN_STATE")
    life.write_markers()
    assert life.try_to_end(producer, commit=True, version=version).error in ("PRODUCER_FENCED", "INVALID_TXN_STATE")


def _nothing_to_abort(life: Life, version: int) -> None:
    """Empty to PrepareAbort: of what never reached the coordinator. There is no marker, and no outcome to see."""
    producer = life.init().producer
    said = life.try_to_end(producer, commit=False, version=V2)
    assert (said.error, said.producer) == ("ok", producer._replace(epoch=producer.epoch + 1))


def _nothing_to_abort_after(commit: bool) -> Callable[[Life, int], None]:
    """Complete to PrepareAbort."""

    def live(life: Life, version: int) -> None:
        producer = life.init().producer
        life.begin(producer)
        producer = life.end(producer, commit=commit, version=V2)
        said = life.try_to_end(producer, commit=False, version=V2)
        assert said.error == "ok" and said.producer.epoch > producer.epoch
        life.begin(said.producer)
        life.end(said.producer, commit=True, version=V2)

    return live


def _expired(life: Life, version: int) -> None:
    """From rest to nothing at all, and a new life with another producer id."""
    producer = life.init().producer
    life.begin(producer)
    life.end(producer, commit=True, version=version)
    life.write_markers()
    life.pass_ms(DAYS_MS)
    assert not life.talk.machine.transactions
    again = life.init().producer
    assert again.producer_id != producer.producer_id
    life.begin(again)
    life.end(again, commit=False, version=version)


def _used_up(commit: bool) -> Callable[[Life, int], None]:
    """The last epoch: the end of the transaction brings another producer id, which the answer tells already."""

    def live(life: Life, version: int) -> None:
        last = Producer(9, LAST_EPOCH_GIVEN)
        life.begin(last)
        new = life.end(last, commit=commit, version=V2)
        assert new.producer_id != last.producer_id and new.epoch == 0
        life.begin(new)
        assert life.try_to_end(last, commit=not commit, version=V2).error != "ok"
        life.end(new, commit=True, version=V2)

    return live


NEARLY_USED_UP = TransactionRecord(
    "orders", 9, LAST_EPOCH_GIVEN, TIMEOUT_MS, EMPTY, frozenset(), WALL_MS, client_transaction_version=2
)
LIVES: dict[str, tuple[Callable[[Life, int], None], tuple[int, ...], list[TransactionRecord]]] = {
    "new instance": (_new_instance, (V2,), []),
    "commit": (_ended(True), (V1, V2), []),
    "abort": (_ended(False), (V1, V2), []),
    "commit after commit": (_next_one(True, True), (V1, V2), []),
    "abort after commit": (_next_one(True, False), (V1, V2), []),
    "commit after abort": (_next_one(False, True), (V1, V2), []),
    "new instance after commit": (_new_instance_after(True), (V1, V2), []),
    "new instance after abort": (_new_instance_after(False), (V1, V2), []),
    "fenced": (_fenced, (V1, V2), []),
    "recovered": (_recovered, (V2,), []),
    "timed out": (_timed_out, (V1, V2), []),
    "nothing to abort": (_nothing_to_abort, (V2,), []),
    "nothing to abort after commit": (_nothing_to_abort_after(True), (V2,), []),
    "nothing to abort after abort": (_nothing_to_abort_after(False), (V2,), []),
    "expired": (_expired, (V1, V2), []),
    "epochs used up by a commit": (_used_up(True), (V2,), [NEARLY_USED_UP]),
    "epochs used up by an abort": (_used_up(False), (V2,), [NEARLY_USED_UP]),
}
CASES = [(name, version) for name, (_, versions, _) in LIVES.items() for version in versions]


def _live(name: str, version: int, crashes: tuple[int, ...] = (), *, compacted: bool = False) -> Life:
    live, _, log = LIVES[name]
    life = Life(crashes, compacted=compacted, log=log)
    live(life, version)
    life.check()
    return life


@pytest.mark.parametrize("compacted", [False, True], ids=["", "compacted"])
@pytest.mark.parametrize(("name", "version"), CASES, ids=[f"{name}-v{version - 3}" for name, version in CASES])
def test_given_a_life_when_the_coordinator_dies_at_any_moment_of_it_then_each_transaction_has_the_outcome_that_was_told(
    name: str, version: int, compacted: bool
) -> None:
    moments = _live(name, version).talk.moments
    assert moments >= 3

    for crash in range(1, moments + 1):
        _live(name, version, (crash,), compacted=compacted)


@pytest.mark.parametrize(("name", "version"), CASES, ids=[f"{name}-v{version - 3}" for name, version in CASES])
def test_given_a_coordinator_that_took_over_when_it_dies_too_then_each_transaction_has_the_outcome_that_was_told(
    name: str, version: int
) -> None:
    moments = _live(name, version).talk.moments

    for first in range(1, moments + 1):
        for second in range(first + 1, first + 5):
            _live(name, version, (first, second))


def test_given_the_lives_when_what_they_wrote_is_put_together_then_it_has_every_row_of_the_table() -> None:
    rows = set()
    for name, version in CASES:
        for before, after in pairwise([None, *_live(name, version).records()]):
            rows.add((before and before.status, after and after.status))

    table = {(before, after) for before, afters in NEXT.items() for after in afters}
    assert {row for row in rows if None not in row} == table
    assert (None, EMPTY) in rows and (COMPLETE_COMMIT, None) in rows
