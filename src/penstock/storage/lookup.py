"""Timestamps to offsets, exact to the record: what ListOffsets asks for.

The time index tells where to begin, the headers which batch it is, the records which record. An entry of the time
index is believed only after a look at the batch it names. Everything here blocks and runs in threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.core.errors import BrokerError
from penstock.protocol.batch import BatchHeader
from penstock.protocol.records import SPAN_FIELDS, InvalidRecords, find_timestamp, records_of, spans
from penstock.storage.index import TimeEntry
from penstock.storage.log_file import LogPosition
from penstock.storage.reader import readable_end, segment_at
from penstock.storage.segment import LocatedBatch, Segment


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int, upper: LogPosition
) -> TimestampAndOffset | None:
    """The first record from the log start on, and below `upper`, with a timestamp of at least `timestamp`."""
    for segment in segments[max(0, segment_at(segments, log_start_offset)) :]:
        if segment.base_offset > upper.segment_base_offset:
            return None
        end = readable_end(segment, upper)
        if segment.largest_timestamp().timestamp < timestamp:
            continue
        start = _start_for(segment, timestamp, end)
        for position, header in segment.walk(start, end, wait=True):
            if header.max_timestamp >= timestamp and header.last_offset >= log_start_offset:
                found = _within(segment, position, header, timestamp, log_start_offset)
                if found is not None:
                    return found
    return None


def largest(segments: Sequence[Segment], log_start_offset: int, upper: LogPosition) -> TimestampAndOffset | None:
    """The first record from the log start on, and below `upper`, with the largest timestamp of all."""
    found: TimestampAndOffset | None = None
    best: tuple[Segment, LocatedBatch] | None = None
    for segment in segments[max(0, segment_at(segments, log_start_offset)) :]:
        if segment.base_offset > upper.segment_base_offset:
            break
        end = readable_end(segment, upper)
        start = 0
        if log_start_offset > segment.base_offset:
            start, found = _at_log_start(segment, end, log_start_offset)
        batch = _largest_of(segment, start, end, upper.offset)
        if batch is not None and (best is None or batch.header.max_timestamp > best[1].header.max_timestamp):
            best = segment, batch
    if best is None:
        return found
    segment, (position, header) = best
    if found is not None and found.timestamp >= header.max_timestamp:
        return found
    return _within(segment, position, header, header.max_timestamp, log_start_offset)


def _at_log_start(segment: Segment, end: int, log_start_offset: int) -> tuple[int, TimestampAndOffset | None]:
    """Where the batches begin that lie wholly behind the log start, and the largest of one that lies there in part."""
    first = segment.locate(log_start_offset, end, wait=True)
    if first is None:
        return end, None
    position, header = first
    if header.base_offset >= log_start_offset:
        return position, None
    visible = _records_from(segment, position, header, log_start_offset)
    best = max(visible, key=lambda each: (each.timestamp, -each.offset), default=None)
    return position + header.size, best if best is not None and best.timestamp >= 0 else None


def _start_for(segment: Segment, timestamp: int, end: int) -> int:
    """A position before which no batch holds `timestamp` or a later one."""
    entry = segment.time_index.lookup(timestamp)
    batch = _named_by(segment, entry, end) if entry is not None else None
    return batch.position if batch is not None else 0


def _named_by(segment: Segment, entry: TimeEntry, end: int) -> LocatedBatch | None:
    batch = segment.locate(entry.offset, end, wait=True)
    if batch is None or batch.header.last_offset != entry.offset or batch.header.max_timestamp != entry.timestamp:
        return None
    return batch


def _largest_of(segment: Segment, start: int, end: int, upper_offset: int) -> LocatedBatch | None:
    """The first batch from `start` on, and below `end`, with the largest timestamp; None if no batch has any."""
    if start == 0:
        entry = segment.largest_timestamp()
        if entry.timestamp < 0:
            return None
        if entry.offset < upper_offset:
            named = _named_by(segment, entry, end)
            if named is not None and named.header.records_count:
                return named
        slot = segment.time_index.entries_below(upper_offset) - 1
        named = _named_by(segment, segment.time_index.entry(slot), end) if slot >= 0 else None
        # A batch that compaction emptied still says its timestamp, but there is nothing to find in it.
        start = named.position if named is not None and named.header.records_count else 0
    best: LocatedBatch | None = None
    for batch in segment.walk(start, end, wait=True):
        is_larger = batch.header.max_timestamp > (best.header.max_timestamp if best is not None else -1)
        if is_larger and batch.header.records_count:
            best = batch
    return best


def _within(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, min_offset: int
) -> TimestampAndOffset | None:
    """The first record of the batch at or after `timestamp`, and at or after `min_offset`."""
    is_compacted = header.records_count <= header.last_offset_delta
    if header.base_offset < min_offset or (is_compacted and header.is_log_append_time):
        visible = _records_from(segment, position, header, min_offset)
        return next((each for each in visible if each.timestamp >= timestamp), None)
    epoch = header.partition_leader_epoch
    if header.is_log_append_time:
        return TimestampAndOffset(header.max_timestamp, header.base_offset, epoch)
    content = segment.file().read(header.size, position)
    try:
        records = records_of(content, 0, header)
        found = find_timestamp(records, header.records_count, header.base_offset, header.base_timestamp, timestamp)
    except (BrokerError, InvalidRecords):
        # A batch that was passed through and that we cannot open: its start skips no record.
        return TimestampAndOffset(header.max_timestamp, header.base_offset, epoch)
    return TimestampAndOffset(found[1], found[0], epoch) if found is not None else None


def _records_from(
    segment: Segment, position: int, header: BatchHeader, min_offset: int
) -> Iterator[TimestampAndOffset]:
    """The records from `min_offset` on of the one batch that the log start lies in."""
    epoch = header.partition_leader_epoch
    content = segment.file().read(header.size, position)
    try:
        rows = spans(records_of(content, 0, header), header.records_count)
    except (BrokerError, InvalidRecords):
        yield TimestampAndOffset(header.max_timestamp, min_offset, epoch)
        return
    for row in range(0, len(rows), SPAN_FIELDS):
        offset, timestamp = header.base_offset + rows[row], header.base_timestamp + rows[row + 1]
        if offset >= min_offset:
            yield TimestampAndOffset(header.max_timestamp if header.is_log_append_time else timestamp, offset, epoch)
