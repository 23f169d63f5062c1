"""The aborted transactions of a segment, in Kafka's layout: `<base offset>.txnindex`, one for each abort marker in it.

An entry is (version, producer id, first offset, offset of the marker, last stable offset after it), in the order of the
markers. Readers at read_committed are told of the aborted transactions in what they get; they pass over the records
themselves. What must stay true:
- Unlike the sparse indexes, nobody reads around a missing entry: an aborted record would be taken for a committed one.
  So an entry is written with its marker, undone with it, and a file that makes no sense is rebuilt from the log.
- No file while there is no entry, as nearly every segment has none.

The loop thread writes, threads may read: what lies below `count` entries does not change under them.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from penstock.storage.checkpoints import replace_file
from penstock.storage.index import BadIndex
from penstock.storage.log_file import ColdRead, LogFile, remove_if_there, write_all
from penstock.storage.transactions import EndedTransaction

SUFFIX = ".txnindex"

_VERSION = 0
_ENTRY = Struct(">hqqqq")
_LAST_OFFSET = Struct(">18xq")
_CHUNK_ENTRIES = 128
# How much the loop looks at before it leaves the rest to a thread.
_LOOP_CHUNKS = 2


class AbortedTransaction(NamedTuple):
    """What a reader has to know to pass over its records."""

    producer_id: int
    first_offset: int


class TxnIndexEntry(NamedTuple):
    """No transaction whose marker comes later begins below `last_stable_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def entry_of(ended: EndedTransaction) -> TxnIndexEntry:
    return TxnIndexEntry(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)


def pack(entries: Iterable[TxnIndexEntry]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


class _Chunk(NamedTuple):
    """Entries that lie beside each other, from this slot on."""

    first_slot: int
    last_offsets: list[int]
    entries: list[TxnIndexEntry]

    @classmethod
    def of(cls, first_slot: int, content: bytes | bytearray) -> _Chunk:
        entries = [TxnIndexEntry._make(fields) for _, *fields in _ENTRY.iter_unpack(content)]
        return cls(first_slot, [entry.last_offset for entry in entries], entries)

    def has_first_from(self, offset: int) -> bool:
        """Whether the first entry from `offset` on is in it: most readers are close together."""
        offsets = self.last_offsets
        return bool(offsets) and offset <= offsets[-1] and (self.first_slot == 0 or offsets[0] < offset)


_NOTHING = _Chunk(0, [], [])


class TxnIndex:
    __slots__ = ("_pinned", "_recent", "base_offset", "count", "is_checked", "path")

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = 0
        # Nothing is believed of a file that was found until `check` has seen it.
        self.is_checked = True
        self._pinned: LogFile | None = None
        self._recent = _NOTHING  # what the loop read last; threads leave it alone

    def found(self, size_bytes: int) -> None:
        """A file of this size is there."""
        self.count = size_bytes // _ENTRY.size
        self.is_checked = False

    @property
    def may_have_entries(self) -> bool:
        return self.count > 0 or not self.is_checked

    def check(self, end_offset: int) -> None:
        """Blocking. Raises BadIndex unless the file can be that of a segment that ends before `end_offset`."""
        try:
            file = LogFile(self.path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise BadIndex(str(error)) from None
        size = os.fstat(file.fd).st_size
        if size % _ENTRY.size:
            raise BadIndex(f"{self.path} has {size} bytes")
        previous = self.base_offset - 1
        for version, *fields in _ENTRY.iter_unpack(file.read(size, 0)):
            entry = TxnIndexEntry._make(fields)
            if (
                version != _VERSION
                or entry.producer_id < 0
                or not 0 <= entry.first_offset < entry.last_offset
                or not previous < entry.last_offset < end_offset
                or not 0 <= entry.last_stable_offset <= entry.last_offset + 1
            ):
                raise BadIndex(f"{self.path} makes no sense: {entry}")
            previous = entry.last_offset
        self.count = size // _ENTRY.size
        self.is_checked = True

    # Writing

    def append(self, entries: Sequence[TxnIndexEntry]) -> None:
        """Blocking as the page cache is. OSError: the file may end in a part of them, `cut_after` removes it."""
        file = LogFile(self.path, os.O_WRONLY | os.O_CREAT)
        write_all(file.fd, [memoryview(pack(entries))], self.count * _ENTRY.size)
        self.count += len(entries)

    def cut_after(self, offset: int) -> None:
        """Blocking. Markers at and above `offset` are gone."""
        self.count -= sum(1 for _ in self.entries_from(offset))
        self._recent = _NOTHING
        if self.count:
            os.truncate(self.path, self.count * _ENTRY.size)
        else:
            remove_if_there(self.path)

    def rewrite(self, entries: Sequence[TxnIndexEntry]) -> None:
        """Blocking, with no readers. In place: that may go well where a full disk has no room for another file."""
        content = pack(entries)
        if not content:
            remove_if_there(self.path)
        elif content != self._content():
            file = LogFile(self.path, os.O_WRONLY | os.O_CREAT)
            write_all(file.fd, [memoryview(content)], 0)
            file.cut(len(content))
        self._recent = _NOTHING
        self.count = len(entries)
        self.is_checked = True

    def replace(self, entries: Sequence[TxnIndexEntry]) -> None:
        """Blocking. Atomic, for a file that was there and made no sense: a crash must not leave half of it."""
        if entries:
            replace_file(self.path, pack(entries))
        else:
            remove_if_there(self.path)
        self._recent = _NOTHING
        self.count = len(entries)
        self.is_checked = True

    def _content(self) -> bytes:
        try:
            file = LogFile(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        return bytes(file.read(os.fstat(file.fd).st_size, 0))

    # While the file has another name: see Segment.pin

    def pin(self, path: str) -> None:
        """Blocking. Opens the file, now, and keeps it open; `path` is where it is for the moment."""
        if self.count:
            self._pinned = LogFile(path, os.O_RDONLY)

    def unpin(self) -> None:
        self._pinned = None

    # Reading

    def entries_from(self, offset: int, *, wait: bool = True) -> Iterator[TxnIndexEntry]:
        """Those whose markers are at or above `offset`, in their order. Blocking; without `wait`: ColdRead instead of a
        disk access, or when it is more than the loop has time for.
        """
        end = self.count
        if not end:
            return
        chunk: _Chunk | None = None
        file: LogFile | None = None
        if self._recent.has_first_from(offset):
            chunk = self._recent
            low = chunk.first_slot
        else:
            file = self._file()
            low = self._search(file, offset, end, wait=wait)
        looked_at = 0
        while low < end:
            if looked_at == _LOOP_CHUNKS and not wait:
                raise ColdRead
            if chunk is None:
                file = file or self._file()
                chunk = _Chunk.of(low, self._read(file, low, min(_CHUNK_ENTRIES, end - low), wait=wait))
                if not wait:
                    self._recent = chunk
            yield from chunk.entries[bisect_left(chunk.last_offsets, offset) :]
            low += len(chunk.entries)
            looked_at += 1
            chunk = None

    def _file(self) -> LogFile:
        return self._pinned or LogFile(self.path, os.O_RDONLY)

    def _search(self, file: LogFile, offset: int, end: int, *, wait: bool) -> int:
        """A slot less than a chunk before the first entry from `offset` on."""
        low, high = 0, end
        while high - low >= _CHUNK_ENTRIES:
            middle = (low + high) // 2
            if _last_offset(self._read(file, middle, 1, wait=wait), 0) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, file: LogFile, first: int, count: int, *, wait: bool) -> bytes | bytearray:
        content = file.read(count * _ENTRY.size, first * _ENTRY.size, wait=wait)
        if len(content) == count * _ENTRY.size:
            return content
        if not wait:
            raise ColdRead  # of what is in the page cache, that is the beginning
        raise OSError(f"{self.path} ends before entry {first + count}")


def _last_offset(entries: bytes | bytearray, position: int) -> int:
    last_offset: int = _LAST_OFFSET.unpack_from(entries, position)[0]
    return last_offset
