"""Compaction against a model that keeps everything: traps D1, D2, D5, with maps and buffers far too small."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.compaction_kit import (
    COMPACTED,
    MEMORY,
    check_indexes,
    check_offsets,
    clean,
    keyed_batch,
    producer_windows,
)
from tests.storage.kit import NOW_MS, append, bytes_of, flush, headers, records

from penstock.protocol.batch import Codec, read_header
from penstock.protocol.records import StoredRecord
from penstock.storage.compaction import CleanerLimits
from penstock.storage.log import Log

RETENTION_MS = 1_000
KEYS = st.sampled_from([b"a", b"b", b"c", b"", b"a longer key", bytes(9), None])
VALUES = st.sampled_from([None, b"", b"v", b"value" * 10, b"v" * 300])
BATCHES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
LIMITS = st.builds(
    CleanerLimits,
    dedupe_buffer_bytes=st.sampled_from([0, 48, 96, 240, 1 << 20]),
    load_factor=st.sampled_from([0.5, 0.9]),
    io_buffer_bytes=st.sampled_from([2, 130, 700, 1 << 16]),
)


class CompactionAgainstEverything(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="compaction-model-", dir=MEMORY)
        self.settings = dataclasses.replace(COMPACTED, index_interval_bytes=100, delete_retention_ms=RETENTION_MS)
        self.log = Log.open(f"{self.data}/t-0", self.settings, now_ms=NOW_MS)
        self.now_ms = NOW_MS
        self.written: dict[int, StoredRecord] = {}
        self.end = 0
        self.sequences = {3: 0, 4: 0}
        # How far cleaning came, and for tombstones when it first passed them and when it last came by.
        self.clean_end = 0
        self.first_cleaned_ms: dict[int, int] = {}
        self.last_cleaned_ms: dict[int, int] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    @rule(pairs=BATCHES, codec=st.sampled_from(list(Codec)), producer=st.sampled_from([-1, 3, 4]))
    def append(self, pairs: list[tuple[bytes | None, bytes | None]], codec: Codec, producer: int) -> None:
        owner = (-1, -1, -1)
        if producer >= 0:
            owner = (producer, 0, self.sequences[producer])
            self.sequences[producer] += len(pairs)
        append(self.log, keyed_batch(pairs, timestamp=self.now_ms, codec=codec, producer=owner), now_ms=self.now_ms)
        for at, (key, value) in enumerate(pairs):
            self.written[self.end + at] = StoredRecord(self.end + at, self.now_ms + at, key, value, [("h", b"x")])
        self.end += len(pairs)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now_ms)

    @rule(step_ms=st.sampled_from([1, 400, 1_500, -700]))
    def clock(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(limits=LIMITS, share=st.sampled_from([100, 100, 50]), segment_bytes=st.sampled_from([2_000, 400, 1]))
    def clean(self, limits: CleanerLimits, share: int, segment_bytes: int) -> None:
        self.log.config = dataclasses.replace(self.settings, segment_bytes=segment_bytes)
        cleaned = clean(self.log, now_ms=self.now_ms, limits=limits, upper_offset=self.end * share // 100)
        self.log.config = self.settings
        if cleaned is None:
            return
        assert cleaned.clean_end > self.clean_end
        self.clean_end = cleaned.clean_end
        for offset in range(self.clean_end):
            self.first_cleaned_ms.setdefault(offset, self.now_ms)
            self.last_cleaned_ms[offset] = max(self.last_cleaned_ms.get(offset, 0), self.now_ms)
        assert self.log.cleaning.cleaned_offset == self.clean_end
        self.has_one_record_a_key_where_it_is_clean()

    @rule()
    def restart(self) -> None:
        before = producer_windows(self.log)
        self.log.close()
        self.reopen(clean=True)
        assert producer_windows(self.log) == before

    @precondition(lambda self: self.end)
    @rule(recovers_all=st.booleans(), snapshots=st.booleans())
    def crash(self, recovers_all: bool, snapshots: bool) -> None:
        flush(self.log)
        before = producer_windows(self.log)
        if not snapshots:
            self.remove_snapshots()
        self.reopen(clean=False, recovery_point=0 if recovers_all else self.log.recovery_point)
        assert self.log.recovery_report is not None
        assert self.log.recovery_report.truncated_bytes == 0
        assert producer_windows(self.log) == before

    def remove_snapshots(self) -> None:
        for offset in list(self.log._snapshot_offsets):
            os.unlink(f"{self.log.directory}/{offset:020d}.snapshot")

    def reopen(self, *, clean: bool, recovery_point: int = 0) -> None:
        cleaned_offset = self.log.cleaning.cleaned_offset
        self.log = Log.open(
            self.log.directory, self.settings, recovery_point=recovery_point, clean=clean, now_ms=self.now_ms
        )
        self.log.cleaning.cleaned_offset = cleaned_offset

    def has_one_record_a_key_where_it_is_clean(self) -> None:
        keys = [record.key for record in records(self.log) if record.offset < self.clean_end]
        assert None not in keys
        assert len(keys) == len(set(keys))

    @invariant()
    def its_size_is_that_of_its_segments(self) -> None:
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)

    @invariant()
    def holds_nothing_that_was_not_written(self) -> None:
        check_offsets(self.log)
        for record in records(self.log):
            assert record == self.written[record.offset]

    @invariant()
    def holds_the_last_record_of_every_key_and_all_that_is_dirty(self) -> None:
        held = {record.offset for record in records(self.log)}
        last = {record.key: record for record in self.written.values()}
        for record in self.written.values():
            if record.offset >= self.clean_end:
                assert record.offset in held
            elif record.key is not None and last[record.key] is record and record.offset not in held:
                assert record.value is None, "the last value of a key is gone"
                due_ms = self.first_cleaned_ms[record.offset] + RETENTION_MS
                assert self.last_cleaned_ms[record.offset] >= due_ms, "a tombstone is gone too early"

    @invariant()
    def ends_where_it_ended(self) -> None:
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == 0

    @invariant()
    def finds_every_offset(self) -> None:
        found = headers(self.log)
        for offset in range(self.end):
            span = self.log.read(offset, 1, self.log.end_position, at_least_one=True, wait=True)
            expected = next((header for header in found if header.last_offset >= offset), None)
            if expected is None:
                assert span is None
            else:
                assert span is not None
                assert read_header(bytes_of(span)) == expected

    @invariant()
    def has_sound_indexes(self) -> None:
        check_indexes(self.log)


TestCompactionAgainstEverything = CompactionAgainstEverything.TestCase
TestCompactionAgainstEverything.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
