"""Records sections byte by byte, right and wrong, and memory that tells who reads past one."""

from __future__ import annotations

import ctypes
import mmap

from penstock.protocol.records import _pure


def varint(value: int) -> bytes:
    out = bytearray()
    _pure._write_varint(out, value)
    return bytes(out)


def a_record(
    *,
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    key: bytes = b"\x01",  # -1: null
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
    length: int | None = None,
) -> bytes:
    """One record of a section, with fields given as they are encoded."""
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + key + value + headers
    return varint(len(body) if length is None else length) + body


class BeforeForbiddenPage:
    """The given bytes in memory, the last of them right before a page that must not be touched."""

    def __init__(self, data: bytes) -> None:
        page = mmap.PAGESIZE
        whole = (len(data) // page + 1) * page
        self.mapped = mmap.mmap(-1, whole + page)
        self.anchor = ctypes.c_char.from_buffer(self.mapped)
        self.guard = ctypes.c_void_p(ctypes.addressof(self.anchor) + whole)
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect
        self.protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.mapped[whole - len(data) : whole] = data
        self.view = memoryview(self.mapped)[whole - len(data) : whole]

    def __enter__(self) -> memoryview:
        assert self.protect(self.guard, mmap.PAGESIZE, 0) == 0
        return self.view

    def __exit__(self, *_: object) -> None:
        self.view.release()
        del self.anchor
        self.mapped.close()
