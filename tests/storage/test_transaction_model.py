"""trap C6, C7: stable offsets and aborted transactions against a model that keeps everything, crashes included."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.compaction_kit import MEMORY
from tests.storage.kit import NOW_MS, a_batch, config, file_size_limit, flush, stage
from tests.storage.transaction_kit import a_marker, batches_of, committed, txn_batch

from penstock.core.errors import BrokerError
from penstock.protocol.batch import split
from penstock.storage.log import AbortedTransaction, Log
from penstock.storage.log_file import ColdRead

SETTINGS = config(segment_bytes=700, index_interval_bytes=200, retention_bytes=2_000)
PRODUCERS = (3, 4, 5)


@dataclass(frozen=True)
class Written:
    base_offset: int
    last_offset: int
    producer_id: int
    kind: str  # plain, data, commit, abort
    epoch: int = 0
    sequence: int = 0


@dataclass(frozen=True)
class Transaction:
    producer_id: int
    first_offset: int
    # None: it is open.
    marker: Written | None = None


STEPS = st.lists(
    st.tuples(st.sampled_from(PRODUCERS), st.sampled_from(["data", "data", "plain", "commit", "abort", "abort+"])),
    min_size=1,
    max_size=6,
)


class TransactionsAgainstEverything(RuleBasedStateMachine):
    with_retention = False

    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="transactions-", dir=MEMORY)
        self.log = Log.open(f"{self.data}/t-0", SETTINGS, now_ms=NOW_MS)
        self.written: list[Written] = []
        self.high_watermark = 0
        self.checkpointed = 0

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    @property
    def end(self) -> int:
        return self.written[-1].last_offset + 1 if self.written else self.log.log_start_offset

    def transactions(self) -> list[Transaction]:
        found: list[Transaction] = []
        still_open: dict[int, Transaction] = {}
        for each in self.written:
            if each.kind == "data":
                still_open.setdefault(each.producer_id, Transaction(each.producer_id, each.base_offset))
            elif each.kind in ("commit", "abort") and each.producer_id in still_open:
                found.append(replace(still_open.pop(each.producer_id), marker=each))
        return found + list(still_open.values())

    def numbers(self, staged: list[Written], producer_id: int) -> tuple[int, int]:
        """The producer's epoch and its next sequence number."""
        own = [each for each in (*self.written, *staged) if each.producer_id == producer_id]
        if not own:
            return 0, 0
        epoch = own[-1].epoch
        data = [each for each in own if each.kind == "data" and each.epoch == epoch]
        return epoch, data[-1].sequence + data[-1].last_offset - data[-1].base_offset + 1 if data else 0

    def stage_all(self, steps: list[tuple[int, str]]) -> list[Written]:
        staged: list[Written] = []
        for producer_id, kind in steps:
            epoch, sequence = self.numbers(staged, producer_id)
            count = 1 + (producer_id + len(staged)) % 3
            if kind == "plain":
                offset = stage(self.log, a_batch(count))
                staged.append(Written(offset, offset + count - 1, -1, "plain"))
            elif kind == "data":
                offset = stage(self.log, txn_batch((producer_id, epoch, sequence), count))
                staged.append(Written(offset, offset + count - 1, producer_id, kind, epoch, sequence))
            else:
                epoch += kind == "abort+"
                kind = "commit" if kind == "commit" else "abort"
                offset = stage(self.log, a_marker(producer_id, epoch, commit=kind == "commit"))
                staged.append(Written(offset, offset, producer_id, kind, epoch))
        return staged

    @rule(steps=STEPS)
    def append(self, steps: list[tuple[int, str]]) -> None:
        staged = self.stage_all(steps)
        self.log.write_staged()
        self.written += staged

    @rule(steps=STEPS, room=st.integers(0, 900))
    def append_to_a_full_disk(self, steps: list[tuple[int, str]], room: int) -> None:
        staged = self.stage_all(steps)
        try:
            with file_size_limit(min(self.log.end_position.position, 300) + room):
                self.log.write_staged()
        except BrokerError:
            return
        self.written += staged

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule()
    def checkpoint(self) -> None:
        self.checkpointed = self.log.recovery_point

    @rule(share=st.integers(0, 100))
    def advance(self, share: int) -> None:
        self.high_watermark += max(0, (self.end - self.high_watermark) * share // 100)

    @precondition(lambda self: self.with_retention)
    @rule()
    def retain(self) -> None:
        self.high_watermark = self.end
        flush(self.log)
        plan = self.log.plan_retention(self.high_watermark, NOW_MS)
        if plan is not None and self.log.has_snapshot_behind(plan):
            self.log.retire(plan, NOW_MS).remove()

    @precondition(lambda self: not self.with_retention)
    @rule(share=st.integers(50, 100))
    def truncate(self, share: int) -> None:
        offset = self.end * share // 100
        self.log.truncate_to(offset, NOW_MS)
        self.checkpointed = min(self.checkpointed, self.log.recovery_point)
        self.written = [each for each in self.written if each.last_offset < offset]
        assert self.log.log_end_offset == self.end
        self.high_watermark = min(self.high_watermark, self.end)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = Log.open(self.log.directory, SETTINGS, log_start_offset=self.log.log_start_offset, now_ms=NOW_MS)
        assert self.log.recovery_report is None
        self.checkpointed, self.high_watermark = self.log.recovery_point, self.log.flushed_offset

    @rule(share=st.integers(0, 100), garbage=st.sampled_from([b"", b"\xff" * 70]), indexes=st.sampled_from([0, 1, 2]))
    def crash(self, share: int, garbage: bytes, indexes: int) -> None:
        """What was not flushed is cut anywhere, and indexes that were not flushed are gone or garbage."""
        last, flushed = self.log.segments[-1], self.log.flushed_position
        kept = flushed.position if flushed.segment_base_offset == last.base_offset else 0
        with open(last.path, "r+b") as file:
            file.truncate(kept + (last.size - kept) * share // 100)
            survived = [header.base_offset for _, header in split(file.read())]
            file.write(garbage)
        for segment in self.log.segments:
            following = [each.base_offset for each in self.log.segments if each.base_offset > segment.base_offset]
            is_scanned = not following or following[0] > self.checkpointed
            if is_scanned and indexes and os.path.exists(segment.txn_index.path):
                with open(segment.txn_index.path, "r+b") as file:
                    file.truncate(20)
                if indexes == 2:
                    os.unlink(segment.txn_index.path)

        self.log = Log.open(
            self.log.directory, SETTINGS, recovery_point=self.checkpointed,
            log_start_offset=self.log.log_start_offset, clean=False, now_ms=NOW_MS,
        )  # fmt: skip

        self.written = [
            each for each in self.written if each.base_offset < last.base_offset or each.base_offset in survived
        ]
        assert self.log.log_end_offset == self.end
        self.high_watermark = self.log.flushed_offset

    @invariant()
    def knows_what_is_open(self) -> None:
        expected = {each.producer_id: each.first_offset for each in self.transactions() if each.marker is None}
        assert self.log.open_transactions() == expected

    @invariant()
    def knows_the_first_unstable_offset(self) -> None:
        unstable = [
            each.first_offset
            for each in self.transactions()
            if each.marker is None or each.marker.base_offset >= self.high_watermark
        ]
        expected = max(min(unstable), self.log.log_start_offset) if unstable else None
        assert self.log.first_unstable_offset(self.high_watermark) == expected

    @invariant()
    def tells_every_reader_what_was_aborted(self) -> None:
        batches = batches_of(self.log)
        start, transactions = self.log.log_start_offset, self.transactions()
        aborted = [each for each in transactions if each.marker is not None and each.marker.kind == "abort"]
        unstable = self.log.first_unstable_offset(self.high_watermark)
        stable_end = self.high_watermark if unstable is None else min(self.high_watermark, unstable)
        hidden = [(each.producer_id, each.first_offset, each.marker.base_offset) for each in aborted if each.marker]
        for offset in range(start, self.end):
            told = self.log.aborted_transactions(offset, stable_end)
            with suppress(ColdRead):
                assert self.log.aborted_transactions(offset, stable_end, wait=False) == told
            visible = [
                each.base_offset
                for each in self.written
                if each.last_offset >= offset
                and start <= each.base_offset < stable_end
                and each.kind in ("plain", "data")
                and not any(
                    pid == each.producer_id and a < each.last_offset + 1 and each.base_offset < z
                    for pid, a, z in hidden
                )
            ]
            seen = committed(batches, told, offset, stable_end)
            assert [each for each in seen if each >= start] == visible
            assert self.log.may_have_aborted(offset) or not told
            if not self.with_retention:
                for upper in {*range(offset + 1, stable_end, 3), stable_end}:
                    assert self.log.aborted_transactions(offset, upper) == sorted(
                        (AbortedTransaction(pid, a) for pid, a, z in hidden if z >= offset and a < upper),
                        key=lambda each: each.first_offset,
                    )

    @invariant()
    def has_a_file_only_where_there_is_an_entry(self) -> None:
        for segment in self.log.segments:
            path = segment.txn_index.path
            size = os.stat(path).st_size if os.path.exists(path) else -1
            assert size == 34 * segment.txn_index.count or (size == -1 and not segment.txn_index.count)


class TransactionsUnderRetention(TransactionsAgainstEverything):
    with_retention = True


TestTransactionsAgainstEverything = TransactionsAgainstEverything.TestCase
TestTransactionsAgainstEverything.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTransactionsUnderRetention = TransactionsUnderRetention.TestCase
TestTransactionsUnderRetention.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
