"""Compaction's second pass: some old segments become one new one, beside the log. Blocks.

Of aborted transactions nothing stays but what a producer's window needs; their markers, and those of committed ones,
go when `compaction_transactions` says that nothing of the transaction is left and their delete horizon has passed. The
horizon is written down when the first of the two is found to be so, as for tombstones.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.protocol.batch import (
    DELETE_HORIZON_BIT,
    BatchHeader,
    CorruptBatch,
    ReadableBuffer,
    assemble,
    crc_is_valid,
    read_header,
)
from penstock.protocol.compression import compress
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import InvalidRecords
from penstock.protocol.records.compaction import (
    GROWTH_BYTES,
    OffsetMap,
    Rewriter,
    Stop,
    with_delete_horizon,
    with_records,
    without_records,
)
from penstock.storage.compaction_transactions import CleanedTransactions
from penstock.storage.log_config import LogConfig
from penstock.storage.segment import Segment
from penstock.storage.segment_source import Buffer, SegmentSource, new_buffer
from penstock.storage.segment_swap import SegmentWriter
from penstock.storage.txn_index import TxnIndexEntry

if TYPE_CHECKING:
    from penstock.storage.compaction import CleaningStats

_MAX_SEGMENT_BYTES = 2**31 - 1
_MAX_TIMESTAMP = 2**63 - 1


class GroupRewriter:
    """`new` is there when `run` has returned."""

    new: Segment

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        old: Sequence[Segment],
        offset_map: OffsetMap,
        clean_end: int,
        kept_offsets: array[int],
        removable_end: int,
        transactions: CleanedTransactions,
        now_ms: int,
        buffer: Buffer,
        out: Buffer,
        pause: Callable[[int], None],
        stats: CleaningStats,
    ) -> None:
        self._directory = directory
        self._config = config
        self._old = old
        self._transactions = transactions
        self._removable_end = removable_end
        # By the offsets of their markers: the new segment's transaction index.
        self._aborted: dict[int, TxnIndexEntry] = {}
        self._now_ms = now_ms
        self._buffer = buffer
        self._out = memoryview(out)
        self._out_at = 0
        self._pause = pause
        self._stats = stats
        self._rewriter = Rewriter(
            offset_map,
            old[0].base_offset,
            config.index_interval_bytes,
            clean_end,
            now_ms,
            config.delete_retention_ms,
            kept_offsets,
            removable_end,
        )

    def run(self) -> None:
        writer = SegmentWriter(self._directory, self._old[0].base_offset)
        try:
            for segment in self._old:
                self._aborted |= {entry.last_offset: entry for entry in segment.txn_index.entries_from(0)}
                self._copy(segment, writer)
            self._flush(writer)
            self.new = writer.finish(
                self._rewriter, list(self._aborted.values()), self._config, self._old[-1], self._now_ms
            )
        except BaseException:
            writer.discard()
            raise
        self._stats.records_read += self._rewriter.records_read
        self._stats.records_kept += self._rewriter.records_kept

    def _copy(self, segment: Segment, writer: SegmentWriter) -> None:
        source = SegmentSource(segment, 0, self._buffer)
        while source.fill():
            self._stats.bytes_read += source.end
            self._pause(source.end)
            at = 0
            while True:
                try:
                    at, self._out_at, stop = self._rewriter.rewrite(
                        source.view, at, source.end, self._out, self._out_at
                    )
                except CorruptBatch as corrupt:
                    raise source.corrupt(corrupt.position, corrupt.reason) from None
                if stop == Stop.CUT:
                    break
                header = read_header(source.view, at)
                if stop == Stop.NO_ROOM:
                    self._make_room(header.size + GROWTH_BYTES * header.records_count, writer)
                    continue
                self._put(self._cleaned(source, at, header), writer)
                at += header.size
            source.advance(at)
        self._buffer = source.buffer

    def _cleaned(self, source: SegmentSource, at: int, header: BatchHeader) -> ReadableBuffer:
        """What a batch becomes that the kernel left to us; nothing when it goes."""
        if header.is_control:
            return self._marker(source, at, header)
        if header.is_transactional:
            self._transactions.passed_batch(header)
            if self._transactions.is_aborted(header):
                self._check_crc(source, at, header)
                self._stats.records_read += header.records_count
                return without_records(header) if self._rewriter.keeps_empty(header) else b""
        return self._filtered(source, at, header)

    def _filtered(self, source: SegmentSource, at: int, header: BatchHeader) -> ReadableBuffer:
        section = source.opened(at, header)
        try:
            filtered = self._rewriter.filter_records(section, header)
        except InvalidRecords as invalid:
            raise source.corrupt(at, str(invalid)) from None
        if filtered is None:
            return source.view[at : at + header.size]
        if not filtered.records_count:
            return without_records(header) if self._rewriter.keeps_empty(header) else b""
        content = compress(header.codec, filtered.section)
        return assemble(with_records(header, filtered, len(content)), content)

    def _marker(self, source: SegmentSource, at: int, header: BatchHeader) -> ReadableBuffer:
        self._check_crc(source, at, header)
        batch = source.view[at : at + header.size]
        try:
            is_end = header.records_count == 0 or read_end_marker(batch) is not None
        except ValueError:
            is_end = False
        if not is_end or self._transactions.passed_marker(header):
            return batch
        self._aborted.pop(header.base_offset, None)
        if header.records_count and not header.attributes & DELETE_HORIZON_BIT:
            horizon_ms = min(self._now_ms + self._config.delete_retention_ms, _MAX_TIMESTAMP)
            return with_delete_horizon(batch, header, horizon_ms)
        is_due = header.records_count == 0 or (
            self._now_ms >= header.base_timestamp and header.last_offset < self._removable_end
        )
        is_needed = self._rewriter.keeps_empty(header) or self._transactions.is_last_word(header)
        return b"" if is_due and not is_needed else batch

    def _check_crc(self, source: SegmentSource, at: int, header: BatchHeader) -> None:
        if not crc_is_valid(source.view, at, header):
            raise source.corrupt(at, "the CRC-32C is wrong")

    def _put(self, batch: ReadableBuffer, writer: SegmentWriter) -> None:
        size = len(batch)
        if size:
            self._make_room(size, writer)
            self._out[self._out_at : self._out_at + size] = batch
            self._out_at += size
            self._rewriter.placed(read_header(batch))

    def _make_room(self, size: int, writer: SegmentWriter) -> None:
        if len(self._out) - self._out_at < size:
            self._flush(writer)
        if len(self._out) < size:
            self._out = memoryview(new_buffer(size))

    def _flush(self, writer: SegmentWriter) -> None:
        if self._out_at:
            if writer.size + self._out_at > _MAX_SEGMENT_BYTES:
                raise OverflowError(f"the new segment at {self._old[0].base_offset} would be larger than 2 GiB")
            writer.write(self._out[: self._out_at])
            self._stats.bytes_written += self._out_at
            self._pause(self._out_at)
            self._out_at = 0
