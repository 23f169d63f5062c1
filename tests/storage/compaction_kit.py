"""Compacted logs on real files: batches with keys, rounds of cleaning run step by step, and what must hold then."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence

from tests.storage.kit import NOW_MS, config, flush, headers

from penstock.protocol.batch import BatchHeader, Codec, split
from penstock.protocol.records import Record, build_batch
from penstock.storage.cleaning_state import EVERYWHERE
from penstock.storage.compaction import CleanerLimits, Cleaning, Work, plan_cleaning
from penstock.storage.index import IndexEntry, OffsetIndex, TimeIndex
from penstock.storage.log import Log
from penstock.storage.segment import Segment

# Thousands of flushes that are about something else than the disk.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
DAY_MS = 24 * 3_600_000
COMPACTED = config(is_compacted=True, is_deleted_by_retention=False, min_cleanable_dirty_ratio=0.0, segment_bytes=2_000)


def keyed_batch(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamp: int = NOW_MS,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """One record per (key, value), a millisecond apart; `producer` is (producer_id, producer_epoch, base_sequence)."""
    records = [Record(key, value, (("h", b"x"),), timestamp + at) for at, (key, value) in enumerate(pairs)]
    producer_id, producer_epoch, base_sequence = producer
    return build_batch(
        records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


def start_cleaning(
    log: Log,
    *,
    now_ms: int = NOW_MS,
    limits: CleanerLimits | None = None,
    upper_offset: int | None = None,
    removable_end: int = EVERYWHERE,
) -> Cleaning | None:
    flush(log)
    plan = plan_cleaning(log, log.log_end_offset if upper_offset is None else upper_offset, now_ms)
    if plan is None:
        return None
    return Cleaning(
        log,
        plan,
        limits or CleanerLimits(io_buffer_bytes=8192),
        now_ms,
        lambda size, is_wanted: is_wanted(),
        removable_end,
    )


def drive(steps: Generator[Work, None, None]) -> None:
    """As the cleaner does, but in place: what a step raises is raised where it was yielded."""
    work = next(steps, None)
    while work is not None:
        try:
            work()
        except BaseException as error:
            work = steps.throw(error)
        else:
            work = next(steps, None)


def clean(
    log: Log,
    *,
    now_ms: int = NOW_MS,
    limits: CleanerLimits | None = None,
    upper_offset: int | None = None,
    removable_end: int = EVERYWHERE,
) -> Cleaning | None:
    """One round, with what blocks done in place. None: there was nothing to clean."""
    cleaning = start_cleaning(log, now_ms=now_ms, limits=limits, upper_offset=upper_offset, removable_end=removable_end)
    if cleaning is not None:
        drive(cleaning.steps())
        for retired in cleaning.retired:
            retired.remove()
    return cleaning


def check_indexes(log: Log) -> None:
    """Every entry of every closed segment names a batch, and is right about it."""
    for segment in log.segments[:-1]:
        with open(segment.path, "rb") as file:
            content = file.read()
        assert len(content) == segment.size
        batches = dict(split(content))
        assert sum(header.size for header in batches.values()) == segment.size
        check_segment_indexes(segment, batches)


def check_segment_indexes(segment: Segment, batches: dict[int, BatchHeader]) -> None:
    by_last_offset = {header.last_offset: header for header in batches.values()}
    with open(segment.offset_index.path, "rb") as file:
        offsets = file.read()
    assert OffsetIndex.is_sane(offsets, max(1, segment.size))
    assert len(offsets) == 8 * segment.offset_index.count or not segment.indexes_are_checked
    for at in range(0, len(offsets), 8):
        entry = IndexEntry(
            segment.base_offset + int.from_bytes(offsets[at : at + 4], "big"),
            int.from_bytes(offsets[at + 4 : at + 8], "big"),
        )
        assert batches[entry.position].last_offset == entry.last_offset
    with open(segment.time_index.path, "rb") as file:
        times = file.read()
    assert TimeIndex.is_sane(times)
    for at in range(0, len(times), 12):
        timestamp = int.from_bytes(times[at : at + 8], "big", signed=True)
        offset = segment.base_offset + int.from_bytes(times[at + 8 : at + 12], "big")
        assert by_last_offset[offset].max_timestamp == timestamp
    largest = max((header.max_timestamp for header in batches.values()), default=-1)
    assert (int.from_bytes(times[-12:-4], "big", signed=True) if times else -1) == largest


def producer_windows(log: Log) -> dict[int, tuple[int, tuple[tuple[int, int, int, int], ...]]]:
    """What decides about a repeated batch."""
    return {
        producer_id: (entry.producer_epoch, tuple(batch[:4] for batch in entry.batches))
        for producer_id, entry in log.producers.entries.items()
    }


def check_offsets(log: Log) -> None:
    """Batches follow each other, and segments hold what their names say."""
    previous = -1
    for header in headers(log):
        assert header.base_offset > previous
        previous = header.last_offset
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(set(bases))
