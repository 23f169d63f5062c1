"""traps D3, D5: compaction of transactions, step by step and against a model that keeps everything."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.storage.compaction_kit import (
    COMPACTED,
    DAY_MS,
    MEMORY,
    check_indexes,
    check_offsets,
    clean,
    keyed_batch,
    producer_windows,
)
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, append, flush, headers, records
from tests.storage.transaction_kit import a_marker, abort, batches_of, commit, committed, txn_batch

from penstock.protocol.batch import DELETE_HORIZON_BIT, Codec
from penstock.protocol.records import iterate
from penstock.storage.cleaning_state import EVERYWHERE
from penstock.storage.compaction import CleanerLimits
from penstock.storage.log import Log

PRODUCER = 7
SETTINGS = {
    "is_compacted": True, "is_deleted_by_retention": False, "min_cleanable_dirty_ratio": 0.0, "segment_bytes": 2_000,
    "delete_retention_ms": DAY_MS,
}  # fmt: skip


def closed(log: Log) -> None:
    """What was written so far can be cleaned."""
    log.roll(NOW_MS)
    append(log, keyed_batch([(b"end-%d" % log.log_end_offset, b"v")]))
    log.roll(NOW_MS)
    append(log, keyed_batch([(b"active", b"v")]))


def forget_windows(log: Log) -> None:
    """The producers have expired: nothing is kept for their sake."""
    log.producers.expire(NOW_MS * 2, 1)


def visible(log: Log) -> dict[bytes | None, bytes | None]:
    """Key to value, as a reader of committed records that starts at the beginning ends up with."""
    end = log.log_end_offset
    seen = set(committed(batches_of(log), log.aborted_transactions(0, end), 0, end))
    found: dict[bytes | None, bytes | None] = {}
    for header, batch in batches_of(log):
        if header.base_offset in seen:
            found |= {record.key: record.value for record in iterate(batch)}
    return {key: value for key, value in found.items() if value is not None}


def markers(log: Log) -> list[int]:
    return [header.base_offset for header in headers(log) if header.is_control]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_given_an_aborted_record_when_cleaned_then_it_is_gone_and_replaced_nothing(
    new_log: NewLog, codec: Codec
) -> None:
    log = new_log(**SETTINGS)
    append(log, keyed_batch([(b"a", b"old"), (b"b", b"old")]))
    append(log, txn_batch((PRODUCER, 0, 0), keys=[b"a"], value=b"aborted", codec=codec))
    abort(log, PRODUCER)
    append(log, txn_batch((PRODUCER, 0, 1), keys=[b"b"], value=b"new", codec=codec))
    commit(log, PRODUCER)
    closed(log)
    forget_windows(log)

    clean(log)

    held = {(record.key, record.value) for record in records(log) if record.offset in (0, 1, 2, 4)}
    assert held == {(b"a", b"old"), (b"b", b"new")}
    assert visible(log)[b"a"] == b"old"


def test_given_a_marker_when_its_records_are_gone_then_it_stays_until_its_delete_horizon(new_log: NewLog) -> None:
    log = new_log(**SETTINGS)
    append(log, txn_batch((PRODUCER, 0, 0), keys=[b"a"]))
    abort(log, PRODUCER)
    append(log, txn_batch((PRODUCER, 0, 1), keys=[b"a"]))
    commit(log, PRODUCER)
    append(log, keyed_batch([(b"a", b"last")]))
    closed(log)
    forget_windows(log)

    def cleaned(now_ms: int, removable_end: int = EVERYWHERE) -> list[tuple[int, bool]]:
        """Markers that are left, and whether they have a horizon."""
        closed(log)
        clean(log, now_ms=now_ms, removable_end=removable_end)
        return [
            (header.base_offset, bool(header.attributes & DELETE_HORIZON_BIT))
            for header in headers(log)
            if header.is_control
        ]

    assert cleaned(NOW_MS) == [(1, False), (3, False)]  # this round saw their records
    assert len(log.aborted_transactions(0, 99)) == 1
    assert cleaned(NOW_MS) == [(1, True), (3, True)]
    assert log.aborted_transactions(0, 99) == []
    timestamps = {record.offset: record.timestamp for record in records(log)}
    assert timestamps[1] == timestamps[3] == NOW_MS
    assert cleaned(NOW_MS + DAY_MS - 1) == [(1, True), (3, True)]
    assert cleaned(NOW_MS + DAY_MS, removable_end=3) == [(3, True)]  # trap D4
    assert cleaned(NOW_MS + DAY_MS) == []
    assert not [name for name in os.listdir(log.directory) if name.endswith(".txnindex")]


def test_given_a_producer_that_may_repeat_when_cleaned_then_its_batches_stay_empty_and_so_do_their_markers(
    new_log: NewLog,
) -> None:
    log = new_log(**SETTINGS)
    for sequence in range(3):
        append(log, txn_batch((PRODUCER, 0, sequence), keys=[b"a"]))
        (abort if sequence % 2 else commit)(log, PRODUCER)
    append(log, keyed_batch([(b"a", b"last")]))
    windows = producer_windows(log)
    for _ in range(3):
        closed(log)
        clean(log, now_ms=NOW_MS + 9 * DAY_MS)

    assert markers(log) == [1, 3, 5]
    for name in os.listdir(log.directory):
        if name.endswith(".snapshot"):
            os.unlink(f"{log.directory}/{name}")
    again = Log.open(log.directory, log.config, clean=False, now_ms=NOW_MS)
    assert again.open_transactions() == {}
    assert producer_windows(again) == windows


def test_given_a_producer_known_by_a_marker_only_when_cleaned_then_its_epoch_still_keeps_older_ones_out(
    new_log: NewLog,
) -> None:
    log = new_log(**SETTINGS)
    append(log, txn_batch((PRODUCER, 0, 0), keys=[b"a"]))
    abort(log, PRODUCER, 1)

    def clean_for_days() -> None:
        for day in range(4):
            closed(log)
            clean(log, now_ms=NOW_MS + 2 * day * DAY_MS)

    clean_for_days()
    assert markers(log) == [1]
    forget_windows(log)
    clean_for_days()
    assert markers(log) == []


def test_given_transactions_of_one_producer_when_one_still_has_records_then_the_markers_of_the_others_go(
    new_log: NewLog,
) -> None:
    log = new_log(**SETTINGS)
    append(log, txn_batch((PRODUCER, 0, 0), keys=[b"stays"]))
    commit(log, PRODUCER)
    append(log, txn_batch((PRODUCER, 0, 1), keys=[b"goes"]))
    abort(log, PRODUCER)
    forget_windows(log)
    for day in range(4):
        closed(log)
        clean(log, now_ms=NOW_MS + 2 * day * DAY_MS)

    assert markers(log) == [1]


def test_given_a_map_that_is_full_within_a_segment_when_cleaned_then_no_abort_is_forgotten(new_log: NewLog) -> None:
    """KAFKA-13727: what lies behind the point where the map was full is copied, with its markers."""
    log = new_log(**SETTINGS)
    sequence = 0
    for number in range(40):
        append(log, txn_batch((PRODUCER, 0, sequence), keys=[b"k%d" % number, b"x"], value=b"%d" % number))
        sequence += 2
        append(log, keyed_batch([(b"plain-%d" % number, b"v")]))
        (abort if number % 3 else commit)(log, PRODUCER)
    closed(log)
    forget_windows(log)
    before = visible(log)

    for day in range(30):
        clean(log, now_ms=NOW_MS + day * DAY_MS, limits=CleanerLimits(dedupe_buffer_bytes=240, io_buffer_bytes=400))
        assert visible(log) == before
        check_offsets(log)


RETENTION_MS = 1_000
KEYS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=4)
STEPS = st.sampled_from(["data", "data", "data", "plain", "commit", "abort", "abort+"])


class CompactedTransactionsAgainstEverything(RuleBasedStateMachine):
    """What a reader of committed records has in the end, and that nothing hangs when the log is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="compacted-transactions-", dir=MEMORY)
        self.settings = dataclasses.replace(COMPACTED, index_interval_bytes=100, delete_retention_ms=RETENTION_MS)
        self.log = Log.open(f"{self.data}/t-0", self.settings, now_ms=NOW_MS)
        self.now_ms = NOW_MS
        self.number = 0
        # What committed records make of each key, and those of open transactions, in their order.
        self.latest: dict[bytes, tuple[int, bytes | None]] = {}
        self.pending: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.producers: dict[int, tuple[int, int]] = {3: (0, 0), 4: (0, 0)}

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    def settle(self, rows: list[tuple[int, bytes, bytes | None]]) -> None:
        for offset, key, value in rows:
            if offset > self.latest.get(key, (-1, None))[0]:
                self.latest[key] = offset, value

    @rule(
        producer=st.sampled_from([3, 4]),
        step=STEPS,
        keys=KEYS,
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD]),
        tombstone=st.booleans(),
    )
    def append(self, producer: int, step: str, keys: list[bytes], codec: Codec, tombstone: bool) -> None:
        epoch, sequence = self.producers[producer]
        self.number += 1
        value = None if tombstone and step == "plain" else b"%d" % self.number * 20
        rows: list[tuple[int, bytes, bytes | None]]
        if step == "plain":
            offset = append(self.log, keyed_batch([(key, value) for key in keys], codec=codec))
            self.settle([(offset + at, key, value) for at, key in enumerate(keys)])
        elif step == "data":
            assert value is not None
            batch = txn_batch((producer, epoch, sequence), keys=keys, value=value, codec=codec)
            offset = append(self.log, batch)
            rows = [(offset + at, key, value) for at, key in enumerate(keys)]
            self.pending[producer] = self.pending.get(producer, []) + rows
            self.producers[producer] = epoch, sequence + len(keys)
        else:
            if step == "abort+":
                epoch, sequence = epoch + 1, 0
            append(self.log, a_marker(producer, epoch, commit=step == "commit"))
            rows = self.pending.pop(producer, [])
            self.settle(rows if step == "commit" else [])
            # A marker for a producer that was forgotten begins its epoch anew, as in Kafka.
            is_known = bool(self.log.producers.entries[producer].batches)
            self.producers[producer] = epoch, sequence if is_known else 0

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(step_ms=st.sampled_from([1, 400, 1_500]))
    def clock(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule()
    def expire(self) -> None:
        """As long as its transaction is open a producer stays; the others go, and with them what is kept for them."""
        self.log.producers.expire(self.now_ms * 2, 1)

    @rule(
        buffer_bytes=st.sampled_from([0, 48, 96, 1 << 20]),
        io_bytes=st.sampled_from([2, 130, 1 << 16]),
        segment_bytes=st.sampled_from([2_000, 400]),
    )
    def clean(self, buffer_bytes: int, io_bytes: int, segment_bytes: int) -> None:
        flush(self.log)
        end = self.log.log_end_offset
        unstable = self.log.first_unstable_offset(end)
        self.log.config = dataclasses.replace(self.settings, segment_bytes=segment_bytes)
        limits = CleanerLimits(dedupe_buffer_bytes=buffer_bytes, io_buffer_bytes=io_bytes)
        clean(self.log, now_ms=self.now_ms, limits=limits, upper_offset=end if unstable is None else unstable)
        self.log.config = self.settings

    @rule(is_clean=st.booleans(), snapshots=st.booleans())
    def reopen(self, is_clean: bool, snapshots: bool) -> None:
        expected = self.log.open_transactions()
        if is_clean:
            self.log.close()
        if not snapshots:
            for name in os.listdir(self.log.directory):
                if name.endswith(".snapshot"):
                    os.unlink(f"{self.log.directory}/{name}")
        point = self.log.recovery_point if self.number % 2 else 0
        cleaned = self.log.cleaning.cleaned_offset
        self.log = Log.open(self.log.directory, self.settings, clean=is_clean, recovery_point=point, now_ms=self.now_ms)
        self.log.cleaning.cleaned_offset = cleaned
        assert self.log.open_transactions() == expected
        for producer in self.producers:
            entry = self.log.producers.entries.get(producer)
            if entry is not None and not entry.batches:
                self.producers[producer] = entry.producer_epoch, 0
            elif entry is not None:
                self.producers[producer] = entry.producer_epoch, entry.batches[-1].last_sequence + 1

    @invariant()
    def shows_what_was_committed_last(self) -> None:
        end = self.log.log_end_offset
        unstable = self.log.first_unstable_offset(end)
        upper = end if unstable is None else unstable
        hidden = {offset for rows in self.pending.values() for offset, _, _ in rows}
        found: dict[bytes | None, tuple[int, bytes | None]] = {}
        for header, batch in batches_of(self.log):
            aborted = self.log.aborted_transactions(header.base_offset, header.last_offset + 1)
            is_aborted = header.is_transactional and header.producer_id in {each.producer_id for each in aborted}
            if header.is_control or is_aborted:
                continue
            for record in iterate(batch):
                if record.offset not in hidden:
                    found[record.key] = record.offset, record.value
        alive = {key: each for key, each in self.latest.items() if each[1] is not None}
        assert {key: each for key, each in found.items() if each[1] is not None} == alive
        everything = committed(batches_of(self.log), self.log.aborted_transactions(0, upper), 0, upper)
        for start in range(0, upper, 5):
            seen = committed(batches_of(self.log), self.log.aborted_transactions(start, upper), start, upper)
            assert seen == [each for each in everything if each in seen or each >= start]

    @invariant()
    def has_sound_indexes(self) -> None:
        check_offsets(self.log)
        check_indexes(self.log)


TestCompactedTransactions = CompactedTransactionsAgainstEverything.TestCase
TestCompactedTransactions.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
