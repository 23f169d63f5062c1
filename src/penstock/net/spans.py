"""Sending a stretch of a file: from the page cache to the client, without a copy in this process.

Two ways, because what is cheapest depends on where the client is. To another machine, sendfile hands pages to the
network card and nobody copies. To a client on this machine the kernel has to copy anyway; sendfile gives it 64 KiB at a
time and wakes the client for each, which took half of the broker's time. There, sending from a mapping of the file is a
third faster for a quarter less processor time (fetch-1m beside fetch-1m-sendfile in docs/performance.md).
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Protocol

# What one call maps at most. The socket seldom takes more at once, and memory that is mapped counts as resident.
MAX_MAPPED_BYTES = 1024 * 1024


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


def send_span(sock: socket.socket, span: FileSpan, *, to_this_machine: bool, more_follows: bool) -> int:
    """How many bytes of the span the socket took, at least one."""
    mapped = _map(span) if to_this_machine else None
    if mapped is not None:
        # A few bytes by themselves behind the span would wake the client a second time.
        flags = socket.MSG_MORE if more_follows else 0
        return _send_mapped(sock, mapped, span.position % mmap.ALLOCATIONGRANULARITY, flags)
    sent = os.sendfile(sock.fileno(), span.file.fd, span.position, span.length)
    if sent == 0:
        raise OSError(0, "file ended inside a response")
    return sent


def _map(span: FileSpan) -> mmap.mmap | None:
    """The start of the span and what stands before it on its page; None where nothing more can be mapped."""
    before = span.position % mmap.ALLOCATIONGRANULARITY
    length = before + min(span.length, MAX_MAPPED_BYTES)
    # All page-table entries at once: as faults they would cost more than the copying.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    try:
        return mmap.mmap(span.file.fd, length, flags, mmap.PROT_READ, offset=span.position - before)
    except (OSError, ValueError):
        # No mapping is left, or no descriptor, of which a mapping takes one: sendfile needs neither. Or the file is too
        # short: sendfile finds that out as well.
        return None


def _send_mapped(sock: socket.socket, mapped: mmap.mmap, start: int, flags: int) -> int:
    # Only the kernel may read the mapping: should the file be cut meanwhile, it says EFAULT where we would get SIGBUS.
    with mapped, memoryview(mapped) as whole, whole[start:] as content:
        return sock.send(content, flags)
