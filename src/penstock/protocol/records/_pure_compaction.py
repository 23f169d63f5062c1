"""Compaction's work on records in plain Python: the specification of the compiled one, and its stand-in.

Two passes. The first notes for every key the offset of its last record, in a map of bounded size. The second copies
the batches: of what lies below `clean_end`, a record stays if it has a key, if the map knows no later record of that
key, and if it is not a tombstone whose time has come. What must stay true:
- Offsets never change. A batch keeps its base offset, last offset delta and sequence numbers whatever it loses.
- A tombstone stays until its batch's delete horizon, which is written down when the batch is first cleaned (KIP-534):
  attribute bit 6 says that the base timestamp is the horizon, and the records' timestamp deltas count from it.
- Nothing is believed that a CRC does not cover.

Batches that are compressed, or that belong to a transaction, are left to the caller: both passes stop in front of them.
Markers, of which there is one record in a batch, have no compiled form.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from penstock.protocol.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    MIN_BATCH_LENGTH,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
    ReadableBuffer,
    assemble,
    crc_is_valid,
    read_header,
)
from penstock.protocol.records._pure import (
    MIN_RECORD_BYTES,
    OFFSET_WRONG,
    InvalidRecords,
    _Reader,
    _write_varint,
)

SLOT_BYTES = 24
# How much a record's length and timestamp delta may grow when they count from a delete horizon.
GROWTH_BYTES = 11

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_MASK_64 = 2**64 - 1


class Stop(IntEnum):
    """Why a pass came back; the position it gives is that of the batch it did not take."""

    CUT = 0  # the rest is not a whole batch
    COMPRESSED = 1
    TRANSACTIONAL = 2
    MAP_FULL = 3
    NO_ROOM = 4  # for what the batch may become


class FilteredRecords(NamedTuple):
    """What is left of a batch, and what its header must then say."""

    section: bytearray
    records_count: int
    attributes: int
    base_timestamp: int
    max_timestamp: int


class OffsetMap:
    """Key to offset, by a keyed 128-bit hash of the key. `limit` is below `slots`; compiled, a slot has 24 bytes.

    The hash has a key so that nobody who may choose record keys can choose two that collide.
    """

    __slots__ = ("_hash_key", "_offsets", "limit", "slots")

    def __init__(self, slots: int, limit: int, hash_key: bytes) -> None:
        if not 0 < limit < slots or len(hash_key) != 16:
            raise ValueError("a map needs a free slot and a hash key of 16 bytes")
        self.slots = slots
        self.limit = limit
        self._hash_key = hash_key
        self._offsets: dict[bytes, int] = {}

    @property
    def entries(self) -> int:
        return len(self._offsets)

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._hash_key).digest()

    def get(self, key: bytes) -> int:
        """-1: there is none."""
        return self._offsets.get(self._hash(key), -1)

    def put(self, key: bytes, offset: int) -> bool:
        """False: it is full, and the key is not in it."""
        hashed = self._hash(key)
        if hashed not in self._offsets and len(self._offsets) >= self.limit:
            return False
        self._offsets[hashed] = offset
        return True


def _whole_batch(view: memoryview, position: int, end: int) -> BatchHeader | None:
    """None when the batch at `position` does not end before `end`."""
    if end - position < HEADER_BYTES:
        return None
    header = read_header(view, position)
    if header.magic != MAGIC or header.batch_length < MIN_BATCH_LENGTH or header.last_offset_delta < 0:
        raise CorruptBatch(position, "the header makes no sense")
    return header if header.size <= end - position else None


def _check(view: memoryview, position: int, header: BatchHeader) -> None:
    if not 0 <= header.records_count <= (header.size - HEADER_BYTES) // MIN_RECORD_BYTES:
        raise CorruptBatch(position, f"{header.records_count} records do not fit into it")
    if not crc_is_valid(view, position, header):
        raise CorruptBatch(position, "the CRC-32C is wrong")


def _left_to_the_caller(header: BatchHeader) -> Stop | None:
    if header.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
        return Stop.TRANSACTIONAL
    return Stop.COMPRESSED if header.attributes & CODEC_MASK else None


def add_batches(
    offset_map: OffsetMap, source: ReadableBuffer, start: int, end: int, from_offset: int
) -> tuple[int, int]:
    """Notes the records at and behind `from_offset`. Where it stopped, and why. Raises CorruptBatch.

    When the map is full, keys of the batch it stopped at may be in it: their records are in the log, so they count.
    """
    view = memoryview(source)
    position = start
    while (header := _whole_batch(view, position, end)) is not None:
        if header.last_offset >= from_offset:
            stop = _left_to_the_caller(header)
            if stop is not None:
                return position, stop
            _check(view, position, header)
            section = view[position + HEADER_BYTES : position + header.size]
            try:
                is_added = add_records(offset_map, section, header, from_offset)
            except InvalidRecords as invalid:
                raise CorruptBatch(position, str(invalid)) from None
            if not is_added:
                return position, Stop.MAP_FULL
        position += header.size
    return position, Stop.CUT


def add_records(offset_map: OffsetMap, section: ReadableBuffer, header: BatchHeader, from_offset: int) -> bool:
    """False: the map is full. `section` is decompressed. Raises InvalidRecords."""
    data = bytes(section)
    reader = _Reader(data)
    previous = -1
    for index in range(header.records_count):
        offset_delta, _, key, key_length, *_ = reader.record()
        if not previous < offset_delta <= header.last_offset_delta:
            raise InvalidRecords(index, OFFSET_WRONG)
        previous = offset_delta
        offset = header.base_offset + offset_delta
        if key_length < 0 or offset < from_offset:
            continue
        if not offset_map.put(data[key : key + key_length], offset):
            return False
    reader.finish()
    return True


def pass_over(offset_map: OffsetMap, source: ReadableBuffer, start: int, end: int) -> int:
    """Instead of a second pass, for who only reads: where the first batch begins that may have to be looked at. Those
    before it have later records for all their keys.
    """
    view = memoryview(source)
    position = start
    try:
        while (header := _whole_batch(view, position, end)) is not None:
            section = view[position + HEADER_BYTES : position + header.size]
            if _left_to_the_caller(header) is not None or not _is_superseded(offset_map, section, header):
                break
            position += header.size
    except CorruptBatch:
        pass  # whoever looks at it says why
    return position


def end_offset(source: ReadableBuffer) -> int:
    """Behind the last whole batch, of those before the first that makes no sense; -1: there is none."""
    view = memoryview(source)
    position, next_offset = 0, -1
    try:
        while (header := _whole_batch(view, position, len(view))) is not None:
            position += header.size
            next_offset = header.next_offset
    except CorruptBatch:
        pass
    return next_offset


def _is_superseded(offset_map: OffsetMap, section: memoryview, header: BatchHeader) -> bool:
    data = bytes(section)
    reader = _Reader(data)
    try:
        for _ in range(header.records_count):
            offset_delta, _, key, key_length, *_ = reader.record()
            if key_length < 0 or offset_map.get(data[key : key + key_length]) <= header.base_offset + offset_delta:
                return False
    except InvalidRecords:
        return False
    return header.records_count >= 0


class Rewriter:
    """The second pass over the segments that become one, and that one's indexes.

    `kept_offsets`, ascending, are the last offsets of batches that stay even when they lose all their records. From
    batches at or above `removable_end` no tombstone goes.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        base_offset: int,
        index_interval_bytes: int,
        clean_end: int,
        now_ms: int,
        delete_retention_ms: int,
        kept_offsets: array[int],
        removable_end: int = 2**63 - 1,
    ) -> None:
        self.size = 0
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        self.records_read = 0
        self.records_kept = 0
        self._map = offset_map
        self._base_offset = base_offset
        self._index_interval_bytes = index_interval_bytes
        self._clean_end = clean_end
        self._now_ms = now_ms
        self._removable_end = removable_end
        self._horizon_ms = min(now_ms + delete_retention_ms, 2**63 - 1)
        self._kept_offsets = kept_offsets
        self._since_entry = 0
        self._last_time_entry = -1
        self._offset_index = bytearray()
        self._time_index = bytearray()

    def rewrite(
        self, source: ReadableBuffer, start: int, end: int, out: bytearray | memoryview, out_at: int
    ) -> tuple[int, int, int]:
        """Where it stopped in `source` and in `out`, and why. Raises CorruptBatch."""
        view, target = memoryview(source), memoryview(out)
        position = start
        while (header := _whole_batch(view, position, end)) is not None:
            is_clean = header.base_offset < self._clean_end
            stop = _left_to_the_caller(header) if is_clean else None
            if stop is not None:
                return position, out_at, stop
            _check(view, position, header)
            if len(target) - out_at < header.size + GROWTH_BYTES * header.records_count:
                return position, out_at, Stop.NO_ROOM
            source_batch = view[position : position + header.size]
            batch = self._cleaned(source_batch, header, position) if is_clean else source_batch
            if len(batch):
                target[out_at : out_at + len(batch)] = batch
                out_at += len(batch)
                self.placed(read_header(batch))
            position += header.size
        return position, out_at, Stop.CUT

    def _cleaned(self, batch: memoryview, header: BatchHeader, position: int) -> ReadableBuffer:
        try:
            filtered = self.filter_records(batch[HEADER_BYTES:], header)
        except InvalidRecords as invalid:
            raise CorruptBatch(position, str(invalid)) from None
        if filtered is None:
            return batch
        if not filtered.records_count and not self.keeps_empty(header):
            return b""
        return assemble(with_records(header, filtered, len(filtered.section)), filtered.section)

    def keeps_empty(self, header: BatchHeader) -> bool:
        at = bisect_left(self._kept_offsets, header.last_offset)
        return at < len(self._kept_offsets) and self._kept_offsets[at] == header.last_offset

    def filter_records(self, section: ReadableBuffer, header: BatchHeader) -> FilteredRecords | None:
        """What stays of a batch below `clean_end`; None when the batch stays as it is. Raises InvalidRecords."""
        data = bytes(section)
        has_horizon = bool(header.attributes & DELETE_HORIZON_BIT)
        tombstones_stay = (
            not has_horizon or self._now_ms < header.base_timestamp or header.last_offset >= self._removable_end
        )
        kept: list[tuple[int, int, int]] = []
        tombstones = 0
        reader = _Reader(data)
        previous = -1
        for index in range(header.records_count):
            start = reader.at
            offset_delta, timestamp_delta, key, key_length, _, value_length, *_ = reader.record()
            if not previous < offset_delta <= header.last_offset_delta:
                raise InvalidRecords(index, OFFSET_WRONG)
            previous = offset_delta
            if key_length < 0 or (value_length < 0 and not tombstones_stay):
                continue
            if header.base_offset + offset_delta >= self._map.get(data[key : key + key_length]):
                kept.append((start, reader.at, timestamp_delta))
                tombstones += value_length < 0
        reader.finish()
        self.records_read += header.records_count
        self.records_kept += len(kept)
        if not kept:
            return _nothing(header)
        sets_horizon = tombstones > 0 and not has_horizon
        if len(kept) == header.records_count and not sets_horizon:
            return None
        return _rewritten(data, header, kept, self._horizon_ms if sets_horizon else None)

    def placed(self, header: BatchHeader) -> None:
        """A batch stands behind the others in the new segment."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = header.max_timestamp, header.last_offset
        if self._since_entry > self._index_interval_bytes:
            self._offset_index += _OFFSET_ENTRY.pack(header.last_offset - self._base_offset, self.size)
            self._add_time_entry()
            self._since_entry = 0
        self._since_entry += header.size
        self.size += header.size

    def _add_time_entry(self) -> None:
        if self.max_timestamp > self._last_time_entry:
            self._time_index += _TIME_ENTRY.pack(self.max_timestamp, self.offset_of_max_timestamp - self._base_offset)
            self._last_time_entry = self.max_timestamp

    def indexes(self) -> tuple[bytes, bytes]:
        """The files of the new segment, which is complete: offsets, and timestamps with the entry that closes them."""
        self._add_time_entry()
        return bytes(self._offset_index), bytes(self._time_index)


def with_records(header: BatchHeader, filtered: FilteredRecords, section_bytes: int) -> BatchHeader:
    """The header of the same batch with what is left of its records, which take `section_bytes`."""
    return header._replace(
        batch_length=HEADER_BYTES - LENGTH_END + section_bytes,
        attributes=filtered.attributes,
        base_timestamp=filtered.base_timestamp,
        max_timestamp=filtered.max_timestamp,
        records_count=filtered.records_count,
    )


def without_records(header: BatchHeader) -> bytearray:
    """The batch that stays for its offsets and sequence numbers."""
    return assemble(with_records(header, _nothing(header), 0), b"")


def with_delete_horizon(batch: ReadableBuffer, header: BatchHeader, horizon_ms: int) -> bytearray:
    """An uncompressed batch with all its records, which are kept until then. Raises InvalidRecords."""
    data = bytes(memoryview(batch)[HEADER_BYTES : header.size])
    reader = _Reader(data)
    kept = []
    for _ in range(header.records_count):
        start = reader.at
        timestamp_delta = reader.record()[1]
        kept.append((start, reader.at, timestamp_delta))
    reader.finish()
    filtered = _rewritten(data, header, kept, horizon_ms)
    return assemble(with_records(header, filtered, len(filtered.section)), filtered.section)


def _nothing(header: BatchHeader) -> FilteredRecords:
    """As Kafka writes it: no codec, no horizon, but the largest timestamp as it was."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return FilteredRecords(bytearray(), 0, attributes, NO_TIMESTAMP, header.max_timestamp)


def _rewritten(
    data: bytes, header: BatchHeader, kept: list[tuple[int, int, int]], horizon_ms: int | None
) -> FilteredRecords:
    section = bytearray()
    max_timestamp = max(_wrapped(header.base_timestamp + delta) for _, _, delta in kept)
    if header.is_log_append_time:
        max_timestamp = header.max_timestamp
    if horizon_ms is None:
        for start, end, _ in kept:
            section += data[start:end]
        return FilteredRecords(section, len(kept), header.attributes, header.base_timestamp, max_timestamp)
    for start, end, delta in kept:
        _write_from_horizon(section, data, start, end, _wrapped(header.base_timestamp + delta - horizon_ms))
    attributes = header.attributes | DELETE_HORIZON_BIT
    return FilteredRecords(section, len(kept), attributes, horizon_ms, max_timestamp)


def _write_from_horizon(section: bytearray, data: bytes, start: int, end: int, delta: int) -> None:
    reader = _Reader(data, start)
    reader.varint()
    attributes = data[reader.at]
    reader.at += 1
    reader.varlong()
    body = bytearray((attributes,))
    _write_varint(body, delta)
    body += data[reader.at : end]
    _write_varint(section, len(body))
    section += body


def _wrapped(number: int) -> int:
    """As 64 bits have it."""
    number &= _MASK_64
    return number - 2**64 if number >= 2**63 else number
