"""The record kernel in plain Python: for installs without a compiler, and the specification of the compiled one.

Both must accept the same bytes, refuse the same bytes with the same words, and give the same answers; one set of tests
runs over both. A records section is what follows a batch's header, decompressed. Nothing in it is believed: every
length is checked against what is left, and no memory is reserved for a count that the bytes cannot hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from penstock.protocol.batch import NO_TIMESTAMP, ReadableBuffer

MIN_RECORD_BYTES = 7  # length, attributes, timestamp and offset delta, key and value length, header count
SPAN_FIELDS = 8
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

ENDS_EARLY = "the batch ends before it"
FIELD_CUT = "a field runs past its end"
VARINT_TOO_LONG = "a varint is too long for its type"
LENGTH_WRONG = "its length does not fit into the batch"
KEY_WRONG = "the key's length does not fit into the record"
VALUE_WRONG = "the value's length does not fit into the record"
HEADERS_WRONG = "the number of headers does not fit into the record"
HEADER_KEY_WRONG = "a header's key is null or does not fit into the record"
HEADER_VALUE_WRONG = "a header's value does not fit into the record"
BYTES_LEFT_IN_RECORD = "its fields end before its length says"
OFFSET_NOT_NEXT = "its offset delta is not one above the record before it"
TIMESTAMP_OVERFLOW = "its timestamp does not fit into 64 bits"
BYTES_LEFT_IN_BATCH = "bytes follow the last record"
OFFSET_WRONG = "its offset delta is not above the record before it, or beyond the batch"


class Record(NamedTuple):
    """What a producer gives; `timestamp` in epoch milliseconds, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = NO_TIMESTAMP


class RecordsInfo(NamedTuple):
    """What `validate` learned on its way. The minimum leaves out records without a timestamp (-1)."""

    min_timestamp: int
    max_timestamp: int
    offset_delta_of_min: int
    offset_delta_of_max: int
    first_without_key: int  # its offset delta; -1: every record has a key


class InvalidRecords(ValueError):
    """`index` is the record's place in its batch, from 0."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"record {index}: {reason}")
        self.index = index
        self.reason = reason


class _Reader:
    """Where we are in the section, and how far the current record reaches."""

    __slots__ = ("at", "data", "end", "index")

    def __init__(self, data: bytes, at: int = 0, index: int = 0) -> None:
        self.data = data
        self.at = at
        self.end = len(data)
        self.index = index

    def broken(self, reason: str) -> InvalidRecords:
        return InvalidRecords(self.index, reason)

    def _unsigned(self, max_bytes: int, max_last: int) -> int:
        value = 0
        for position in range(max_bytes):
            if self.at >= self.end:
                raise self.broken(FIELD_CUT)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if position == max_bytes - 1 and byte > max_last:
                    break
                return value
        raise self.broken(VARINT_TOO_LONG)

    def varint(self) -> int:
        raw = self._unsigned(5, 0x0F)
        return (raw >> 1) ^ -(raw & 1)

    def varlong(self) -> int:
        raw = self._unsigned(10, 0x01)
        return (raw >> 1) ^ -(raw & 1)

    def span(self, at_least: int, reason: str) -> tuple[int, int]:
        """Start and length of a length-prefixed field, which is then behind us."""
        length = self.varint()
        start = self.at
        if not at_least <= length <= self.end - start:
            raise self.broken(reason)
        self.at = start + max(length, 0)
        return start, length

    def headers_count(self) -> int:
        count = self.varint()
        if not 0 <= count <= self.end - self.at:
            raise self.broken(HEADERS_WRONG)
        return count

    def record(self) -> tuple[int, int, int, int, int, int, int, int]:
        """One row of `spans`; the record is then behind us."""
        section_end = self.end
        if self.at >= section_end:
            raise self.broken(ENDS_EARLY)
        length = self.varint()
        if not 0 <= length <= section_end - self.at:
            raise self.broken(LENGTH_WRONG)
        self.end = self.at + length
        if length == 0:
            raise self.broken(FIELD_CUT)
        self.at += 1  # attributes: none are defined
        timestamp_delta = self.varlong()
        offset_delta = self.varint()
        key_start, key_length = self.span(-1, KEY_WRONG)
        value_start, value_length = self.span(-1, VALUE_WRONG)
        headers_count = self.headers_count()
        headers_start = self.at
        for _ in range(headers_count):
            self.span(0, HEADER_KEY_WRONG)
            self.span(-1, HEADER_VALUE_WRONG)
        if self.at != self.end:
            raise self.broken(BYTES_LEFT_IN_RECORD)
        self.end = section_end
        self.index += 1
        return (
            offset_delta, timestamp_delta, key_start, key_length, value_start, value_length, headers_start,
            headers_count,
        )  # fmt: skip

    def finish(self) -> None:
        if self.at != self.end:
            self.index -= 1
            raise self.broken(BYTES_LEFT_IN_BATCH)


def _timestamp(reader: _Reader, base_timestamp: int, delta: int) -> int:
    timestamp = base_timestamp + delta
    if not INT64_MIN <= timestamp <= INT64_MAX:
        raise InvalidRecords(reader.index - 1, TIMESTAMP_OVERFLOW)
    return timestamp


def validate(records: ReadableBuffer, count: int, base_timestamp: int) -> RecordsInfo:
    """Checks every byte of what a producer sent: `count` whole records with offset deltas 0, 1, 2, ..."""
    reader = _Reader(bytes(records))
    min_timestamp, max_timestamp = INT64_MAX, INT64_MIN
    delta_of_min = delta_of_max = 0
    first_without_key = -1
    for index in range(count):
        offset_delta, timestamp_delta, _, key_length, *_ = reader.record()
        if offset_delta != index:
            raise InvalidRecords(index, OFFSET_NOT_NEXT)
        timestamp = _timestamp(reader, base_timestamp, timestamp_delta)
        if timestamp > max_timestamp:
            max_timestamp, delta_of_max = timestamp, index
        if timestamp < min_timestamp and timestamp != NO_TIMESTAMP:
            min_timestamp, delta_of_min = timestamp, index
        if key_length < 0 and first_without_key < 0:
            first_without_key = index
    reader.finish()
    if min_timestamp == INT64_MAX:
        min_timestamp = NO_TIMESTAMP
    if count <= 0:
        max_timestamp = NO_TIMESTAMP
    return RecordsInfo(min_timestamp, max_timestamp, delta_of_min, delta_of_max, first_without_key)


def spans(records: ReadableBuffer, count: int) -> array[int]:
    """Eight numbers a record: offset_delta, timestamp_delta, key_start, key_length, value_start, value_length,
    headers_start, headers_count. Starts count from the section's first byte; a length of -1 is null."""
    reader = _Reader(bytes(records))
    rows = array("q")
    for _ in range(count):
        rows.extend(reader.record())
    reader.finish()
    return rows


def headers_of(records: ReadableBuffer, start: int, count: int) -> list[tuple[str, bytes | None]]:
    """The headers that a row of `spans` points to. A key that is not UTF-8 is shown with replacement characters."""
    data = bytes(records)
    if not 0 <= start <= len(data) or not 0 <= count <= len(data) - start:
        raise InvalidRecords(-1, HEADERS_WRONG)
    reader = _Reader(data, start, index=-1)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key_start, key_length = reader.span(0, HEADER_KEY_WRONG)
        value_start, value_length = reader.span(-1, HEADER_VALUE_WRONG)
        key = data[key_start : key_start + key_length].decode(errors="replace")
        headers.append((key, None if value_length < 0 else data[value_start : value_start + value_length]))
    return headers


def find_timestamp(
    records: ReadableBuffer, count: int, base_offset: int, base_timestamp: int, target_ms: int
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after `target_ms`."""
    reader = _Reader(bytes(records))
    for _ in range(count):
        offset_delta, timestamp_delta, *_ = reader.record()
        timestamp = _timestamp(reader, base_timestamp, timestamp_delta)
        if timestamp >= target_ms:
            return base_offset + offset_delta, timestamp
    return None


def _delta(timestamp: int, base_timestamp: int) -> int:
    delta = timestamp - base_timestamp
    if not INT64_MIN <= delta <= INT64_MAX:
        raise OverflowError(f"timestamp {timestamp} is too far from {base_timestamp}")
    return delta


def _write_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1
        return
    _write_varint(out, len(value))
    out += value


def encode_records(records: Sequence[Record], base_timestamp: int) -> bytearray:
    """The records section of a batch, with offset deltas 0, 1, 2, ..."""
    section = bytearray()
    for offset_delta, (key, value, headers, timestamp) in enumerate(records):
        body = bytearray(1)  # attributes
        _write_varint(body, _delta(timestamp, base_timestamp))
        _write_varint(body, offset_delta)
        _write_bytes(body, key)
        _write_bytes(body, value)
        _write_varint(body, len(headers))
        for header_key, header_value in headers:
            _write_bytes(body, header_key.encode())
            _write_bytes(body, header_value)
        _write_varint(section, len(body))
        section += body
    return section
