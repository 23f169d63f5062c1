"""What the generated codecs call where straight-line code does not reach: varints, tagged fields, complaints.

Everything read here comes from a stranger. No function allocates by a length or count that the bytes only claim, and
what is wrong ends in MalformedRequest; IndexError and struct.error mean "ends early" and are translated by the caller.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from struct import Struct as Layout
from typing import Any, Protocol, TypeAlias, TypeGuard

from penstock.core.errors import MalformedRequest

MAX_STRING_BYTES = 32767

# How text that is not UTF-8 is decoded: a "?" for each wrong byte. Python's own "replace" puts three bytes for one, and
# a name that fitted into a string of the protocol would not fit into the answer that repeats it.
UNREADABLE = "penstock-unreadable"


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(UNREADABLE, _question_marks)


class RecordsSpan(Protocol):
    """Records that lie elsewhere, in a file for instance; whoever sends the response fetches them from there."""

    @property
    def length(self) -> int: ...


BytesLike: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = BytesLike | RecordsSpan


def is_bytes_like(item: Records) -> TypeGuard[BytesLike]:
    return isinstance(item, (bytes, bytearray, memoryview))


def records_length(records: Records) -> int:
    return len(records) if is_bytes_like(records) else records.length  # type: ignore[union-attr]


def unsigned_varint(value: int) -> bytes:
    if 16_383 < value < 2_097_152:  # what the records of most partitions in an answer are long
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Encoded varints by value: the small ones, which nearly all are, at the price of a dictionary lookup."""

    def __missing__(self, value: int) -> bytes:
        return unsigned_varint(value)


VARINTS = _Varints({value: unsigned_varint(value) for value in range(1024)})


def varint_tail(view: memoryview, at: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, over 127, is already read: its value and where it ends."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise MalformedRequest("a varint is longer than 5 bytes")


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    first = view[at]
    return (first, at + 1) if first < 128 else varint_tail(view, at + 1, first)


def tagged_fields(view: memoryview, at: int, size: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Tag, start and end of each of `count` tagged fields (KIP-482)."""
    if 2 * count > size - at:
        raise MalformedRequest(f"{count} tagged fields, but only {size - at} bytes are left")
    previous = -1
    for _ in range(count):
        tag, at = read_varint(view, at)
        length, at = read_varint(view, at)
        if tag <= previous:
            raise MalformedRequest(f"tag {tag} comes after tag {previous}")
        if length > size - at:
            raise MalformedRequest(f"tagged field {tag} has {length} bytes, but only {size - at} are left")
        yield tag, at, at + length
        at += length
        previous = tag


def skip_tagged_fields(view: memoryview, at: int, size: int, count: int) -> int:
    """Where the tagged fields end, none of which is known; `count` is the first byte of how many, just before `at`."""
    if count > 127:
        count, at = varint_tail(view, at, count)
    end = at
    for field in tagged_fields(view, at, size, count):
        _, _, end = field
    return end


def bad_count(where: str, count: int, left: int) -> MalformedRequest:
    if count == -1:
        return MalformedRequest(f"{where}: must not be null")
    if count < 0:
        return MalformedRequest(f"{where}: negative count {count}")
    return MalformedRequest(f"{where}: {count} elements, but only {left} bytes are left")


def bad_length(where: str, length: int, left: int) -> MalformedRequest:
    if length == -1:
        return MalformedRequest(f"{where}: must not be null")
    if length < 0 or length <= left:
        return MalformedRequest(f"{where}: invalid length {length}")
    return MalformedRequest(f"{where}: {length} bytes, but only {left} are left")


def bad_tagged_length(where: str, claimed: int, found: int) -> MalformedRequest:
    return MalformedRequest(f"{where}: tagged with {claimed} bytes, but has {found}")


class ArrayLayouts(dict[tuple[int, ...], tuple[Any, ...]]):
    """How to pack a run of numbers with arrays of numbers between them, by the lengths of those arrays (-1 is null).

    One `pack` for a whole partition of a Metadata response is what makes it quick: partitions of a cluster have few
    shapes. An entry holds the pack function and, for each array, its encoded count.
    """

    MAX_ENTRIES = 256

    def __init__(self, head: str, arrays: Sequence[tuple[str, str]], *, compact: bool) -> None:
        """`head` is the format before the first array; each array has the format of an element and of what follows."""
        super().__init__()
        self._head = head
        self._arrays = arrays
        self._compact = compact

    def __missing__(self, lengths: tuple[int, ...]) -> tuple[Any, ...]:
        formats = [">", self._head]
        counts = []
        for length, (element, after) in zip(lengths, self._arrays, strict=True):
            count = unsigned_varint(length + 1) if self._compact else length.to_bytes(4, "big", signed=True)
            elements = element * length if element.endswith("s") else f"{max(length, 0)}{element}"
            formats.append(f"{len(count)}s{elements}{after}")
            counts.append(count)
        entry = (Layout("".join(formats)).pack, *counts)
        if len(self) < self.MAX_ENTRIES:
            self[lengths] = entry
        return entry
