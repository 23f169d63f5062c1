"""Record batches, and records, of which any field can be wrong while the checksum is right."""

import time
from collections.abc import Sequence

from crc32c import crc32c

from penstock.protocol.batch import CRC_START, HEADER, HEADER_BYTES, Codec, read_header
from penstock.protocol.compression import compress
from penstock.protocol.records import Record, build_batch


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def a_batch(*values: bytes, codec: Codec = Codec.NONE, timestamps: Sequence[int] = (), **fields: int) -> bytes:
    """One record per value, one in all when none is given; `fields` of the header are put in their place at the end."""
    moments = timestamps or [now_ms()] * max(1, len(values))
    records = [Record(b"key", value, (), moment) for value, moment in zip(values or (b"value",), moments, strict=True)]
    return with_fields(build_batch(records, codec=codec), **fields)


def with_fields(batch: bytes | bytearray, **fields: int) -> bytes:
    """The batch with other header fields. Its checksum is made right, unless `crc` is one of them."""
    header = read_header(batch)._replace(**fields)
    section = bytes(batch[HEADER_BYTES:])
    covered = HEADER.pack(*header)[CRC_START:] + section
    return HEADER.pack(*header._replace(crc=fields.get("crc", crc32c(covered)))) + section


def of_section(section: bytes, count: int = 1, **fields: int) -> bytes:
    """The batch of a records section, which is taken as it is: in whatever codec `attributes` say it has."""
    template = read_header(a_batch(*[b""] * count))
    length = HEADER_BYTES - 12 + len(section)
    return with_fields(HEADER.pack(*template._replace(batch_length=length)) + section, **fields)


def compressed(section: bytes, codec: Codec, count: int = 1, **fields: int) -> bytes:
    return of_section(bytes(compress(codec, section)), count, attributes=int(codec), **fields)


def zigzag(value: int) -> bytes:
    """A signed varint, as records have them."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while raw > 0x7F:
        encoded.append(raw & 0x7F | 0x80)
        raw >>= 7
    encoded.append(raw)
    return bytes(encoded)


def read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends."""
    raw = shift = 0
    while True:
        raw |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def a_record(
    *,
    offset_delta: bytes = b"\x00",
    timestamp_delta: bytes = b"\x00",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
    size: bytes | None = None,
) -> bytes:
    """One record of a section; every argument stands there encoded, with its length in front where it has one."""
    body = b"\x00" + timestamp_delta + offset_delta + key + value + headers
    return (zigzag(len(body)) if size is None else size) + body
