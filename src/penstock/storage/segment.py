"""One segment of a log: a file of batches, its two sparse indexes, and the aborted transactions that end in it.

What must stay true: `size` is what was written whole, and only that is ever read; a failed write leaves nothing behind
beyond `size` that anyone looks at. The in-memory facts (largest timestamp, index counts) change after the bytes are in
the file, so undoing a write is restoring a savepoint and cutting the file.

The loop thread writes. Threads may read closed and active segments while it does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.batch import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, read_header
from penstock.storage.descriptors import DESCRIPTORS
from penstock.storage.index import MAX_RELATIVE_OFFSET, BadIndex, IndexEntry, OffsetIndex, TimeEntry, TimeIndex
from penstock.storage.log_file import DISK_FULL, ColdRead, LogFile, ReadAhead, remove_if_there, write_all
from penstock.storage.txn_index import SUFFIX as TXN_INDEX_SUFFIX
from penstock.storage.txn_index import TxnIndex

if TYPE_CHECKING:
    from penstock.storage.log_config import LogConfig
    from penstock.storage.producers import ProducerEntry

_WALK_CHUNK_BYTES = 8192
# One thread at a time checks a segment's indexes; a few locks for all segments, so that most do not wait for others.
_CHECKING = tuple(threading.Lock() for _ in range(64))


class StagedBatch(NamedTuple):
    """A batch that has its offsets and waits for write_staged, with what undoes its effect on its producer."""

    view: memoryview
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    producer_id: int
    previous_entry: ProducerEntry | None


class LocatedBatch(NamedTuple):
    position: int
    header: BatchHeader


class CorruptSegment(Exception):
    """Bytes in a segment that should be whole are no batch."""


class SegmentSavepoint(NamedTuple):
    size: int
    max_timestamp: int
    offset_of_max_timestamp: int
    rolling_timestamp: int
    bytes_since_index_entry: int
    offset_entries: int
    time_entries: int
    last_time_entry: TimeEntry


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


class Segment:
    __slots__ = (
        "_file",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "deleted_suffix",
        "directory",
        "index_interval_bytes",
        "indexes_are_checked",
        "is_active",
        "is_pinned",
        "max_timestamp",
        "offset_index",
        "offset_of_max_timestamp",
        "referenced",
        "rolling_timestamp",
        "size",
        "time_index",
        "timestamps_are_checked",
        "txn_index",
        "warm_from",
    )

    def __init__(self, directory: str, base_offset: int, config: LogConfig, *, created_ms: int, size: int = 0) -> None:
        self.directory = directory
        self.index_interval_bytes = config.index_interval_bytes
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = size
        self.deleted_suffix = ""
        self.is_active = False
        # While its files have other names than the segment says, they stay open.
        self.is_pinned = False
        self.referenced = False
        self._file: LogFile | None = None
        self.offset_index = OffsetIndex(segment_path(directory, base_offset, ".index"), base_offset)
        self.time_index = TimeIndex(segment_path(directory, base_offset, ".timeindex"), base_offset)
        self.txn_index = TxnIndex(segment_path(directory, base_offset, TXN_INDEX_SUFFIX), base_offset)
        # A closed segment's indexes are looked at when they are first used, its largest timestamp when it decides.
        self.indexes_are_checked = size == 0
        self.timestamps_are_checked = size == 0
        self.bytes_since_index_entry = 0
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        # The largest timestamp of the first batch: segment.ms counts from it, as in Kafka.
        self.rolling_timestamp = -1
        # Bytes from here on were written by this process, so the newest of them are in the page cache.
        self.warm_from = size

    def __repr__(self) -> str:
        return f"Segment({self.directory}, {self.base_offset}, {self.size} bytes)"

    @classmethod
    def create(cls, directory: str, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """A new, empty, active segment. OSError leaves no file."""
        segment = cls(directory, base_offset, config, created_ms=now_ms)
        segment.is_active = True
        # A file that is there already lies beyond the end of the log: the rest of something that was given up.
        segment._file = LogFile(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        remove_if_there(segment.txn_index.path)
        return segment

    @property
    def path(self) -> str:
        return segment_path(self.directory, self.base_offset, ".log") + self.deleted_suffix

    # Descriptors

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def evict(self) -> None:
        if not (self.is_active or self.is_pinned):
            self._file = None

    def close_files(self) -> None:
        """Closed as soon as nobody reads them; opened again when they are needed."""
        self._file = None
        self.offset_index.close()
        self.time_index.close()

    def pin(self, suffix: str = "") -> None:
        """Blocking. Opens all files, now, and keeps them open: nothing is opened by name any more.

        Of a segment whose indexes are checked. `suffix` is what the files' names have for the moment.
        """
        self.is_pinned = True
        self._file = LogFile(self.path + suffix, os.O_RDONLY)
        self.offset_index.pin(self.offset_index.path + suffix)
        self.time_index.pin(self.time_index.path + suffix)
        self.txn_index.pin(self.txn_index.path + suffix)

    def unpin(self) -> None:
        """The files have the names that the segment says."""
        self.is_pinned = False
        DESCRIPTORS.admit(self)
        self.offset_index.unpin()
        self.time_index.unpin()
        self.txn_index.unpin()

    def file(self) -> LogFile:
        file = self._file
        if file is None:
            file = LogFile(self.path, os.O_RDWR if self.is_active else os.O_RDONLY)
            self._file = file
            if not self.is_active:
                DESCRIPTORS.admit(self)
        else:
            self.referenced = True
        return file

    # Writing

    def append(
        self, staged: list[StagedBatch], start: int, config: LogConfig, now_ms: int, whole: memoryview | None = None
    ) -> int:
        """Writes staged[start:] up to the first batch that belongs into a new segment; returns that one's place.

        `whole` is where all that is staged lies side by side, when it does: written as one piece.
        """
        position = self.size
        since_entry = self.bytes_since_index_entry
        max_timestamp, offset_of_max = self.max_timestamp, self.offset_of_max_timestamp
        rolling_timestamp = self.rolling_timestamp
        max_entries = self._free_index_entries(config)
        max_offset = self.base_offset + MAX_RELATIVE_OFFSET
        segment_bytes, interval_bytes = config.segment_bytes, self.index_interval_bytes
        views: list[memoryview] = []
        entries: list[tuple[int, int, int, int]] = []
        for view, size, _, last_offset, timestamp, _, _ in staged[start:] if start else staged:
            if position == 0:
                rolling_timestamp = timestamp
            else:
                waited_ms = timestamp - rolling_timestamp if rolling_timestamp >= 0 else now_ms - self.created_ms
                if (
                    position + size > segment_bytes
                    or waited_ms > config.segment_ms
                    or last_offset > max_offset
                    or len(entries) >= max_entries
                ):
                    break
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max = timestamp, last_offset
            if since_entry > interval_bytes:
                entries.append((last_offset, position, max_timestamp, offset_of_max))
                since_entry = 0
            views.append(view)
            position += size
            since_entry += size
        taken = len(views)
        if taken:
            if whole is not None:
                begin = sum(batch.size for batch in staged[:start])
                views = [whole[begin : begin + position - self.size]]
            self._write(views, entries)
            self.size = position
            self.bytes_since_index_entry = since_entry
            self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, offset_of_max
            self.rolling_timestamp = rolling_timestamp
        return start + taken

    def _free_index_entries(self, config: LogConfig) -> int:
        index_bytes = config.segment_index_bytes
        return min(
            OffsetIndex.max_entries(index_bytes) - self.offset_index.count,
            TimeIndex.max_entries(index_bytes) - self.time_index.count,
        )

    def _write(self, views: list[memoryview], entries: list[tuple[int, int, int, int]]) -> None:
        file = self._file or self.file()
        if not entries:
            write_all(file.fd, views, self.size)
            return
        # The room in the indexes is taken first: after the bytes are written nothing may fail.
        offset_map = self.offset_index.reserve(len(entries))
        time_map = self.time_index.reserve(len(entries))
        write_all(file.fd, views, self.size)
        for last_offset, position, max_timestamp, offset_of_max in entries:
            self.offset_index.append(offset_map, last_offset, position)
            self.time_index.append(time_map, max_timestamp, offset_of_max)

    def savepoint(self) -> SegmentSavepoint:
        return tuple.__new__(
            SegmentSavepoint,
            (
                self.size,
                self.max_timestamp,
                self.offset_of_max_timestamp,
                self.rolling_timestamp,
                self.bytes_since_index_entry,
                self.offset_index.count,
                self.time_index.count,
                self.time_index.last,
            ),
        )

    def restore(self, savepoint: SegmentSavepoint) -> None:
        """Back to the savepoint, as the active segment, file included. OSError: the file may hold more than `size`."""
        self.size, self.max_timestamp, self.offset_of_max_timestamp, self.rolling_timestamp = savepoint[:4]
        self.bytes_since_index_entry = savepoint.bytes_since_index_entry
        self.offset_index.count, self.time_index.count = savepoint.offset_entries, savepoint.time_entries
        self.time_index.last = savepoint.last_time_entry
        if not self.is_active:
            self.is_active = True
            self._file = None
        self.file().cut(self.size)

    def finish(self) -> None:
        """Writes the closing time entry and trims the indexes: on roll and on close. Nothing is lost if it fails."""
        if self.max_timestamp > self.time_index.last.timestamp:
            time_map = self.time_index.reserve(1)
            self.time_index.append(time_map, self.max_timestamp, self.offset_of_max_timestamp)
        if self.size:
            self.offset_index.trim()
            self.time_index.trim()

    def become_closed(self) -> None:
        self.is_active = False
        if self._file is not None:
            DESCRIPTORS.admit(self)

    def remove(self) -> None:
        """Blocking. Deletes the files; those that are not there are no concern."""
        self.close_files()
        for path in self.paths():
            remove_if_there(path)

    def index_paths(self) -> list[str]:
        """What has to be on disk with a closed segment."""
        paths = [self.offset_index.path, self.time_index.path]
        return [*paths, self.txn_index.path] if self.txn_index.count else paths

    def paths(self) -> list[str]:
        suffixes = (".log", ".index", ".timeindex", TXN_INDEX_SUFFIX)
        return [segment_path(self.directory, self.base_offset, suffix) + self.deleted_suffix for suffix in suffixes]

    def mark_deleted(self) -> None:
        """Renames the files to `.deleted`, which the next start removes should this process not come to it."""
        for path in self.paths():
            try:
                os.rename(path, f"{path}.deleted")
            except FileNotFoundError:
                continue
        self.deleted_suffix = ".deleted"

    # Reading

    def walk(self, start: int, end: int, *, wait: bool, file: ReadAhead | None = None) -> Iterator[LocatedBatch]:
        """The batches from the one at `start`, until `end`. CorruptSegment where there is none.

        Whoever goes through all of a segment has a `file` that reads ahead.
        """
        source = file or self.file()
        position = start
        chunk: bytes | bytearray = b""
        cursor = 0
        while position < end:
            if cursor + HEADER_BYTES > len(chunk):
                chunk, cursor = source.read(min(_WALK_CHUNK_BYTES, end - position), position, wait=wait), 0
                if len(chunk) < HEADER_BYTES:
                    if not wait:
                        raise ColdRead
                    raise CorruptSegment(f"{self.path} ends inside a header at {position}")
            header = read_header(chunk, cursor)
            size = header.batch_length + LENGTH_END
            if header.magic != MAGIC or not HEADER_BYTES <= size <= end - position or header.last_offset_delta < 0:
                raise CorruptSegment(f"{self.path} has no batch at {position}")
            yield LocatedBatch(position, header)
            position += size
            cursor += size

    def locate(self, offset: int, end: int, *, wait: bool) -> LocatedBatch | None:
        """The first batch below `end` that ends at or after `offset`. Right whatever the index says."""
        self.check_indexes(wait=wait)
        entry, following = self.offset_index.around(offset)
        if following is not None:
            batch = self._large_batch(following, entry.position if entry is not None else 0, end, wait=wait)
            if batch is not None and batch.header.base_offset <= offset:
                return batch
        if entry is None or entry.position >= end:
            return _first_ending_at(offset, self.walk(0, end, wait=wait))
        try:
            batches = self.walk(entry.position, end, wait=wait)
            indexed = next(batches)
            if indexed.header.last_offset == entry.last_offset:
                return indexed if entry.last_offset == offset else _first_ending_at(offset, batches)
        except CorruptSegment:
            pass
        # The entry points elsewhere than to its batch: the index is no help.
        if not wait:
            raise ColdRead
        return _first_ending_at(offset, self.walk(0, end, wait=True))

    def _large_batch(self, entry: IndexEntry, walked_from: int, end: int, *, wait: bool) -> LocatedBatch | None:
        """The batch that an entry points to, if getting there from another one would take more than one read: large
        batches have an entry each, so this is what a fetch is after.
        """
        position = entry.position
        if position - walked_from < _WALK_CHUNK_BYTES or position + HEADER_BYTES > end:
            return None
        content = self.file().read(HEADER_BYTES, position, wait=wait)
        if len(content) < HEADER_BYTES:
            return None
        header = read_header(content)
        is_it = header.magic == MAGIC and header.last_offset == entry.last_offset
        return LocatedBatch(position, header) if is_it and HEADER_BYTES <= header.size <= end - position else None

    def check_indexes(self, *, wait: bool) -> None:
        """Before the first use of a closed segment's indexes: load what they say, rebuild them if it makes no sense."""
        if self.indexes_are_checked:
            return
        if not wait:
            raise ColdRead
        with self.checking():
            if not self.indexes_are_checked:
                try:
                    self.load_indexes()
                except BadIndex:
                    self.rebuild_indexes()
                self.indexes_are_checked = True

    def checking(self) -> threading.Lock:
        return _CHECKING[hash(self) % len(_CHECKING)]

    def load_indexes(self) -> IndexEntry | None:
        """Blocking. Takes over what the files say and returns the last offset entry. Raises BadIndex."""
        try:
            offset_content = _content(self.offset_index.path)
            time_content = _content(self.time_index.path)
        except FileNotFoundError as error:
            raise BadIndex(str(error)) from None
        if not (OffsetIndex.is_sane(offset_content, self.size) and TimeIndex.is_sane(time_content)):
            raise BadIndex(f"the indexes of {self.path} make no sense")
        last = self.time_index.last_of(time_content)
        self.offset_index.count = len(offset_content) // 8
        self.time_index.count = len(time_content) // 12
        self.time_index.last = last
        self.max_timestamp, self.offset_of_max_timestamp = last
        return self.offset_index.last_of(offset_content)

    def largest_timestamp(self) -> TimeEntry:
        """Blocking. Of the records; -1 if none has any. Deletion depends on it, so the log has the last word."""
        self.check_indexes(wait=True)
        if not self.timestamps_are_checked:
            with self.checking():
                if not self._is_largest(self.time_index.last):
                    self.rebuild_indexes()
                self.timestamps_are_checked = True
        return TimeEntry(self.max_timestamp, self.offset_of_max_timestamp)

    def age_timestamp(self) -> int:
        """Blocking. What retention goes by: the records' largest timestamp, else when the file was last written."""
        timestamp = self.largest_timestamp().timestamp
        return timestamp if timestamp >= 0 else os.stat(self.path).st_mtime_ns // 1_000_000

    def _is_largest(self, entry: TimeEntry) -> bool:
        """Whether the batch that the entry names holds its timestamp, and none after it a larger one."""
        start = 0
        if self.time_index.count:
            batch = self.locate(entry.offset, self.size, wait=True)
            if batch is None or batch.header.max_timestamp != entry.timestamp:
                return False
            start = batch.position
        return all(header.max_timestamp <= entry.timestamp for _, header in self.walk(start, self.size, wait=True))

    def rebuild_indexes(self) -> None:
        """Blocking. From the headers of the batches, by the same rule as append."""
        builder = IndexBuilder(self)
        for position, header in self.walk(0, self.size, wait=True):
            builder.add(position, header)
        builder.install()


class IndexBuilder:
    """Collects the index entries of a segment that is read from its start, to replace its index files."""

    __slots__ = ("_max_timestamp", "_offset_entries", "_offset_of_max", "_segment", "_since_entry", "_time_entries")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._offset_entries: list[IndexEntry] = []
        self._time_entries: list[TimeEntry] = []
        self._since_entry = 0
        self._max_timestamp = -1
        self._offset_of_max = segment.base_offset

    def add(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._offset_of_max = header.max_timestamp, header.last_offset
        if self._since_entry > self._segment.index_interval_bytes:
            self._offset_entries.append(IndexEntry(header.last_offset, position))
            self._add_time_entry()
            self._since_entry = 0
        self._since_entry += header.size

    def _add_time_entry(self) -> None:
        last_timestamp = self._time_entries[-1].timestamp if self._time_entries else -1
        if self._max_timestamp > last_timestamp:
            self._time_entries.append(TimeEntry(self._max_timestamp, self._offset_of_max))

    def install(self) -> None:
        """Blocking. Replaces the files and the segment's facts. On a full disk the segment goes without an index."""
        self._add_time_entry()
        segment = self._segment
        segment.max_timestamp, segment.offset_of_max_timestamp = self._max_timestamp, self._offset_of_max
        segment.bytes_since_index_entry = self._since_entry
        segment.indexes_are_checked = segment.timestamps_are_checked = True
        try:
            segment.offset_index.replace(OffsetIndex.pack(self._offset_entries, segment.base_offset))
            segment.time_index.replace(TimeIndex.pack(self._time_entries, segment.base_offset))
            segment.time_index.last = TimeEntry(self._max_timestamp, self._offset_of_max)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            segment.offset_index.clear()
            segment.time_index.clear()


def _first_ending_at(offset: int, batches: Iterator[LocatedBatch]) -> LocatedBatch | None:
    return next((batch for batch in batches if batch.header.last_offset >= offset), None)


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
