"""Segments that take the place of others, and the files of those that left.

Kafka's protocol, which `leftovers` completes or undoes after a crash: the new segment is written as `.cleaned` and
flushed, renamed to `.swap` (the log file last: from here on it counts), the old ones are renamed to `.deleted`, and
`.swap` is dropped from the names. The directory is flushed between these steps, so that no later one is on disk without
the earlier ones.

A name stands for different files on the way, so nobody may open one: both the old segments, which readers may still
hold, and the new one are pinned to the files they have open. Everything here blocks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.protocol.records.compaction import Rewriter
from penstock.storage import txn_index
from penstock.storage.checkpoints import sync_directory
from penstock.storage.index import TimeEntry
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import LogFile, remove_if_there, write_all
from penstock.storage.segment import Segment, segment_path
from penstock.storage.txn_index import TxnIndexEntry

_INDEXES = (".index", ".timeindex")
_TXN_INDEX = txn_index.SUFFIX
_KINDS = (*_INDEXES, _TXN_INDEX, ".log")
# So much is written between two flushes: one flush of a gigabyte would hold up those of others.
_FLUSH_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RetiredSegments:
    """Segments that left the log. Their files are renamed; `remove` deletes them once file.delete.delay.ms is over."""

    segments: tuple[Segment, ...]

    def remove(self) -> None:
        for segment in self.segments:
            segment.remove()


@dataclass(frozen=True, slots=True)
class RetiredFiles:
    """The same for segments that readers must be able to let go of before that."""

    paths: tuple[str, ...]

    def remove(self) -> None:
        for path in self.paths:
            remove_if_there(path)


class SegmentWriter:
    """Writes the `.cleaned` files of a new segment."""

    __slots__ = ("_base_offset", "_directory", "_file", "_unflushed_bytes", "size")

    def __init__(self, directory: str, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._file = LogFile(self._path(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._unflushed_bytes = 0
        self.size = 0

    def _path(self, kind: str) -> str:
        return segment_path(self._directory, self._base_offset, kind) + ".cleaned"

    def write(self, content: memoryview) -> None:
        write_all(self._file.fd, [content], self.size)
        self.size += len(content)
        self._unflushed_bytes += len(content)
        if self._unflushed_bytes >= _FLUSH_BYTES:
            os.fdatasync(self._file.fd)
            self._unflushed_bytes = 0

    def finish(
        self,
        rewriter: Rewriter,
        aborted: Sequence[TxnIndexEntry],
        config: LogConfig,
        last_source: Segment,
        now_ms: int,
    ) -> Segment:
        """Everything is on disk. The segment is pinned."""
        contents = [*zip(_INDEXES, rewriter.indexes(), strict=True)]
        if aborted:
            contents.append((_TXN_INDEX, txn_index.pack(aborted)))
        for kind, content in contents:
            file = LogFile(self._path(kind), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            if content:
                write_all(file.fd, [memoryview(content)], 0)
            os.fsync(file.fd)
        # Retention goes by the file's time where records have none.
        modified_ns = os.fstat(last_source.file().fd).st_mtime_ns
        os.utime(self._file.fd, ns=(modified_ns, modified_ns))
        os.fsync(self._file.fd)
        return self._segment(rewriter, len(aborted), config, now_ms)

    def _segment(self, rewriter: Rewriter, aborted: int, config: LogConfig, now_ms: int) -> Segment:
        segment = Segment(self._directory, self._base_offset, config, created_ms=now_ms, size=self.size)
        offsets, times = (os.stat(self._path(kind)).st_size for kind in _INDEXES)
        segment.offset_index.count = offsets // 8
        segment.time_index.count = times // 12
        segment.txn_index.count = aborted
        segment.max_timestamp = rewriter.max_timestamp
        segment.offset_of_max_timestamp = rewriter.offset_of_max_timestamp
        segment.time_index.last = TimeEntry(rewriter.max_timestamp, rewriter.offset_of_max_timestamp)
        segment.indexes_are_checked = segment.timestamps_are_checked = True
        segment.pin(".cleaned")
        return segment

    def discard(self) -> None:
        for kind in _KINDS:
            remove_if_there(self._path(kind))


class Swap:
    """`new`, as its writer left it, takes the place of `old`, whose indexes are checked."""

    __slots__ = ("_directory", "_new", "_old")

    def __init__(self, directory: str, old: Sequence[Segment], new: Segment) -> None:
        self._directory = directory
        self._old = tuple(old)
        self._new = new

    def commit(self) -> None:
        """After this a start completes the swap, before it a start undoes it."""
        for segment in self._old:
            segment.pin()
        for kind in _INDEXES:
            self._rename(kind, ".cleaned", ".swap")
        if self._new.txn_index.count:
            self._rename(_TXN_INDEX, ".cleaned", ".swap")
            # The other indexes are made anew when they are missing. This one must be there when the log file counts.
            sync_directory(self._directory)
        self._rename(".log", ".cleaned", ".swap")
        sync_directory(self._directory)

    def undo(self) -> None:
        """Instead of `finish`. OSError: a start may complete the swap all the same."""
        for kind in reversed(_KINDS):
            for suffix in (".swap", ".cleaned"):
                remove_if_there(self._path(kind) + suffix)
        sync_directory(self._directory)
        for segment in self._old:
            segment.unpin()

    def finish(self) -> None:
        """When the log reads from `new`."""
        for segment in self._old:
            for path in segment.paths():
                _rename_if_there(path, f"{path}.deleted")
        sync_directory(self._directory)
        for kind in _KINDS:
            if kind != _TXN_INDEX or self._new.txn_index.count:
                self._rename(kind, ".swap", "")
        sync_directory(self._directory)

    def _rename(self, kind: str, old_suffix: str, new_suffix: str) -> None:
        path = self._path(kind)
        os.rename(path + old_suffix, path + new_suffix)

    def retired(self) -> RetiredFiles:
        return RetiredFiles(tuple(f"{path}.deleted" for segment in self._old for path in segment.paths()))

    def _path(self, kind: str) -> str:
        return segment_path(self._directory, self._new.base_offset, kind)


def _rename_if_there(path: str, to: str) -> None:
    try:
        os.rename(path, to)
    except FileNotFoundError:
        return
