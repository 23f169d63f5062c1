"""Which aborted transactions overlap a range of offsets: what a reader of committed records is told.

A transaction's entry is in the segment that holds its marker, which may come long after its records. So the search goes
on from the segment of the first offset until an entry says that what ends later also begins later. Nearly always that
is a page or two: without `wait` it is done on the loop, and ColdRead says that it is for a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.storage.index import BadIndex
from penstock.storage.log_file import ColdRead, FileSpan, LogPosition, ReadAhead
from penstock.storage.producers import Producers
from penstock.storage.reader import segment_at
from penstock.storage.replay import replay_batch
from penstock.storage.segment import Segment
from penstock.storage.txn_index import TxnIndexEntry

# How far the loop looks.
_MAX_SEGMENTS = 16


def aborted_between(
    segments: Sequence[Segment], from_offset: int, upper_offset: int, *, wait: bool = True
) -> Iterator[TxnIndexEntry]:
    """Those that overlap [from_offset, upper_offset), by their markers."""
    first = max(0, segment_at(segments, from_offset))
    for at in range(first, len(segments)):
        if not wait and (at == first + _MAX_SEGMENTS or not segments[at].txn_index.is_checked):
            raise ColdRead
        check_txn_index(segments, at)
        for entry in segments[at].txn_index.entries_from(from_offset, wait=wait):
            if entry.first_offset < upper_offset:
                yield entry
            if entry.last_stable_offset >= upper_offset:
                return


def no_abort_behind(segments: Sequence[Segment], end_offset: int) -> int:
    """An offset behind which no aborted transaction ends; -1 when there is none at all. Touches no file."""
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    found = [end - 1 for segment, end in zip(segments, ends, strict=True) if segment.txn_index.may_have_entries]
    return max(found, default=-1)


def check_txn_index(segments: Sequence[Segment], at: int) -> None:
    """Before the first use of an index that was found: it is rebuilt if it makes no sense."""
    segment = segments[at]
    if segment.txn_index.is_checked:
        return
    with segment.checking():
        if not segment.txn_index.is_checked:
            # The active segment's was checked when the log was opened.
            try:
                segment.txn_index.check(segments[at + 1].base_offset)
            except BadIndex:
                _rebuild(segments, at)


def _rebuild(segments: Sequence[Segment], at: int) -> None:
    """From the batches of this segment and all before it. What began in segments that are gone begins, for readers,
    with the first of its batches that is left.
    """
    producers = Producers()
    entries: list[TxnIndexEntry] = []
    for segment in segments[: at + 1]:
        file = ReadAhead(segment.file())
        batches = segment.walk(0, segment.size, wait=True, file=file)
        replayed = [replay_batch(producers, file, each, 0) for each in batches]
        entries = [entry for entry in replayed if entry is not None]
    segments[at].txn_index.replace(entries)


def upper_offset_of(
    segments: Sequence[Segment], span: FileSpan, offset: int, upper: LogPosition, *, wait: bool = True
) -> int:
    """Above all offsets in the span, which was read from `offset` on, but less than an index interval behind them."""
    for at in range(max(0, segment_at(segments, offset)), len(segments)):
        segment = segments[at]
        if segment.path == span.file.path:
            end = span.position + span.length
            segment.check_indexes(wait=wait)
            behind = segment.offset_index.entries_below(end)
            if behind < segment.offset_index.count:
                return min(upper.offset, segment.offset_index.entry(behind).last_offset)
            return min(upper.offset, segments[at + 1].base_offset) if at + 1 < len(segments) else upper.offset
    return upper.offset
