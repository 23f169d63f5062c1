"""Rows that stand in columns gathered into record batches, in plain Python: the specification of the compiled form.

Every row becomes a record of the batch that is open for its partition: the one that the row asks for, else the one that
Java's producer chooses by murmur2 of the key, else the one that keyless rows stick to until its batch is taken.

What must stay true:
- Rows of a partition keep their order, and each is in one batch.
- A batch of several records has no more than `batch_bytes`, with its header and before it is compressed; a row that is
  larger has a batch for itself, and one whose batch is above `max_bytes` is refused.
- Gathering stops when all open batches together have `open_bytes`, so no more is held than that and one row.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.protocol.batch import HEADER_BYTES, ReadableBuffer
from penstock.protocol.records._pure import _delta, _write_bytes, _write_varint
from penstock.protocol.records._pure_checksum import (
    Blobs,
    Numbers,
    Pairs,
    _entries,
    _is_null,
    _span,
    check_room,
    check_span,
)

_INT64_BYTES = 8
_SEED = 0x9747_B28C
_MULTIPLIER = 0x5BD1_E995
_UINT32 = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF
_NONE_FULL = -1


class RowColumns(NamedTuple):
    """A column that is not there is None, and as if it were null everywhere."""

    rows: int
    values: Blobs
    keys: Blobs | None = None
    partitions: Numbers | None = None
    headers: Pairs | None = None
    timestamps_ms: Numbers | None = None  # null: the time of writing


class Gathered(NamedTuple):
    """`batch` can be written to: its header, which is still zeros, and the records."""

    batch: memoryview
    rows: int
    base_timestamp: int
    max_timestamp: int


class TooLarge(ValueError):
    """A row whose batch has more than `max_bytes`."""

    def __init__(self, row: int, size: int) -> None:
        super().__init__(f"row {row} makes a batch of {size} bytes")
        self.row = row
        self.size = size


def murmur2(key: ReadableBuffer) -> int:
    """As Kafka's, without the sign."""
    data = bytes(key)
    state = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MULTIPLIER & _UINT32
        state = state * _MULTIPLIER & _UINT32 ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _UINT32
    state = (state ^ state >> 13) * _MULTIPLIER & _UINT32
    return (state ^ state >> 15) & _POSITIVE


class _Open:
    """The batch that a partition's rows go into."""

    __slots__ = ("base_timestamp", "batch", "count", "max_timestamp")

    def __init__(self) -> None:
        self.batch = bytearray(HEADER_BYTES)
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = 0


class Gathering:
    """Of one topic. `sticky` is the partition that the first keyless rows go to."""

    def __init__(self, partitions: int, *, batch_bytes: int, max_bytes: int, open_bytes: int, sticky: int = 0) -> None:
        check_limits(partitions, batch_bytes, max_bytes, open_bytes, sticky)
        self._open = [_Open() for _ in range(partitions)]
        self._batch_bytes = batch_bytes
        self._max_bytes = max_bytes
        self._open_bytes = open_bytes
        self._sticky = sticky
        self.size = 0
        self.full = _NONE_FULL

    @property
    def partitions(self) -> int:
        return len(self._open)

    def widen(self, partitions: int) -> None:
        """The topic has more partitions than it had."""
        self._open += [_Open() for _ in range(partitions - len(self._open))]

    def add(self, rows: RowColumns, start: int, now_ms: int) -> int:
        """Takes rows from `start` on, and returns the first that it did not take: `rows.rows` when it took all.

        It stops before a row that does not fit into the batch of its partition, which is `full` then; or behind the one
        that brought `size` to `open_bytes`, and `full` is -1. Raises TooLarge.
        """
        self.full = _NONE_FULL
        check_start(start, rows.rows)
        values, keys = _blobs(rows.values, rows.rows), _blobs(rows.keys, rows.rows)
        partitions, times = _numbers(rows.partitions, rows.rows), _numbers(rows.timestamps_ms, rows.rows)
        headers = _headers(rows.headers, rows.rows)
        for row in range(start, rows.rows):
            wanted, time_ms = partitions[row], times[row]
            partition = self._partition_of(wanted, keys[row])
            one = self._open[partition]
            timestamp = now_ms if time_ms is None else time_ms
            base = one.base_timestamp if one.count else timestamp
            record = _record(_delta(timestamp, base), one.count, keys[row], values[row], headers[row])
            if one.count and len(one.batch) + len(record) > self._batch_bytes:
                self.full = partition
                return row
            if HEADER_BYTES + len(record) > self._max_bytes:
                raise TooLarge(row, HEADER_BYTES + len(record))
            one.batch += record
            one.max_timestamp = max(one.max_timestamp, timestamp) if one.count else timestamp
            one.base_timestamp = base
            one.count += 1
            self.size += len(record)
            if self.size >= self._open_bytes:
                return row + 1
        return rows.rows

    def _partition_of(self, wanted: int | None, key: bytes | None) -> int:
        if wanted is not None:
            check_partition(wanted, len(self._open))
            return wanted
        return self._sticky if key is None else murmur2(key) % len(self._open)

    def waiting(self) -> list[int]:
        """Partitions that have rows."""
        return [partition for partition, one in enumerate(self._open) if one.count]

    def take(self, partition: int) -> Gathered:
        """What `partition` has, of which there is something. Keyless rows then go to the next one."""
        check_partition(partition, len(self._open))
        taken = self._open[partition]
        if not taken.count:
            raise ValueError(f"there is nothing for partition {partition}")
        self._open[partition] = _Open()
        self.size -= len(taken.batch) - HEADER_BYTES
        if partition == self._sticky:
            self._sticky = (partition + 1) % len(self._open)
        return Gathered(memoryview(taken.batch), taken.count, taken.base_timestamp, taken.max_timestamp)


def check_limits(partitions: int, batch_bytes: int, max_bytes: int, open_bytes: int, sticky: int) -> None:
    if not 0 <= sticky < partitions:
        raise ValueError(f"there is no partition {sticky} of {partitions}")
    if not all(0 < limit <= _POSITIVE for limit in (batch_bytes, max_bytes, open_bytes)):
        raise ValueError(f"a limit is 1 to {_POSITIVE}")


def check_partition(partition: int, partitions: int) -> None:
    if not 0 <= partition < partitions:
        raise ValueError(f"there is no partition {partition} of {partitions}")


def check_start(start: int, rows: int) -> None:
    if not 0 <= start <= rows:
        raise ValueError(f"there is no row {start} of {rows}")


def null_header_key() -> ValueError:
    return ValueError("a header's key is null")


def _record(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[bytes | None, bytes | None]],
) -> bytearray:
    body = bytearray(1)  # attributes
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    _write_varint(body, len(headers))
    for header_key, header_value in headers:
        if header_key is None:
            raise null_header_key()
        _write_bytes(body, header_key)
        _write_bytes(body, header_value)
    record = bytearray()
    _write_varint(record, len(body))
    return record + body


def _blobs(column: Blobs | None, rows: int) -> list[bytes | None]:
    return [None] * rows if column is None else list(_entries(column, 0, rows))


def _numbers(column: Numbers | None, rows: int) -> list[int | None]:
    if column is None:
        return [None] * rows
    check_room(column.validity, column.values, column.first, rows, _INT64_BYTES, ends=0)
    numbers = memoryview(column.values).cast("B").cast("q") if rows else memoryview(b"").cast("q")
    return [
        None if _is_null(column.validity, entry) else numbers[entry]
        for entry in range(column.first, column.first + rows)
    ]


def _headers(column: Pairs | None, rows: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    if column is None:
        return [[] for _ in range(rows)]
    check_room(column.validity, column.offsets, column.first, rows, column.offset_bytes, ends=1)
    found: list[list[tuple[bytes | None, bytes | None]]] = []
    for row in range(column.first, column.first + rows):
        if _is_null(column.validity, row):
            found.append([])
            continue
        start, end = _span(column.offsets, row, column.offset_bytes)
        check_span(start, end, None)
        keys, values = (_entries(each, start, end - start) for each in (column.keys, column.values))
        found.append(list(zip(keys, values, strict=True)))
    return found
