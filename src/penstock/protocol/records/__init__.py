"""Per-record work on a batch: one kernel, compiled where a compiler was at hand, in plain Python elsewhere.

`KERNEL` says which one serves; PENSTOCK_PURE_RECORDS=1 chooses the plain one. What is here besides the kernel builds
and reads whole batches, a Python object per record: for tools, tests and small internal writes, not for a hot path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import environ
from typing import NamedTuple

from penstock.protocol.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ReadableBuffer,
    read_header,
    seal,
)
from penstock.protocol.compression import Codec, compress, decompress
from penstock.protocol.records._pure import SPAN_FIELDS, InvalidRecords, Record, RecordsInfo

if environ.get("PENSTOCK_PURE_RECORDS") == "1":
    from penstock.protocol.records._pure import encode_records, find_timestamp, headers_of, spans, validate

    KERNEL = "pure"
else:
    try:
        from penstock.protocol.records._kernel import encode_records, find_timestamp, headers_of, spans, validate

        KERNEL = "compiled"
    except ImportError:
        from penstock.protocol.records._pure import encode_records, find_timestamp, headers_of, spans, validate

        KERNEL = "pure"

__all__ = [
    "KERNEL",
    "SPAN_FIELDS",
    "InvalidRecords",
    "Record",
    "RecordsInfo",
    "StoredRecord",
    "build_batch",
    "encode_records",
    "find_timestamp",
    "headers_of",
    "iterate",
    "records_of",
    "spans",
    "validate",
]


class StoredRecord(NamedTuple):
    """A record as it lies in a log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """At least one record; their offsets follow each other from `base_offset`."""
    if not records:
        raise ValueError("a batch has at least one record")
    base_timestamp = records[0].timestamp
    section = compress(codec, encode_records(records, base_timestamp))
    batch = bytearray(
        HEADER.pack(
            base_offset,
            HEADER_BYTES - LENGTH_END + len(section),
            leader_epoch,
            MAGIC,
            0,  # the CRC, for now
            codec | (TRANSACTIONAL_BIT if is_transactional else 0) | (CONTROL_BIT if is_control else 0),
            len(records) - 1,
            base_timestamp,
            base_timestamp if len(records) == 1 else max(record.timestamp for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    batch += section
    seal(batch, 0)
    return batch


def records_of(buffer: ReadableBuffer, position: int, header: BatchHeader) -> ReadableBuffer:
    """The decompressed records section of a whole batch. Raises BrokerError when it cannot be decompressed."""
    return decompress(header.codec, memoryview(buffer)[position + HEADER_BYTES : position + header.size])


def iterate(buffer: ReadableBuffer, position: int = 0) -> Iterator[StoredRecord]:
    """The records of the whole batch at `position`, whose CRC has been checked or does not matter."""
    header = read_header(buffer, position)
    section = memoryview(records_of(buffer, position, header))
    rows = spans(section, header.records_count)
    for row in range(0, len(rows), SPAN_FIELDS):
        offset_delta, timestamp_delta, key, key_length, value, value_length, headers, headers_count = rows[
            row : row + SPAN_FIELDS
        ]
        yield StoredRecord(
            header.base_offset + offset_delta,
            header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta,
            None if key_length < 0 else bytes(section[key : key + key_length]),
            None if value_length < 0 else bytes(section[value : value + value_length]),
            headers_of(section, headers, headers_count) if headers_count else [],
        )
