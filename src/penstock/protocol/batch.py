"""Record batch format v2: the 61 bytes in front of every batch, which are all that most of the broker looks at.

A batch has the same bytes on the wire, on disk and in a replica. Only what lies outside the CRC (base offset, length,
partition leader epoch) may be changed in place for nothing; whoever changes anything after it computes the CRC anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from crc32c_rs import crc32c

# base_offset, batch_length, partition_leader_epoch, magic, crc | attributes, last_offset_delta, base_timestamp,
# max_timestamp, producer_id, producer_epoch, base_sequence, records_count. The CRC covers what follows the bar.
HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_END = 12  # batch_length counts what comes after itself
MAGIC_AT = 16
CRC_AT = 17
CRC_START = 21
MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_END
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
# The base timestamp is the time until which compaction keeps the batch's tombstones (KIP-534).
DELETE_HORIZON_BIT = 0x40

NO_TIMESTAMP = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1

_BASE_OFFSET = Struct(">q")
_BATCH_LENGTH = Struct(">i")
_BATCH_LENGTH_AT = 8
_LEADER_EPOCH = Struct(">i")
_LEADER_EPOCH_AT = 12
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_MAX_TIMESTAMP_AT = 35

ReadableBuffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview


class Codec(IntEnum):
    """The compression of a batch's records, as in the low bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptBatch(ValueError):
    """Bytes that cannot be a batch, and where they begin."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no batch at byte {position}: {reason}")
        self.position = position
        self.reason = reason


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """A Codec, or 5 to 7, which are nobody's: a foreign file may hold them."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE  # after 2^31-1 comes 0


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """The caller has seen to it that 61 bytes are there; what they say is not checked."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def crc_is_valid(buffer: ReadableBuffer, position: int, header: BatchHeader) -> bool:
    """The caller has seen to it that the whole batch is there."""
    return crc32c(memoryview(buffer)[position + CRC_START : position + header.size]) == header.crc


def place(buffer: WritableBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: WritableBuffer, position: int, now_ms: int) -> None:
    """Every record of the batch now has the timestamp `now_ms`: readers take it from the header."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + CRC_START)
    _ATTRIBUTES.pack_into(buffer, position + CRC_START, attributes | LOG_APPEND_TIME_BIT)
    correct_max_timestamp(buffer, position, now_ms)


def correct_max_timestamp(buffer: WritableBuffer, position: int, max_timestamp: int) -> None:
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, max_timestamp)
    seal(buffer, position)


def seal(buffer: WritableBuffer, position: int) -> None:
    """Computes the CRC of a batch whose length is right."""
    (length,) = _BATCH_LENGTH.unpack_from(buffer, position + _BATCH_LENGTH_AT)
    covered = memoryview(buffer)[position + CRC_START : position + LENGTH_END + length]
    _CRC.pack_into(buffer, position + CRC_AT, crc32c(covered))


def assemble(header: BatchHeader, section: ReadableBuffer) -> bytearray:
    """The batch of a header, whose length is right, and a records section; the CRC is computed."""
    batch = bytearray(HEADER.pack(*header))
    batch += section
    seal(batch, 0)
    return batch


def split(buffer: ReadableBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """The whole batches of a Fetch answer, which may end inside a batch. The CRC is not checked."""
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if header.magic != MAGIC:
            raise CorruptBatch(position, f"magic {header.magic}")
        if header.batch_length < MIN_BATCH_LENGTH:
            raise CorruptBatch(position, f"batch length {header.batch_length}")
        if header.size > len(buffer) - position:
            return
        yield position, header
        position += header.size


def sound_batches(buffer: ReadableBuffer, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches from `position` on, until the first that is cut, is no batch or fails its CRC: what recovery keeps.

    Takes some 2 us a batch and the CRC's 20 GB/s, so that files are read faster than disks give them.
    """
    with memoryview(buffer) as view:
        while end - position >= HEADER_BYTES:
            header = BatchHeader._make(HEADER.unpack_from(view, position))
            size = header.batch_length + LENGTH_END
            if header.magic != MAGIC or not HEADER_BYTES <= size <= end - position:
                return
            if crc32c(view[position + CRC_START : position + size]) != header.crc:
                return
            yield position, header
            position += size
