"""Sending a stretch of a file: from the page cache to the client, without a copy in this process.

Two ways, because what is cheapest depends on where the client is. To another machine, sendfile hands pages to the
network card and nobody copies. To a client on this machine the kernel has to copy anyway; sendfile gives it 64 KiB at a
time and wakes the client for each, which took half of the broker's time. There, sending from a mapping of the file is a
third faster (fetch-1m beside fetch-1m-sendfile in docs/performance.md).
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple, Protocol

# Mapped pages are the page cache's, but count as resident memory: 512 MiB at most, and none of it a second after the
# last use. That is room for a hundred partitions that are read at once, and for readers of one that are some way apart.
WINDOW_BYTES = 4 << 20
MAX_WINDOWS = 128
MAX_PIECES = 2  # the second is a whole window, if there is more behind it
_UNUSED_AFTER_MS = 1_000


class File(Protocol):
    @property
    def fd(self) -> int: ...


class FileSpan(Protocol):
    """A stretch of a file that is sent as it is; holding `file` keeps it open even if it is deleted meanwhile."""

    @property
    def file(self) -> File: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...


def read_span(span: FileSpan) -> bytes:
    content = os.pread(span.file.fd, span.length, span.position)
    if len(content) != span.length:
        raise OSError(0, f"file ended {span.length - len(content)} bytes early")
    return content


def send_file(sock: socket.socket, span: FileSpan) -> int:
    """How many bytes of the span the socket took, at least one."""
    sent = os.sendfile(sock.fileno(), span.file.fd, span.position, span.length)
    if sent == 0:
        raise OSError(0, "file ended inside a response")
    return sent


class Windows:
    """Stretches of files that stay mapped while clients read on: to map and unmap what each fetch takes cost a quarter
    of it (0.39 CPU s/GB out, and 0.29 with them, one partition, 1 KB records).

    Only the kernel may read them: should a file be cut meanwhile, it says EFAULT where we would get SIGBUS. Nothing is
    mapped ahead, so a page that is not in the cache is not waited for before somebody wants it.
    """

    def __init__(self) -> None:
        # By a file's identity, which is nobody else's while the window holds the file.
        self._kept: dict[tuple[int, int], _Window] = {}
        self._unused: set[tuple[int, int]] = set()
        self._swept_ms = 0

    def __len__(self) -> int:
        return len(self._kept)

    def views(self, span: FileSpan) -> Sequence[memoryview] | None:
        """The span, or the start of one that is longer than a window, in a few pieces. None where nothing more can be
        mapped, or the file is too short.
        """
        number, start = divmod(span.position, WINDOW_BYTES)
        stop = start + span.length
        if stop <= WINDOW_BYTES:  # nearly always
            whole = self._view(span.file, number, stop)
            return None if whole is None else (whole[start:stop],)
        found: list[memoryview] = []
        position, end = span.position, span.position + span.length
        while position < end and len(found) < MAX_PIECES:
            number, start = divmod(position, WINDOW_BYTES)
            stop = min(WINDOW_BYTES, start + end - position)
            view = self._view(span.file, number, stop)
            if view is None:
                return None
            found.append(view[start:stop])
            position += stop - start
        return found

    def _view(self, file: File, number: int, size: int) -> memoryview | None:
        """At least `size` bytes of a window."""
        key = (id(file), number)
        window = self._kept.get(key)
        if window is None or len(window.view) < size:  # the file has grown since
            self._kept.pop(key, None)
            view = _mapped(file, number * WINDOW_BYTES)
            if view is None or len(view) < size:
                return None
            while len(self._kept) >= MAX_WINDOWS:
                del self._kept[next(iter(self._kept))]  # what is being sent from it stays until it is sent
            window = self._kept[key] = _Window(file, view)
        self._unused.discard(key)
        return window.view

    def sweep(self, now_ms: int) -> None:
        """Called now and then: gives up what nobody has used for a second, and with it files that are deleted."""
        if now_ms - self._swept_ms < _UNUSED_AFTER_MS:
            return
        self._swept_ms = now_ms
        for key in self._unused:
            self._kept.pop(key, None)
        self._unused = set(self._kept)


class _Window(NamedTuple):
    file: File
    view: memoryview


def _mapped(file: File, offset: int) -> memoryview | None:
    try:
        length = min(WINDOW_BYTES, os.fstat(file.fd).st_size - offset)
        if length <= 0:
            return None
        return memoryview(mmap.mmap(file.fd, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset))
    except (OSError, ValueError):
        return None  # no mapping or descriptor is left, of which it takes one each; or the file was cut just now


WINDOWS = Windows()
