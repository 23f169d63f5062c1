"""Compaction of one log, as a series of steps for whoever has a loop and a thread.

`Cleaning.steps` yields what blocks; the caller runs that in a thread and comes back. What is between two yields belongs
to the loop: taking a look at the log, and putting a new segment in the place of old ones. What must stay true:
- The map is made from the dirty part and ends at a batch boundary, `clean_end`. Records behind it are not touched.
- Segments are replaced from the first to the last. So whenever this stops, an old value is gone before the tombstone
  that deleted it, and a batch before the marker of its transaction.
- Records of aborted transactions replace nothing: they are not in the map.
- Whoever changes the log meanwhile (retention, truncation, deletion, another policy) wins, and the rest is given up.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from penstock.protocol.batch import BatchHeader, CorruptBatch, read_header
from penstock.protocol.compression import MAX_DECOMPRESSED_BYTES
from penstock.protocol.records import InvalidRecords
from penstock.protocol.records.compaction import SLOT_BYTES, OffsetMap, Stop, add_batches, add_records
from penstock.storage import compaction_plan
from penstock.storage.aborted import aborted_between, check_txn_index
from penstock.storage.cleaning_state import EVERYWHERE
from penstock.storage.compaction_plan import CleaningPlan, CleaningRule, SegmentFacts
from penstock.storage.compaction_rewrite import GroupRewriter
from penstock.storage.compaction_transactions import CleanedTransactions
from penstock.storage.log import Log
from penstock.storage.producers import ProducerEntry
from penstock.storage.segment import Segment
from penstock.storage.segment_source import SegmentSource, new_buffer
from penstock.storage.segment_swap import RetiredFiles, Swap

_HASH_KEY_BYTES = 16
_MAX_RECORDS = MAX_DECOMPRESSED_BYTES // 7

Work = Callable[[], None]
# How many bytes, and whether the work is still wanted; whether it is to go on.
Pause = Callable[[int, Callable[[], bool]], bool]


class CleaningAborted(Exception):
    """The log changed, or whoever runs this wants it to stop. Nothing is wrong."""


@dataclass(frozen=True, slots=True)
class CleanerLimits:
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024


@dataclass(slots=True)
class CleaningStats:
    """`bytes_read` counts both passes."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0


def plan_cleaning(log: Log, upper_offset: int, now_ms: int) -> CleaningPlan | None:
    """Blocking, thread-safe. `upper_offset`: nothing at or above it is touched. None when nothing is dirty.

    Only what a recovery would not read again is taken: its files and producer snapshots are on disk.
    """
    segments, start = log.segments, log.log_start_offset
    cleaned = log.cleaning.cleaned_offset
    if len(segments) < 2:
        return None
    config = log.config
    try:
        return compaction_plan.plan(
            _facts(segments),
            CleaningRule(config.min_cleanable_dirty_ratio, config.min_compaction_lag_ms, config.max_compaction_lag_ms),
            first_dirty_offset=max(cleaned, start) if cleaned <= log.log_end_offset else start,
            upper_offset=min(upper_offset, log.recovery_point),
            largest_timestamp=lambda at: segments[at].largest_timestamp().timestamp,
            first_timestamp=lambda at: _first_timestamp(segments[at]),
            now_ms=now_ms,
        )
    except FileNotFoundError:
        return None  # retention was quicker


def _facts(segments: Sequence[Segment]) -> list[SegmentFacts]:
    """Of all but the last, which is the active one."""
    return [
        SegmentFacts(
            segment.base_offset,
            following.base_offset,
            segment.size,
            8 * segment.offset_index.count,
            12 * segment.time_index.count,
        )
        for segment, following in pairwise(segments)
    ]


def _first_timestamp(segment: Segment) -> int:
    first = next(segment.walk(0, segment.size, wait=True), None)
    return first.header.max_timestamp if first is not None else -1


class Cleaning:
    """One round over one log. `pause` is told of every read and write: it may wait, and says whether to go on."""

    def __init__(
        self,
        log: Log,
        plan: CleaningPlan,
        limits: CleanerLimits,
        now_ms: int,
        pause: Pause,
        removable_end: int = EVERYWHERE,
    ) -> None:
        """Tombstones and markers stay from `removable_end` on, whatever their age (trap D4)."""
        self.stats = CleaningStats()
        # Files that nobody needs any more once file.delete.delay.ms is over.
        self.retired: list[RetiredFiles] = []
        self.clean_end = plan.first_dirty_offset
        self._log = log
        self._plan = plan
        self._limits = limits
        self._now_ms = now_ms
        self._pause = pause
        self._removable_end = removable_end
        # Markers of what is cleaned may be in segments behind it.
        self._all_segments = log.segments
        self._segments = log.segments[: plan.segments]
        self._generation = log.generation
        self._kept_offsets = array("q")
        self._transactions = CleanedTransactions((), {})
        self._map: OffsetMap | None = None
        self._buffer = new_buffer(limits.io_buffer_bytes // 2)
        self._out = new_buffer(limits.io_buffer_bytes // 2)

    def steps(self) -> Generator[Work, None, None]:
        """Raises CleaningAborted, CorruptSegment, OSError, or whatever the work raised."""
        if not self._segments:
            raise CleaningAborted
        yield partial(self._look, dict(self._log.producers.entries))
        for places in self._groups():
            if not self._is_wanted():
                raise CleaningAborted
            yield from self._replace(self._segments[places.start : places.stop])
        self._map = None
        state = self._log.cleaning
        state.cleaned_offset = max(state.cleaned_offset, self.clean_end)

    def _is_wanted(self) -> bool:
        log = self._log
        is_here = not log.is_deleted and not log.is_being_cut and log.generation == self._generation
        return is_here and log.config.is_compacted

    def _paused(self, size: int) -> None:
        """In the thread."""
        if not self._pause(size, self._is_wanted):
            raise CleaningAborted

    # The first pass

    def _look(self, producers: Mapping[int, ProducerEntry]) -> None:
        self._kept_offsets = self._offsets_to_keep(producers)
        try:
            for at, segment in enumerate(self._segments):
                # After this nobody rebuilds them by name: the name may soon be another segment's.
                segment.largest_timestamp()
                check_txn_index(self._all_segments, at)
            first_offset = self._segments[0].base_offset
            aborted = aborted_between(self._all_segments, first_offset, self._plan.end_offset)
            self._transactions = CleanedTransactions(aborted, producers)
            self._fill_map()
        except FileNotFoundError:
            raise CleaningAborted from None  # retention was quicker

    def _offsets_to_keep(self, producers: Mapping[int, ProducerEntry]) -> array[int]:
        """Last offsets of batches that stay, empty if need be: those that a producer may repeat, and the round's last.

        A producer's state must come out the same when it is rebuilt from the log (trap D5); Kafka keeps only the last
        batch of each, since it remembers only that across restarts.
        """
        end = self._plan.end_offset
        offsets = {
            batch.last_offset for entry in producers.values() for batch in entry.batches if batch.last_offset < end
        }
        offsets.add(end - 1)
        return array("q", sorted(offsets))

    def _fill_map(self) -> None:
        """The map, and with it how far this round goes."""
        first_dirty = self._plan.first_dirty_offset
        dirty = [at for at, segment in enumerate(self._segments) if self._end_of(at) > first_dirty]
        for at in dirty:
            segment = self._segments[at]
            located = segment.locate(first_dirty, segment.size, wait=True)
            if located is not None:
                if self._map is None:
                    self._map = self._new_map(located.header)
                full_at = self._add_segment(self._map, segment, located.position)
                if full_at is not None:
                    self.clean_end = full_at
                    # The round ends there: what is behind it stays anyway, so the log's end is safe.
                    return
            self.clean_end = self._end_of(at)

    def _end_of(self, at: int) -> int:
        return self._segments[at + 1].base_offset if at + 1 < len(self._segments) else self._plan.end_offset

    def _new_map(self, first: BatchHeader) -> OffsetMap:
        """No larger than allowed, or than what there is to note; large enough for the first batch, to get anywhere."""
        load = min(max(self._limits.load_factor, 0.01), 0.99)
        records = self._plan.end_offset - self._plan.first_dirty_offset
        slots = min(self._limits.dedupe_buffer_bytes // SLOT_BYTES, math.ceil(records / load) + 1)
        at_least = min(max(first.records_count, 1), _MAX_RECORDS)
        limit = max(int(slots * load), at_least)
        return OffsetMap(max(slots, limit + 1), limit, os.urandom(_HASH_KEY_BYTES))

    def _add_segment(self, offset_map: OffsetMap, segment: Segment, position: int) -> int | None:
        """The base offset of the batch that was too much for the map, None when all of them are in it."""
        first_dirty = self._plan.first_dirty_offset
        source = SegmentSource(segment, position, self._buffer)
        while source.fill():
            self.stats.bytes_read += source.end
            self._paused(source.end)
            at = 0
            while True:
                try:
                    at, stop = add_batches(offset_map, source.view, at, source.end, first_dirty)
                except CorruptBatch as corrupt:
                    raise source.corrupt(corrupt.position, corrupt.reason) from None
                if stop == Stop.CUT:
                    break
                header = read_header(source.view, at)
                is_passed_over = stop == Stop.TRANSACTIONAL and (
                    header.is_control or self._transactions.is_aborted(header)
                )
                if stop == Stop.MAP_FULL or not (is_passed_over or self._add_opened(offset_map, source, at, header)):
                    return header.base_offset
                at += header.size
            source.advance(at)
        self._buffer = source.buffer
        return None

    def _add_opened(self, offset_map: OffsetMap, source: SegmentSource, at: int, header: BatchHeader) -> bool:
        section = source.opened(at, header)
        try:
            return add_records(offset_map, section, header, self._plan.first_dirty_offset)
        except InvalidRecords as invalid:
            raise source.corrupt(at, str(invalid)) from None

    # The second pass

    def _groups(self) -> list[range]:
        if self._map is None:
            return []
        config = self._log.config
        count = sum(segment.base_offset < self.clean_end for segment in self._segments)
        facts = _facts(self._segments)
        facts.append(SegmentFacts(self._segments[-1].base_offset, self._plan.end_offset, self._segments[-1].size))
        return compaction_plan.groups(facts[:count], config.segment_bytes, config.segment_index_bytes)

    def _replace(self, old: tuple[Segment, ...]) -> Generator[Work, None, None]:
        assert self._map is not None
        log = self._log
        rewriter = GroupRewriter(
            log.directory, log.config, old, self._map, self.clean_end, self._kept_offsets, self._removable_end,
            self._transactions,
            self._now_ms, self._buffer, self._out, self._paused, self.stats,
        )  # fmt: skip
        try:
            yield rewriter.run
        except FileNotFoundError:
            if any(segment not in log.segments for segment in old):
                raise CleaningAborted from None  # retention was quicker
            raise
        swap = Swap(log.directory, old, rewriter.new)
        if not log.begin_swap(old, self._generation):
            yield swap.undo
            raise CleaningAborted
        try:
            yield swap.commit
        except BaseException:
            self._undo(swap)
            raise
        log.swap(old, rewriter.new)
        try:
            yield swap.finish
        except OSError as error:
            log.fail(f"a swap of segments could not be finished: {error}")  # a start finishes it
            log.end_swap()
            raise
        rewriter.new.unpin()
        log.end_swap()
        self.retired.append(swap.retired())

    def _undo(self, swap: Swap) -> None:
        try:
            swap.undo()
        except OSError as error:
            # A start might complete what this log does not know of.
            self._log.fail(f"a swap of segments could not be undone: {error}")
        self._log.end_swap()
