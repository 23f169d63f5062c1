"""Whatever producers do, however late their requests come, whenever the coordinator dies: what must always hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.machines.transaction.dialogue import (
    NOBODY,
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
)

from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.records import (
    TransactionRecord,
    TransactionStatus,
    TransactionTombstone,
    decode,
    encode,
)
from penstock.coordinators.transaction.state import (
    BEING_ENDED,
    EMPTY,
    ENDED,
    NEXT,
    ONGOING,
    PREPARE_COMMIT,
    TransactionConfig,
)
from penstock.core.ids import TopicPartition

IDS = ("orders", "payments")
INSTANCES = (("orders", V1), ("orders", V2), ("orders", V2), ("payments", V1), ("payments", V2))
WHO = st.integers(0, len(INSTANCES) - 1)
PARTITIONS = st.sampled_from([P0, P1])
DAY_MS = 24 * 60 * 60 * 1000
NEARLY_USED_UP = 32_764


@dataclass
class Instance:
    """One run of an application. It believes what it was last told; others may have its transactional id by now."""

    name: int
    transactional_id: str
    version: int
    producer: Producer = NOBODY
    transaction: int | None = None
    """That which it last added something to."""


@dataclass
class Shell:
    """Writes markers, partition by partition. It does not know when it is no longer the coordinator's."""

    markers: WriteMarkers
    transaction: int
    written: set[TopicPartition] = field(default_factory=set)


@dataclass
class Truth:
    """What is known of a transactional id by having watched."""

    record: TransactionRecord | None = None
    live: Producer | None = None
    """Who was given the right to use it last; None when that was fenced and nobody came since."""
    transaction: int | None = None
    """The last one that was begun."""


class TransactionalLife(RuleBasedStateMachine):
    @initialize(is_nearly_used_up=st.booleans())
    def begin(self, is_nearly_used_up: bool) -> None:
        self.truth = {each: Truth() for each in IDS}
        self.owners: dict[int, str] = {}
        self.given: dict[Producer, int] = {}
        """To each producer the instance that was told to be it."""
        self.transactions = 0
        self.outcomes: dict[int, bool] = {}
        self.members: dict[int, frozenset[TopicPartition]] = {}
        self.marked: dict[tuple[int, TopicPartition], bool] = {}
        self.shells: list[Shell] = []
        self.instances = [Instance(name, *each) for name, each in enumerate(INSTANCES)]
        self.late: list[Callable[[], object]] = []
        """Requests that were made, and may come once more."""

        log = []
        if is_nearly_used_up:
            record = TransactionRecord(
                "payments", 9, NEARLY_USED_UP, TIMEOUT_MS, EMPTY, frozenset(), WALL_MS, client_transaction_version=2
            )
            log = [encode(record)]
            self.owners[9] = "payments"
            self.truth["payments"].record = record
        self.talk = Dialogue(TransactionConfig(transactional_id_expiration_ms=7 * DAY_MS), log=log)
        self.seen = len(self.talk.log)

    # Producers

    @rule(who=WHO, brings_its_own=st.booleans())
    def init(self, who: int, brings_its_own: bool) -> None:
        instance = self.instances[who]
        expected = instance.producer if brings_its_own else NOBODY
        self.late.append(lambda: self._init(instance, expected))
        said = self._init(instance, expected)
        if said.error == "ok":
            instance.producer, instance.transaction = said.producer, None

    def _init(self, instance: Instance, expected: Producer) -> Said:
        said = self.talk.init(instance.transactional_id, expected=expected)
        self._watch(instance.transactional_id)
        if said.error == "ok":
            self._gives(instance, said.producer)
        return said

    @rule(who=WHO, partition=PARTITIONS)
    def add(self, who: int, partition: TopicPartition) -> None:
        instance = self.instances[who]
        producer = instance.producer
        self.late.append(lambda: self._add(instance, producer, partition))
        if self._add(instance, producer, partition) == "ok":
            instance.transaction = self.truth[instance.transactional_id].transaction

    @rule(who=WHO)
    def do_as_it_should(self, who: int) -> None:
        """What clients do of themselves: come, begin, go on."""
        instance = self.instances[who]
        if self.truth[instance.transactional_id].live != instance.producer:
            self.init(who, brings_its_own=False)
        self.add(who, P0)

    def _add(self, instance: Instance, producer: Producer, partition: TopicPartition) -> str:
        truth = self.truth[instance.transactional_id]
        is_being_ended = truth.record is not None and truth.record.status in BEING_ENDED
        version = 3 if instance.version == V1 else 5
        answer = self.talk.add(producer, partition, transactional_id=instance.transactional_id, version=version)
        self._watch(instance.transactional_id)
        if answer == "ok":
            assert producer == truth.live, "somebody else has it"
            (code,) = self.talk.verify(producer, partition, transactional_id=instance.transactional_id)
            assert code == "ok"
        elif producer == truth.live:
            assert is_being_ended and answer == "CONCURRENT_TRANSACTIONS", "nobody fenced it"
        return answer

    @rule(who=WHO, commit=st.booleans(), is_answer_lost=st.booleans())
    def end(self, who: int, commit: bool, is_answer_lost: bool) -> None:
        instance = self.instances[who]
        producer, transaction = instance.producer, instance.transaction
        self.late.append(lambda: self._end(instance, producer, transaction, commit))
        said = self._end(instance, producer, transaction, commit)
        if said.error == "ok" and not is_answer_lost:
            instance.transaction = None
            if instance.version == V2:
                instance.producer = said.producer

    def _end(self, instance: Instance, producer: Producer, transaction: int | None, commit: bool) -> Said:
        truth = self.truth[instance.transactional_id]
        was_open = truth.record is not None and truth.record.status is ONGOING
        live, written = truth.live, len(self.talk.log)
        said = self.talk.end(
            producer, commit=commit, version=instance.version, transactional_id=instance.transactional_id
        )
        has_decided = len(self.talk.log) > written
        self._watch(instance.transactional_id, by_its_producer=True)
        if said.error != "ok":
            assert not has_decided
            return said
        if has_decided:
            assert producer == live, "somebody else has it"
        if instance.version == V2:
            if was_open:
                # Whoever asks for an end with nothing begun, and begins then in the same epoch, has asked for this one.
                assert transaction in (None, truth.transaction), "of an earlier transaction"
            elif not has_decided and transaction is not None:
                assert self.outcomes[transaction] == commit, "it ended otherwise"
            self._gives(instance, said.producer)
        return said

    @rule(who=WHO, commit=st.booleans(), goes_on_at_once=st.booleans(), are_marked=st.booleans())
    def live_through_one(self, who: int, commit: bool, goes_on_at_once: bool, are_marked: bool) -> None:
        self.do_as_it_should(who)
        self.end(who, commit, is_answer_lost=False)
        if goes_on_at_once:
            self.end(who, commit=False, is_answer_lost=False)
        if are_marked:
            self.write_all_markers()

    @rule(data=st.data())
    @precondition(lambda self: self.late)
    def come_late(self, data: Any) -> None:
        """Once more, or for the first time as far as its sender knows: nobody hears the answer."""
        data.draw(st.sampled_from(self.late[-30:]))()

    def _gives(self, instance: Instance, producer: Producer) -> None:
        assert self.given.setdefault(producer, instance.name) == instance.name, "two instances are one producer"
        assert producer.epoch < 32_767
        self.truth[instance.transactional_id].live = producer

    # Markers

    @rule(data=st.data())
    @precondition(lambda self: self.shells)
    def write_a_marker(self, data: Any) -> None:
        """By any shell that was ever told to."""
        shell = data.draw(st.sampled_from(self.shells[-6:]))
        left = set(shell.markers.partitions) - shell.written
        if left:
            self._mark(shell, min(left))
        else:
            self._report(shell)

    @rule()
    def write_all_markers(self) -> None:
        for shell in self.shells:
            if any(shell.markers is each for each in self.talk.effects):
                for partition in shell.markers.partitions:
                    self._mark(shell, partition)
                self._report(shell)

    def _mark(self, shell: Shell, partition: TopicPartition) -> None:
        shell.written.add(partition)
        outcome = self.marked.setdefault((shell.transaction, partition), shell.markers.is_commit)
        assert outcome == shell.markers.is_commit

    def _report(self, shell: Shell) -> None:
        is_current = any(shell.markers is each for each in self.talk.effects)
        self.talk.effects = [each for each in self.talk.effects if each is not shell.markers]
        written = len(self.talk.log)
        self.talk.markers_written(shell.markers)
        assert len(self.talk.log) == written + is_current
        self._watch(shell.markers.transactional_id)

    # The world

    @rule(duration_ms=st.sampled_from([1, 20_000, TIMEOUT_MS]))
    def time_passes(self, duration_ms: int) -> None:
        self.talk.pass_ms(duration_ms)
        self._watch()

    @rule()
    def nothing_happens_for_days(self) -> None:
        self.talk.pass_ms(8 * DAY_MS)
        self._watch()
        assert all(each.record is None or each.record.status in BEING_ENDED for each in self.truth.values())

    @rule(compacted=st.booleans(), wall_ms=st.sampled_from([0, 0, 1_000, TIMEOUT_MS]), elected=st.booleans())
    def coordinator_dies(self, compacted: bool, wall_ms: int, elected: bool) -> None:
        """The next one finds what was written: see `what_is_remembered_is_what_was_written`."""
        waiting = {each.transactional_id: each for each in self.talk.effects}
        self.talk.crash(compacted=compacted, wall_ms=wall_ms, elected=elected)
        self.seen = len(self.talk.log)
        self._new_shells()
        again = {each.transactional_id: each for each in self.talk.effects}
        assert again.keys() == waiting.keys()
        for each, markers in again.items():
            assert (markers.is_commit, markers.partitions) == (waiting[each].is_commit, waiting[each].partitions)

    def teardown(self) -> None:
        """Everybody falls silent: all that was open is aborted, and all that was decided is carried out."""
        if hasattr(self, "talk"):
            self.talk.pass_ms(TIMEOUT_MS)
            self._watch()
            self.write_all_markers()
            assert all(each.record is None or each.record.status in ENDED | {EMPTY} for each in self.truth.values())

    # Watching what is written

    def _watch(self, only: str = "", *, by_its_producer: bool = False) -> None:
        new, self.seen = self.talk.log[self.seen :], len(self.talk.log)
        for each in new:
            record = decode(each)
            assert record is not None
            assert not only or record.transactional_id == only, "nobody asked for that one"
            truth = self.truth[record.transactional_id]
            if isinstance(record, TransactionTombstone):
                assert truth.record is not None and truth.record.status in ENDED | {EMPTY}
                self.truth[record.transactional_id] = Truth()
            else:
                self._watch_record(truth, record, by_its_producer)
        self._new_shells()

    def _watch_record(self, truth: Truth, record: TransactionRecord, by_its_producer: bool) -> None:
        before, truth.record = truth.record, record
        assert self.owners.setdefault(record.producer_id, record.transactional_id) == record.transactional_id
        if before is None:
            assert record.status is EMPTY
            return
        assert record.status in NEXT[before.status]
        if record.producer_id == before.producer_id:
            assert record.producer_epoch >= before.producer_epoch
        if before.status is not ONGOING and record.status in BEING_ENDED | {ONGOING}:
            self.transactions += 1
            truth.transaction = self.transactions
        transaction = truth.transaction
        if record.status in BEING_ENDED:
            assert transaction is not None
            assert self.outcomes.setdefault(transaction, record.status is PREPARE_COMMIT) == (
                record.status is PREPARE_COMMIT
            )
            self.members[transaction] = record.partitions
            if not by_its_producer:
                truth.live = None
        elif record.status in ENDED:
            assert transaction is not None
            assert self.outcomes[transaction] == (record.status is TransactionStatus.COMPLETE_COMMIT)
            for partition in self.members[transaction]:
                assert self.marked[transaction, partition] == self.outcomes[transaction], "half of it is seen"

    def _new_shells(self) -> None:
        known = {id(shell.markers) for shell in self.shells}
        for markers in self.talk.effects:
            if id(markers) not in known:
                transaction = self.truth[markers.transactional_id].transaction
                assert transaction is not None
                self.shells.append(Shell(markers, transaction))

    # What must hold

    @invariant()
    def what_is_remembered_is_what_was_written(self) -> None:
        written = {each: truth.record for each, truth in self.truth.items() if truth.record is not None}
        assert records_of(self.talk.machine) == written

    @invariant()
    def whatever_is_decided_is_being_carried_out_and_nothing_else(self) -> None:
        told = {each.transactional_id: each for each in self.talk.effects}
        assert len(told) == len(self.talk.effects)
        records = records_of(self.talk.machine)
        assert told.keys() == {each for each, record in records.items() if record.status in BEING_ENDED}
        for each, markers in told.items():
            record = records[each]
            assert (markers.producer_id, markers.producer_epoch) == (record.producer_id, record.producer_epoch)
            assert set(markers.partitions) == record.partitions
            assert markers.is_commit == (record.status is PREPARE_COMMIT)
            assert markers.coordinator_epoch == self.talk.coordinator_epoch

    @invariant()
    def no_transaction_is_open_for_longer_than_it_may_be(self) -> None:
        for record in records_of(self.talk.machine).values():
            if record.status is ONGOING:
                deadline_ms = self.talk.machine._timers.deadline_ms(record.transactional_id)
                left_ms = record.start_ms + record.timeout_ms - self.talk.now.wall_ms
                assert deadline_ms == self.talk.now.monotonic_ms + max(left_ms, 0)

    @invariant()
    def only_what_is_open_has_a_deadline(self) -> None:
        timers = set(self.talk.machine._timers._deadlines) - {""}
        records = records_of(self.talk.machine)
        assert timers == {each for each, record in records.items() if record.status is ONGOING}


TestTransactionalLife = TransactionalLife.TestCase
TestTransactionalLife.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

pytestmark = pytest.mark.timeout(600)
"""When it fails, finding the shortest way there takes minutes."""
