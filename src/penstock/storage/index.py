"""The sparse indexes of a segment: offset to position, and timestamp to offset, in Kafka's layouts.

`.index` entries are (last offset of a batch, relative to the segment, 4 bytes; position of that batch, 4 bytes),
`.timeindex` entries (largest timestamp so far, 8 bytes; last offset of the batch that has it, relative, 4 bytes).

What must stay true:
- An index only makes reading faster. It carries no checksum, so whoever uses an entry checks it against the log, and a
  file that is missing or makes no sense is rebuilt from the log.
- Files are memory-mapped. Space is allocated before it is mapped, so that a full disk is an OSError at `reserve` and
  never a SIGBUS at the store; a mapped file is only ever made shorter beyond the entries that a reader may look at.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import lt
from struct import Struct
from typing import NamedTuple

from penstock.storage.descriptors import DESCRIPTORS
from penstock.storage.finding import find_span
from penstock.storage.log_file import remove_if_there

MAX_RELATIVE_OFFSET = 2**31 - 1
_FIRST_ALLOCATION_BYTES = 4096

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


class BadIndex(Exception):
    """An index file that is missing or makes no sense."""


class IndexEntry(NamedTuple):
    """The batch whose last offset is `last_offset` starts at `position`."""

    last_offset: int
    position: int


class TimeEntry(NamedTuple):
    """No batch up to the one that ends with `offset` holds a timestamp above `timestamp`; that one holds it."""

    timestamp: int
    offset: int


class SparseIndex:
    """A file of fixed-size entries, of which the first `count` are valid; the rest is allocated space.

    Only the loop thread writes. Threads may read: they use a map they hold a reference to.
    """

    __slots__ = ("_map", "base_offset", "count", "is_pinned", "path", "referenced")

    _entry: Struct

    def __init__(self, path: str, base_offset: int, count: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = count
        self.referenced = False
        # While its file has another name, the map is all there is: it is not given up.
        self.is_pinned = False
        self._map: mmap.mmap | None = None

    @property
    def is_open(self) -> bool:
        return self._map is not None

    def evict(self) -> None:
        if not self.is_pinned:
            self._map = None

    def pin(self, path: str | None = None) -> None:
        """Blocking. Maps the file, now, and keeps the map; `path` is where it is for the moment."""
        self.is_pinned = True
        if self.count and (path is not None or self._map is None):
            fd = os.open(path or self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
            finally:
                os.close(fd)

    def unpin(self) -> None:
        self.is_pinned = False
        if self._map is not None:
            DESCRIPTORS.admit(self)

    def close(self) -> None:
        self._map = None

    def reserve(self, entries: int) -> mmap.mmap:
        """A map with room for that many more entries. OSError when the disk has no room; nothing changed then."""
        needed_bytes = (self.count + entries) * self._entry.size
        mapped = self._map
        if mapped is None or len(mapped) < needed_bytes:
            return self._allocate(needed_bytes)
        self.referenced = True
        return mapped

    def _allocate(self, needed_bytes: int) -> mmap.mmap:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            if size < needed_bytes:
                # Whole entries, as everything that reads a file of them expects, Kafka's tools included.
                first = _FIRST_ALLOCATION_BYTES - _FIRST_ALLOCATION_BYTES % self._entry.size
                size = max(needed_bytes, first, 2 * self.count * self._entry.size)
                os.posix_fallocate(fd, 0, size)
            return self._admit(mmap.mmap(fd, size))
        finally:
            os.close(fd)

    def _mapped(self) -> mmap.mmap:
        """The map for reading at least `count` entries, which must not be 0."""
        mapped = self._map
        if mapped is not None and len(mapped) >= self.count * self._entry.size:
            self.referenced = True
            return mapped
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._admit(mmap.mmap(fd, 0))
        finally:
            os.close(fd)

    def _admit(self, mapped: mmap.mmap) -> mmap.mmap:
        self._map = mapped
        DESCRIPTORS.admit(self)
        return mapped

    def trim(self) -> None:
        """The file becomes exactly its entries, as a closed segment has it, and is given up."""
        self._map = None
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, self.count * self._entry.size)
        finally:
            os.close(fd)

    def cut(self, count: int) -> None:
        """Keeps the first `count` entries, in a new file: a thread may be reading the old one through its map."""
        if count < self.count:
            kept = self._mapped()[: count * self._entry.size] if count else b""
            self.replace(kept)

    def replace(self, content: bytes) -> None:
        """Atomic; `content` is a whole number of entries."""
        temporary = f"{self.path}.tmp"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            with memoryview(content) as rest:
                written = 0
                while written < len(content):
                    written += os.write(fd, rest[written:])
        finally:
            os.close(fd)
        os.rename(temporary, self.path)
        self._map = None
        self.count = len(content) // self._entry.size

    def clear(self) -> None:
        """No entries, no file: the log is then read without."""
        for path in (self.path, f"{self.path}.tmp"):
            remove_if_there(path)
        self._map = None
        self.count = 0

    def _slot_before(self, key: int) -> int:
        """The last entry whose first field is at most `key`, -1 if there is none."""
        mapped = self._mapped()
        unpack, size = self._entry.unpack_from, self._entry.size
        low, high = 0, min(self.count, len(mapped) // size)
        # Most readers are near the end.
        if high and unpack(mapped, (high - 1) * size)[0] <= key:
            return high - 1
        while low < high:
            middle = (low + high) // 2
            if unpack(mapped, middle * size)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1


class OffsetIndex(SparseIndex):
    __slots__ = ()

    _entry = _OFFSET_ENTRY

    @staticmethod
    def max_entries(segment_index_bytes: int) -> int:
        return segment_index_bytes // _OFFSET_ENTRY.size

    @staticmethod
    def pack(entries: list[IndexEntry], base_offset: int) -> bytes:
        return b"".join(_OFFSET_ENTRY.pack(last - base_offset, position) for last, position in entries)

    def append(self, mapped: mmap.mmap, last_offset: int, position: int) -> None:
        _OFFSET_ENTRY.pack_into(mapped, self.count * 8, last_offset - self.base_offset, position)
        self.count += 1

    def around(self, offset: int) -> tuple[IndexEntry | None, IndexEntry | None]:
        """The last entry whose batch ends at or before `offset`, and the one that follows it."""
        if not self.count:
            return None, None
        slot = self._slot_before(offset - self.base_offset)
        return (
            self.entry(slot) if slot >= 0 else None,
            self.entry(slot + 1) if slot + 1 < self.count else None,
        )

    def find_span(
        self, descriptor: int, offset: int, end: int, max_bytes: int, at_least_one: bool, probed_below: int
    ) -> tuple[int, int] | None:
        """`finding.find_span` in the file that this is the index of."""
        index = self._mapped() if self.count else b""
        return find_span(
            descriptor, index, self.count, self.base_offset, offset, end, max_bytes, at_least_one, probed_below
        )

    def entry(self, slot: int) -> IndexEntry:
        relative, position = _OFFSET_ENTRY.unpack_from(self._mapped(), slot * 8)
        return IndexEntry(self.base_offset + relative, position)

    def entries_below(self, position: int) -> int:
        """How many entries point below `position`."""
        if not self.count:
            return 0
        mapped, unpack = self._mapped(), _OFFSET_ENTRY.unpack_from
        return bisect_left(range(self.count), position, key=lambda slot: unpack(mapped, slot * 8)[1])

    def last_of(self, content: bytes) -> IndexEntry | None:
        if not content:
            return None
        relative, position = _OFFSET_ENTRY.unpack_from(content, len(content) - 8)
        return IndexEntry(self.base_offset + relative, position)

    @staticmethod
    def is_sane(content: bytes, segment_bytes: int) -> bool:
        """Whole entries; offsets and positions strictly increase and lie within the segment."""
        if len(content) % _OFFSET_ENTRY.size:
            return False
        numbers = array("i", content)
        if sys.byteorder == "little":
            numbers.byteswap()
        offsets, positions = numbers[::2], numbers[1::2]
        if not numbers:
            return True
        return (
            offsets[0] >= 0 < positions[0] and positions[-1] < segment_bytes and _rises(offsets) and _rises(positions)
        )


class TimeIndex(SparseIndex):
    __slots__ = ("last",)

    _entry = _TIME_ENTRY

    def __init__(self, path: str, base_offset: int, count: int = 0) -> None:
        super().__init__(path, base_offset, count)
        # Whoever gives a count also loads `last`, before the first append.
        self.last = TimeEntry(-1, base_offset)

    def clear(self) -> None:
        super().clear()
        self.last = TimeEntry(-1, self.base_offset)

    @staticmethod
    def max_entries(segment_index_bytes: int) -> int:
        """One less than fit: the last is kept for the entry that closes a segment."""
        return segment_index_bytes // _TIME_ENTRY.size - 1

    @staticmethod
    def pack(entries: list[TimeEntry], base_offset: int) -> bytes:
        return b"".join(_TIME_ENTRY.pack(timestamp, offset - base_offset) for timestamp, offset in entries)

    def append(self, mapped: mmap.mmap, timestamp: int, offset: int) -> None:
        """Does nothing unless the timestamp is above the last one: the index only rises."""
        if timestamp > self.last.timestamp:
            _TIME_ENTRY.pack_into(mapped, self.count * 12, timestamp, offset - self.base_offset)
            self.count += 1
            self.last = TimeEntry(timestamp, offset)

    def lookup(self, timestamp: int) -> TimeEntry | None:
        """The last entry whose timestamp is at most `timestamp`."""
        if not self.count:
            return None
        slot = self._slot_before(timestamp)
        return self.entry(slot) if slot >= 0 else None

    def entry(self, slot: int) -> TimeEntry:
        timestamp, relative = _TIME_ENTRY.unpack_from(self._mapped(), slot * 12)
        return TimeEntry(timestamp, self.base_offset + relative)

    def last_of(self, content: bytes) -> TimeEntry:
        if not content:
            return TimeEntry(-1, self.base_offset)
        timestamp, relative = _TIME_ENTRY.unpack_from(content, len(content) - 12)
        return TimeEntry(timestamp, self.base_offset + relative)

    def entries_below(self, offset: int) -> int:
        """How many entries have an offset below this one."""
        count = self.count
        while count and self.entry(count - 1).offset >= offset:
            count -= 1
        return count

    @staticmethod
    def is_sane(content: bytes) -> bool:
        """Whole entries; timestamps strictly increase, offsets increase."""
        if len(content) % _TIME_ENTRY.size:
            return False
        if not content:
            return True
        timestamps, offsets = zip(*_TIME_ENTRY.iter_unpack(content), strict=True)
        return bool(timestamps[0] >= 0 <= offsets[0]) and _rises(timestamps) and _rises(offsets)


def _rises(numbers: Sequence[int]) -> bool:
    return all(map(lt, numbers, numbers[1:]))
