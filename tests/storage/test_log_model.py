"""The whole log against a list of batches: whatever is done to it, in whatever order, crashes included."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.storage.kit import NOW_MS, a_batch, bytes_of, config, file_size_limit, flush, stage

from penstock.core.errors import BrokerError
from penstock.protocol.batch import read_header, split
from penstock.storage.log import DuplicateBatch, Log

SETTINGS = config(segment_bytes=2_500, index_interval_bytes=300, retention_bytes=6_000)
shapes = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0, 40, 400, 750])), min_size=1, max_size=4)


class LogAgainstAListOfBatches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.mkdtemp(prefix="log-model-")
        self.log = Log.open(f"{self.data}/t-0", SETTINGS, now_ms=NOW_MS)
        # Every batch that is in the log, as bytes, in order.
        self.batches: list[bytes] = []
        self.start = 0
        self.sequence = 0
        self.epoch = 0
        self.checkpointed = 0

    def teardown(self) -> None:
        shutil.rmtree(self.data)

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.start

    def stage_all(self, shape: list[tuple[int, int]]) -> list[bytearray]:
        staged = []
        sequence = self.sequence
        for count, size in shape:
            timestamp = NOW_MS + (count * 7 + size + self.end) % 50
            batch = a_batch(count, value=b"v" * size, timestamp=timestamp, producer=(3, 0, sequence))
            stage(self.log, batch, epoch=self.epoch)
            sequence += count
            staged.append(batch)
        return staged

    @rule(shape=shapes, newer=st.booleans())
    def append(self, shape: list[tuple[int, int]], newer: bool) -> None:
        self.epoch += newer
        staged = self.stage_all(shape)
        self.log.write_staged()
        self.batches += [bytes(batch) for batch in staged]
        self.sequence += sum(count for count, _ in shape)

    @rule(shape=shapes, room=st.integers(0, 2_000))
    def append_to_a_full_disk(self, shape: list[tuple[int, int]], room: int) -> None:
        staged = self.stage_all(shape)
        try:
            with file_size_limit(self.log.end_position.position + room):
                self.log.write_staged()
        except BrokerError:
            return
        self.batches += [bytes(batch) for batch in staged]
        self.sequence += sum(count for count, _ in shape)

    @precondition(lambda self: self.batches)
    @rule()
    def retry_the_last(self) -> None:
        batch = bytearray(self.batches[-1])
        with pytest.raises(DuplicateBatch) as duplicate:
            stage(self.log, batch, epoch=self.epoch)
        assert duplicate.value.base_offset == read_header(batch).base_offset

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW_MS)

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule()
    def checkpoint(self) -> None:
        self.checkpointed = self.log.recovery_point

    @precondition(lambda self: self.batches)
    @rule(share=st.integers(0, 100))
    def delete_records(self, share: int) -> None:
        self.start = max(self.start, self.start + (self.end - self.start) * share // 100)
        self.log.move_log_start(self.start)

    @rule(share=st.integers(60, 100))
    def truncate(self, share: int) -> None:
        offset = self.start + (self.end - self.start) * share // 100
        self.log.truncate_to(offset, NOW_MS)
        self.checkpointed = min(self.checkpointed, self.log.recovery_point)
        self.batches = [batch for batch in self.batches if read_header(batch).next_offset <= offset]
        self.start = min(self.start, self.end) if self.batches else self.log.log_end_offset
        self.forget_sequences()

    @rule()
    def retain(self) -> None:
        plan = self.log.plan_retention(self.log.log_end_offset, NOW_MS)
        if plan is not None:
            self.log.retire(plan, NOW_MS).remove()
            first = self.log.segments[0].base_offset
            self.batches = [batch for batch in self.batches if read_header(batch).base_offset >= first]
            self.start = max(self.start, first)
            assert self.log.size_bytes >= min(6_000, sum(map(len, self.batches)))

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.log = Log.open(self.log.directory, SETTINGS, log_start_offset=self.start, now_ms=NOW_MS)
        assert self.log.recovery_report is None
        self.checkpointed = self.log.recovery_point

    @rule(share=st.integers(0, 100), garbage=st.sampled_from([b"", b"\x01" * 100, b"\xff" * 70]), indexes=st.booleans())
    def crash(self, share: int, garbage: bytes, indexes: bool) -> None:
        """What was not flushed of the last segment is cut anywhere; garbage follows; indexes may be gone."""
        last, flushed = self.log.segments[-1], self.log.flushed_position
        kept = flushed.position if flushed.segment_base_offset == last.base_offset else 0
        cut = kept + (last.size - kept) * share // 100
        with open(last.path, "r+b") as file:
            file.truncate(cut)
            file.seek(cut)
            file.write(garbage)
            file.seek(0)
            survived = [header.base_offset for _, header in split(file.read(cut))]
        if indexes:
            for name in os.listdir(self.log.directory):
                if name.endswith("index"):
                    os.unlink(f"{self.log.directory}/{name}")

        self.log = Log.open(
            self.log.directory, SETTINGS, recovery_point=self.checkpointed, log_start_offset=self.start, clean=False,
            now_ms=NOW_MS,
        )  # fmt: skip

        below = [batch for batch in self.batches if read_header(batch).base_offset < last.base_offset]
        self.batches = below + [batch for batch in self.batches if read_header(batch).base_offset in survived]
        end = read_header(self.batches[-1]).next_offset if self.batches else last.base_offset
        if end < self.start:
            self.batches = []
        self.forget_sequences()

    def forget_sequences(self) -> None:
        """The producer goes on behind the last batch that survived."""
        entry = self.log.producers.entries.get(3)
        self.sequence = entry.batches[-1].last_sequence + 1 if entry is not None else 0
        if self.batches:
            assert self.sequence == read_header(self.batches[-1]).last_sequence + 1

    @invariant()
    def its_size_is_that_of_its_segments(self) -> None:
        assert self.log.size_bytes == sum(segment.size for segment in self.log.segments)

    @invariant()
    def holds_exactly_the_batches(self) -> None:
        assert self.log.log_end_offset == self.log.end_position.offset == self.end
        assert self.log.log_start_offset == self.start
        assert self.log.recovery_point <= self.log.flushed_offset <= self.log.log_end_offset
        content = b""
        for segment in self.log.segments:
            with open(segment.path, "rb") as file:
                content += file.read()
        assert content == b"".join(self.batches)

    @invariant()
    def finds_every_batch(self) -> None:
        for batch in self.batches[-12:]:
            header = read_header(batch)
            if header.last_offset >= self.start:
                offset = max(self.start, header.last_offset)
                span = self.log.read(offset, 1, self.log.end_position, at_least_one=True, wait=True)
                assert span is not None
                assert bytes_of(span) == batch

    @invariant()
    def knows_the_epochs(self) -> None:
        for batch in self.batches[-12:]:
            header = read_header(batch)
            if header.base_offset >= self.start:
                assert self.log.leader_epochs.epoch_for(header.base_offset) == header.partition_leader_epoch


TestLogAgainstAListOfBatches = LogAgainstAListOfBatches.TestCase
TestLogAgainstAListOfBatches.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
