"""Reading a segment from front to end in chunks, for whoever takes whole batches out of them. Blocks."""

from __future__ import annotations

import mmap

from penstock.core.errors import BrokerError
from penstock.protocol.batch import HEADER_BYTES, BatchHeader, ReadableBuffer, crc_is_valid, read_header
from penstock.protocol.records import records_of
from penstock.storage.segment import CorruptSegment, Segment

Buffer = mmap.mmap


def new_buffer(size: int) -> Buffer:
    """Memory that the kernel clears page by page, on first use: a bytearray is cleared at once, under the GIL."""
    return mmap.mmap(-1, max(size, 1))


class SegmentSource:
    """`view[:end]` is what `fill` read; `advance` says how much of it was whole batches."""

    __slots__ = ("_file", "_position", "_segment", "buffer", "end", "view")

    def __init__(self, segment: Segment, position: int, buffer: Buffer) -> None:
        self._segment = segment
        # Held: the segment may be given up, and its name another file's, while this reads.
        self._file = segment.file()
        self._position = position
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.end = 0

    def fill(self) -> bool:
        """False at the end of the segment."""
        left = self._segment.size - self._position
        if left <= 0:
            return False
        self.end = self._file.read_into(self.view[:left], self._position)
        if self.end == 0:
            raise self.corrupt(0, "the file ends early")
        return True

    def advance(self, size: int) -> None:
        if size == 0:
            self._grow()
        self._position += size

    def _grow(self) -> None:
        """The next batch is larger than the buffer."""
        left = self._segment.size - self._position
        needed = read_header(self.view).size if self.end >= HEADER_BYTES else HEADER_BYTES
        if not self.end < needed <= left:
            raise self.corrupt(0, f"a batch of {needed} bytes, {left} are left")
        self.buffer = new_buffer(max(needed, len(self.buffer)))
        self.view = memoryview(self.buffer)

    def opened(self, at: int, header: BatchHeader) -> ReadableBuffer:
        """The records of the compressed batch at `at` of the view."""
        if not crc_is_valid(self.view, at, header):
            raise self.corrupt(at, "the CRC-32C is wrong")
        try:
            return records_of(self.view, at, header)
        except BrokerError as error:
            raise self.corrupt(at, str(error)) from None

    def corrupt(self, at: int, reason: str) -> CorruptSegment:
        return CorruptSegment(f"{self._segment.path} at {self._position + at}: {reason}")
