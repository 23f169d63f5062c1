"""Producer state from the newest snapshot and the batches behind it, and the transactions that they end. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.protocol.batch import BatchHeader, ReadableBuffer
from penstock.protocol.control import EndMarker, read_end_marker
from penstock.storage import producer_snapshot
from penstock.storage.log_file import ReadAhead, remove_if_there
from penstock.storage.producers import ProducerEntry, Producers
from penstock.storage.reader import segment_at
from penstock.storage.segment import CorruptSegment, LocatedBatch, Segment
from penstock.storage.txn_index import TxnIndexEntry, entry_of


def load_snapshot(
    directory: str, offsets: Sequence[int], at_most: int, now_ms: int
) -> tuple[dict[int, ProducerEntry], int]:
    """The newest snapshot at or below `at_most` that can be read, and its offset; 0 where there is none."""
    for offset in reversed(offsets):
        if offset <= at_most:
            try:
                return producer_snapshot.read(directory, offset, now_ms), offset
            except producer_snapshot.BadSnapshot:
                remove_if_there(producer_snapshot.snapshot_path(directory, offset))
    return {}, 0


def rebuild_producers(
    directory: str, segments: Sequence[Segment], snapshot_offsets: Sequence[int], end_offset: int, now_ms: int
) -> tuple[Producers, list[int]]:
    """The state below `end_offset`, and the snapshots that remain: those beyond it are of another history."""
    for offset in snapshot_offsets:
        if offset > end_offset:
            remove_if_there(producer_snapshot.snapshot_path(directory, offset))
    kept = [offset for offset in snapshot_offsets if offset <= end_offset]
    entries, from_offset = load_snapshot(directory, kept, end_offset, now_ms)
    producers = Producers(entries)
    if from_offset < end_offset:
        for file, batch in batches_between(segments, from_offset, end_offset):
            replay_batch(producers, file, batch, now_ms)
    return producers, [offset for offset in kept if offset <= from_offset]


def replay_batch(producers: Producers, file: ReadAhead, batch: LocatedBatch, now_ms: int) -> TxnIndexEntry | None:
    """What the batch adds to the transaction index of its segment, whose file it is read from."""
    position, header = batch
    if not header.is_control:
        producers.replay(header, now_ms)
        return None
    return replay_control(producers, header, file.read(header.size, position), 0, now_ms)


def replay_control(
    producers: Producers, header: BatchHeader, content: ReadableBuffer, position: int, now_ms: int
) -> TxnIndexEntry | None:
    """The same for the control batch at `position`."""
    marker = _marker_at(header, content, position)
    ended = producers.replay_marker(marker, header.base_offset, now_ms) if marker is not None else None
    return entry_of(ended) if ended is not None and not ended.is_commit else None


def _marker_at(header: BatchHeader, content: ReadableBuffer, position: int) -> EndMarker | None:
    try:
        return read_end_marker(content, position) if header.producer_id >= 0 else None
    except ValueError:
        return None  # a control record of a kind that we do not know: it ends nothing


def batches_between(
    segments: Sequence[Segment], start_offset: int, end_offset: int
) -> Iterator[tuple[ReadAhead, LocatedBatch]]:
    """The batches in this range, and their files. Where a segment is damaged, the rest of it is passed over."""
    for segment in segments[max(0, segment_at(segments, start_offset)) :]:
        if segment.base_offset >= end_offset:
            return
        try:
            first = segment.locate(start_offset, segment.size, wait=True)
            if first is None:
                continue
            file = ReadAhead(segment.file())
            for batch in segment.walk(first.position, segment.size, wait=True, file=file):
                if batch.header.base_offset >= end_offset:
                    return
                yield file, batch
        except CorruptSegment:
            continue
