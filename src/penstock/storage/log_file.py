"""Descriptors of segment files, what points into them, and the preads that never wait for a disk.

A LogFile closes when its last reference goes. A response in flight holds one through its FileSpan, so retention may
delete the file under it: the bytes stay readable until they are sent.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

_IOV_MAX = 1024
_AHEAD_BYTES = 1024 * 1024

# Errors that end when somebody makes room.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class ColdRead(Exception):
    """The bytes are not in the page cache: the same read, with wait=True, belongs into a thread."""


class LogFile:
    """Whoever uses the descriptor holds the LogFile while doing so: its number may be another file's right after."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is bound here because modules are gone when the last files are closed at exit.
        if self.fd >= 0:
            close(self.fd)

    def read(self, length: int, position: int, *, wait: bool = True) -> bytes | bytearray:
        """At most `length` bytes, fewer at the end of the file. Without `wait`: ColdRead instead of a disk access."""
        if wait:
            return os.pread(self.fd, length, position)
        buffer = bytearray(length)
        try:
            read = os.preadv(self.fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            raise ColdRead from None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # A file system without the probe: reading is all there is.
            return os.pread(self.fd, length, position)
        return buffer if read == length else buffer[:read]

    def read_into(self, buffer: memoryview | bytearray, position: int) -> int:
        """Blocking. How many bytes came."""
        return os.preadv(self.fd, [buffer], position)

    def cut(self, length: int) -> None:
        os.ftruncate(self.fd, length)


class ReadAhead:
    """A file that is read from front to back: few large reads, however little is asked for each time.

    Every read gives up the interpreter's lock, and threads that go through logs side by side spend as much time on
    getting it back as on the logs. Where the reader leaves bytes out, as between the headers of large batches, nothing
    is read that was not asked for.
    """

    __slots__ = ("_ahead_bytes", "_chunk", "_file", "_position")

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._chunk: bytes | bytearray = b""
        self._position = 0
        self._ahead_bytes = 0

    def read(self, length: int, position: int, *, wait: bool = True) -> bytes | bytearray:
        """As LogFile.read."""
        start = position - self._position
        if start < 0 or start + length > len(self._chunk):
            leaves_out = not 0 <= start <= len(self._chunk)
            self._ahead_bytes = 0 if leaves_out else min(2 * self._ahead_bytes + length, _AHEAD_BYTES)
            self._chunk = self._file.read(max(length, self._ahead_bytes), position, wait=wait)
            self._position, start = position, 0
        return self._chunk[start : start + length]


class FileSpan(NamedTuple):
    """Bytes of a log file that go to a client as they are."""

    file: LogFile
    position: int
    length: int


class LogPosition(NamedTuple):
    """An offset, and where its batch starts: in the segment with this base offset, at this byte."""

    offset: int
    segment_base_offset: int
    position: int


def write_all(fd: int, views: Sequence[memoryview], position: int) -> None:
    """Blocking as the page cache is. All bytes or an OSError; then the file may end in a part of them."""
    remaining = list(views)
    while remaining:
        written = os.pwritev(fd, remaining[:_IOV_MAX], position)
        if written == 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        position += written
        while remaining and written >= len(remaining[0]):
            written -= len(remaining.pop(0))
        if written:
            remaining[0] = remaining[0][written:]


_PROBE_STEP_BYTES = 128 * 1024
_WARM_CHUNK_BYTES = 1024 * 1024


def probe(span: FileSpan) -> None:
    """ColdRead unless samples of the span are in the page cache: one in each readahead window, and the last byte."""
    fd, buffers, end = span.file.fd, [bytearray(1)], span.position + span.length
    try:
        for position in range(span.position, end, _PROBE_STEP_BYTES):
            os.preadv(fd, buffers, position, os.RWF_NOWAIT)
        os.preadv(fd, buffers, end - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        raise ColdRead from None
    except OSError as error:
        # A file system without the probe: reading is all there is.
        if error.errno != errno.EOPNOTSUPP:
            raise


def warm(span: FileSpan) -> None:
    """Blocking. Brings the span into the page cache."""
    end = span.position + span.length
    buffer = bytearray(min(span.length, _WARM_CHUNK_BYTES))
    for position in range(span.position, end, _WARM_CHUNK_BYTES):
        span.file.read_into(buffer, position)


def remove_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
