"""Records as columns in plain Python: the specification of the compiled form, and its stand-in.

A column is laid out as Arrow wants it in memory, in the machine's byte order, so that whoever has Arrow wraps it and
copies nothing. What must stay true:
- Nothing in a section is believed: what `validate` refuses is refused here with the same words, but that offsets may
  have gaps, since compaction leaves some.
- `add` takes all records that were asked for, or raises and takes none.
- The strings are UTF-8 whatever a producer wrote, since Arrow and Java trust them.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from penstock.protocol.batch import BatchHeader, ReadableBuffer
from penstock.protocol.records._pure import (
    INT64_MAX,
    OFFSET_WRONG,
    InvalidRecords,
    _Reader,
    _timestamp,
    headers_of,
)

# The offsets into a column are signed and have 32 bits.
MAX_COLUMN = 2**31 - 1


class Binary(NamedTuple):
    """Entry i is data[offsets[i]:offsets[i + 1]]."""

    validity: ReadableBuffer | None  # a bit an entry, from the lowest, 0 where it is null; None: none is null
    offsets: ReadableBuffer  # int32, one more than entries
    data: ReadableBuffer

    @property
    def entries(self) -> int:
        return len(self.offsets) // 4 - 1


class Headers(NamedTuple):
    """The headers of row i are the entries offsets[i] to offsets[i + 1] of both columns."""

    offsets: ReadableBuffer  # int32, one more than rows
    keys: Binary  # UTF-8, never null
    values: Binary


class Taken(NamedTuple):
    """Rows as columns, in buffers that nobody writes to any more."""

    rows: int
    offsets: ReadableBuffer  # int64
    timestamps: ReadableBuffer  # int64, milliseconds
    keys: Binary
    values: Binary
    headers: Headers | None  # None: they were not asked for


class _Column:
    __slots__ = ("_data", "_ends", "_nulls")

    def __init__(self) -> None:
        self._ends = array("i", (0,))
        self._data = bytearray()
        self._nulls: list[int] = []

    @property
    def entries(self) -> int:
        return len(self._ends) - 1

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, entry: bytes | None, limit: int) -> None:
        if self.entries >= limit or len(entry or b"") > limit - len(self._data):
            raise too_much(limit)
        if entry is None:
            self._nulls.append(self.entries)
        else:
            self._data += entry
        self._ends.append(len(self._data))

    def cut(self, entries: int) -> None:
        del self._ends[entries + 1 :]
        del self._data[self._ends[-1] :]
        self._nulls = [null for null in self._nulls if null < entries]

    def taken(self) -> Binary:
        return Binary(self._validity() if self._nulls else None, self._ends.tobytes(), bytes(self._data))

    def _validity(self) -> bytes:
        bits = (1 << self.entries) - 1 - sum(1 << null for null in self._nulls)
        return bits.to_bytes((self.entries + 7) // 8, "little")


def too_much(limit: int) -> OverflowError:
    return OverflowError(f"a column holds {limit} bytes and entries at most: take what is there, or add less at once")


class Columns:
    """Records of many batches as columns: for Arrow, without an object per record.

    A column of one Taken stays below 2 GiB, or below `limit`: bound what you add by `size`, or take when `add` raises
    OverflowError.
    """

    def __init__(self, *, with_headers: bool = True, limit: int = MAX_COLUMN) -> None:
        if not 0 < limit <= MAX_COLUMN:
            raise ValueError(f"a column's limit is 1 to {MAX_COLUMN}")
        self._with_headers = with_headers
        self._limit = limit
        self._begin()

    def _begin(self) -> None:
        self._offsets = array("q")
        self._timestamps = array("q")
        self._keys = _Column()
        self._values = _Column()
        self._header_ends = array("i", (0,))
        self._header_keys = _Column()
        self._header_values = _Column()

    @property
    def rows(self) -> int:
        return len(self._offsets)

    @property
    def size(self) -> int:
        """Bytes of keys, values and, where asked for, headers."""
        return self._keys.size + self._values.size + self._header_keys.size + self._header_values.size

    def add(self, section: ReadableBuffer, header: BatchHeader, first_offset: int, end_offset: int) -> None:
        """The records from `first_offset` on and below `end_offset`. `section`: those of a data batch, decompressed.

        Raises InvalidRecords, also for a bad record that was not asked for.
        """
        rows, header_entries = self.rows, self._header_keys.entries
        try:
            self._add(bytes(section), header, first_offset, end_offset)
        except BaseException:
            self._cut(rows, header_entries)
            raise

    def _add(self, section: bytes, header: BatchHeader, first_offset: int, end_offset: int) -> None:
        reader = _Reader(section)
        previous = -1
        for index in range(header.records_count):
            offset_delta, timestamp_delta, key, key_length, value, value_length, headers, headers_count = (
                reader.record()
            )
            offset = header.base_offset + offset_delta
            if not previous < offset_delta <= header.last_offset_delta or offset > INT64_MAX:
                raise InvalidRecords(index, OFFSET_WRONG)
            previous = offset_delta
            timestamp = header.max_timestamp
            if not header.is_log_append_time:
                timestamp = _timestamp(reader, header.base_timestamp, timestamp_delta)
            if first_offset <= offset < end_offset:
                self._keys.add(None if key_length < 0 else section[key : key + key_length], self._limit)
                self._values.add(None if value_length < 0 else section[value : value + value_length], self._limit)
                if self._with_headers:
                    self._add_headers(section, headers, headers_count)
                self._offsets.append(offset)
                self._timestamps.append(timestamp)
        reader.finish()

    def _add_headers(self, section: bytes, start: int, count: int) -> None:
        if count:
            for key, value in headers_of(section, start, count):
                self._header_keys.add(key.encode(), self._limit)
                self._header_values.add(value, self._limit)
        self._header_ends.append(self._header_keys.entries)

    def _cut(self, rows: int, header_entries: int) -> None:
        del self._offsets[rows:]
        del self._timestamps[rows:]
        self._keys.cut(rows)
        self._values.cut(rows)
        del self._header_ends[rows + 1 :]
        self._header_keys.cut(header_entries)
        self._header_values.cut(header_entries)

    def take(self) -> Taken:
        """What was added since the last time."""
        headers = None
        if self._with_headers:
            headers = Headers(self._header_ends.tobytes(), self._header_keys.taken(), self._header_values.taken())
        taken = Taken(
            self.rows,
            self._offsets.tobytes(),
            self._timestamps.tobytes(),
            self._keys.taken(),
            self._values.taken(),
            headers,
        )
        self._begin()
        return taken
