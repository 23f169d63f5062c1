"""Cutting the end of a log off, as a follower does that has what its leader has not; or all of it. Blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.storage import checkpoints, producer_snapshot
from penstock.storage.aborted import check_txn_index
from penstock.storage.index import TimeEntry
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import LogPosition, remove_if_there
from penstock.storage.producers import Producers
from penstock.storage.reader import segment_at
from penstock.storage.replay import rebuild_producers
from penstock.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class TruncatedLog:
    segments: tuple[Segment, ...]
    end_position: LogPosition
    producers: Producers
    snapshot_offsets: list[int]


def truncate(
    directory: str,
    config: LogConfig,
    segments: tuple[Segment, ...],
    snapshot_offsets: Sequence[int],
    offset: int,
    now_ms: int,
) -> TruncatedLog:
    """Everything from the batch that holds `offset` on goes; below the first segment an empty log remains."""
    kept = segments[: max(0, segment_at(segments, offset)) + 1]
    check_txn_index(segments, len(kept) - 1)
    for segment in reversed(segments[len(kept) :]):
        segment.remove()
    active = kept[-1]
    end_offset = offset
    if offset < active.base_offset:
        active.remove()
        active = Segment.create(directory, offset, config, now_ms)
        kept = (active,)
    else:
        batch = active.locate(offset, active.size, wait=True)
        if batch is not None:
            end_offset = min(offset, batch.header.base_offset)
            _cut(active, batch.position, batch.header.base_offset)
        else:
            # Compaction left nothing between `offset` and the next segment.
            _cut(active, active.size, offset)
    producers, snapshots = rebuild_producers(directory, kept, snapshot_offsets, end_offset, now_ms)
    return TruncatedLog(kept, LogPosition(end_offset, active.base_offset, active.size), producers, snapshots)


def start_anew(
    directory: str,
    config: LogConfig,
    segments: Sequence[Segment],
    snapshot_offsets: Sequence[int],
    base_offset: int,
    now_ms: int,
) -> TruncatedLog:
    """Nothing of the log remains, and an empty one begins at `base_offset`.

    The last segment goes first and the new one comes after the last is gone, durably: whenever this stops, a start
    finds a beginning of the old log, an empty log, or the new one, and never both.
    """
    with checkpoints.changed_directory(directory):
        for segment in reversed(segments):
            segment.remove()
    with checkpoints.changed_directory(directory):
        for offset in snapshot_offsets:
            remove_if_there(producer_snapshot.snapshot_path(directory, offset))
        remove_if_there(f"{directory}/{checkpoints.LEADER_EPOCHS}")
        active = Segment.create(directory, base_offset, config, now_ms)
    return TruncatedLog((active,), LogPosition(base_offset, base_offset, 0), Producers(), [])


def _cut(segment: Segment, position: int, offset: int) -> None:
    """The segment ends at `position`, before `offset`, and becomes the active one."""
    segment.close_files()
    segment.is_active = True
    segment.file().cut(position)
    segment.size = position
    segment.warm_from = min(segment.warm_from, position)
    segment.offset_index.cut(segment.offset_index.entries_below(position))
    time_entries = segment.time_index.entries_below(offset)
    last = segment.time_index.entry(time_entries - 1) if time_entries else TimeEntry(-1, segment.base_offset)
    segment.time_index.cut(time_entries)
    segment.time_index.last = last
    segment.txn_index.cut_after(offset)
    segment.bytes_since_index_entry = 0
    _find_timestamps(segment, last)


def _find_timestamps(segment: Segment, last: TimeEntry) -> None:
    """The largest timestamp of what remains, from the last time entry on, and the first batch's."""
    segment.max_timestamp, segment.offset_of_max_timestamp = last
    segment.rolling_timestamp = -1
    if segment.size == 0:
        return
    start = segment.locate(last.offset, segment.size, wait=True) if last.timestamp >= 0 else None
    for _, header in segment.walk(start.position if start is not None else 0, segment.size, wait=True):
        if header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp, segment.offset_of_max_timestamp = header.max_timestamp, header.last_offset
    segment.rolling_timestamp = next(segment.walk(0, segment.size, wait=True)).header.max_timestamp
