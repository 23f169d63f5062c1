"""A checksum of rows that stand in columns, in plain Python: the specification of the compiled form, and its stand-in.

Every row has a hash of 64 bits, and the checksum of rows is the sum of theirs, modulo 2^64. What must stay true:
- It depends on which rows there are and how often, not on their order, nor on how they are cut into parts.
- Null is not empty, and where one entry ends and the next begins is part of what is hashed.
- It is kept with what was written: rows have the same checksum in every later version, on every machine.

It tells a mistake, not an attack: whoever wants two sets of rows with the same checksum can make some.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from penstock.protocol.batch import ReadableBuffer

MASK = (1 << 64) - 1
SEED = 0x243F_6A88_85A3_08D3
MULTIPLIER = 0x9E37_79B9_7F4A_7C15
FINISHER = 0xD6E8_FEB8_6659_FD93
# Where a length or a count would stand, which are never that large.
NULL = MASK
PRESENT = 1

WORD_BYTES = 8
_INT64 = Struct("=q")
_OFFSETS = {4: Struct("=i"), 8: _INT64}


class Blobs(NamedTuple):
    """A column of bytes or of UTF-8. Entry i of the buffers is data[offsets[i]:offsets[i + 1]]."""

    validity: ReadableBuffer | None  # a bit an entry, from the lowest, 0 where it is null; None: none is null
    offsets: ReadableBuffer
    data: ReadableBuffer
    first: int = 0  # the entry that the first row has: a slice keeps the buffers of the whole
    offset_bytes: int = 4  # or 8


class Numbers(NamedTuple):
    """A column of int64."""

    validity: ReadableBuffer | None
    values: ReadableBuffer
    first: int = 0


class Pairs(NamedTuple):
    """A column of lists: row i has the entries offsets[i] to offsets[i + 1] of both `keys` and `values`."""

    validity: ReadableBuffer | None
    offsets: ReadableBuffer
    keys: Blobs
    values: Blobs
    first: int = 0
    offset_bytes: int = 4


class RowHashes:
    """Columns are added one after the other; their order is part of the hash, their names are not."""

    def __init__(self, rows: int) -> None:
        if rows < 0:
            raise ValueError(f"there cannot be {rows} rows")
        self._states = [SEED] * rows

    def add_same(self, entry: bytes | None) -> None:
        """A column that has the same in every row."""
        self._states = [_with_blob(state, entry) for state in self._states]

    def add_blobs(self, column: Blobs) -> None:
        self._states = [
            _with_blob(state, entry) for state, entry in zip(self._states, self._blobs(column), strict=True)
        ]

    def add_numbers(self, column: Numbers) -> None:
        rows = len(self._states)
        check_room(column.validity, column.values, column.first, rows, _INT64.size, ends=0)
        for row in range(rows):
            if _is_null(column.validity, column.first + row):
                self._states[row] = absorbed(self._states[row], NULL)
            else:
                (number,) = _INT64.unpack_from(column.values, (column.first + row) * _INT64.size)
                self._states[row] = absorbed(absorbed(self._states[row], PRESENT), number & MASK)

    def add_pairs(self, column: Pairs) -> None:
        rows = len(self._states)
        check_room(column.validity, column.offsets, column.first, rows, column.offset_bytes, ends=1)
        states = []
        for row, state in enumerate(self._states):
            if _is_null(column.validity, column.first + row):
                states.append(absorbed(state, NULL))
                continue
            start, end = _span(column.offsets, column.first + row, column.offset_bytes)
            check_span(start, end, None)
            keys, values = (list(_entries(each, start, end - start)) for each in (column.keys, column.values))
            state = absorbed(state, end - start)
            for key, value in zip(keys, values, strict=True):
                state = _with_blob(_with_blob(state, key), value)
            states.append(state)
        self._states = states

    def _blobs(self, column: Blobs) -> list[bytes | None]:
        return list(_entries(column, 0, len(self._states)))

    def total(self) -> int:
        return sum(map(finished, self._states)) & MASK


def absorbed(state: int, word: int) -> int:
    product = (state ^ word) * MULTIPLIER
    return product >> 64 ^ product & MASK


def finished(state: int) -> int:
    state ^= state >> 32
    state = state * FINISHER & MASK
    return state ^ state >> 29


def check_room(
    validity: ReadableBuffer | None, entries: ReadableBuffer, first: int, rows: int, entry_bytes: int, *, ends: int
) -> None:
    """`ends`: 1 for a buffer of offsets, which has one more than there are rows."""
    needed = (first + rows + ends) * entry_bytes if rows else 0
    if first < 0 or len(entries) < needed or (validity is not None and len(validity) * 8 < first + rows):
        raise ValueError(f"the buffers of a column end before row {rows}")


def check_span(start: int, end: int, size: int | None) -> None:
    if not 0 <= start <= end or (size is not None and end > size):
        raise ValueError(f"an entry cannot begin at {start} and end at {end}")


def _with_blob(state: int, entry: bytes | None) -> int:
    if entry is None:
        return absorbed(state, NULL)
    state = absorbed(state, len(entry))
    for at in range(0, len(entry), WORD_BYTES):
        state = absorbed(state, int.from_bytes(entry[at : at + WORD_BYTES], "little"))
    return state


def _entries(column: Blobs, start: int, count: int) -> Iterator[bytes | None]:
    first = column.first + start
    check_room(column.validity, column.offsets, first, count, column.offset_bytes, ends=1)
    data = memoryview(column.data)
    for entry in range(first, first + count):
        if _is_null(column.validity, entry):
            yield None
        else:
            begin, end = _span(column.offsets, entry, column.offset_bytes)
            check_span(begin, end, len(data))
            yield bytes(data[begin:end])


def _span(offsets: ReadableBuffer, entry: int, offset_bytes: int) -> tuple[int, int]:
    layout = _OFFSETS[offset_bytes]
    return (
        layout.unpack_from(offsets, entry * offset_bytes)[0],
        layout.unpack_from(offsets, (entry + 1) * offset_bytes)[0],
    )


def _is_null(validity: ReadableBuffer | None, entry: int) -> bool:
    return validity is not None and not validity[entry >> 3] >> (entry & 7) & 1
