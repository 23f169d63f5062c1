"""Produce, parsed and answered by hand: the one request that arrives a hundred thousand times a second.

The declarative ProduceRequest and ProduceResponse in `messages` say the same and are its oracle in the tests. Records
are not copied: those of a partition are a view of the receive buffer.

v7: zstd allowed (KIP-110)    v8: error message per partition (KIP-467)    v9: flexible    v13: topic ids for names
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.core.errors import MalformedRequest
from penstock.protocol.batch import BatchHeader
from penstock.protocol.primitives import MAX_STRING_BYTES, UNREADABLE, VARINTS, read_varint, skip_tagged_fields
from penstock.protocol.records import KERNEL

if KERNEL == "compiled":
    # Nearly every request has one topic and one partition: parsed and checked, and answered, by one call each.
    from penstock.protocol.records._kernel import usual_produce as usual_produce
    from penstock.protocol.records._kernel import usual_response as usual_response
else:

    def usual_produce(frame: memoryview) -> tuple[int, int, int, bytes, int, memoryview, BatchHeader] | None:
        """In plain Python there is no shorter way than the general one."""
        return None

    def usual_response(
        correlation_id: int,
        topic: bytes,
        partition: int,
        base_offset: int,
        log_append_time_ms: int,
        log_start_offset: int,
    ) -> bytes:
        raise AssertionError("nothing is usual in plain Python")


MIN_VERSION = 3
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 13

_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_RESULT_V3 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")


class ProducedRecords(NamedTuple):
    """One partition of a Produce request. `topic` is the name's UTF-8 bytes, from v13 on the 16 bytes of its id."""

    topic: bytes
    partition: int
    records: memoryview | None


class Produce(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducedRecords]
    end: int  # where the request's last field ends in its frame


class ProduceResult(NamedTuple):
    topic: bytes
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_index: int = -1  # of the record at fault in its batch, -1 when it is the batch as a whole


def parse_produce(frame: memoryview, position: int, version: int) -> Produce:
    """The body of a Produce request that begins at `position` of its frame."""
    try:
        if version >= FLEXIBLE_SINCE:
            return _parse_flexible(frame, position, version)
        return _parse_plain(frame, position)
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"Produce v{version} ends inside a field") from error


def _parse_plain(frame: memoryview, position: int) -> Produce:
    i32 = _I32.unpack_from
    end = len(frame)
    transactional_id, position = _plain_string(frame, position)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    (topic_count,) = i32(frame, position + 6)
    position += 10
    partitions: list[ProducedRecords] = []
    for _ in range(_checked_count(topic_count, end - position)):
        topic, position = _plain_string(frame, position)
        if topic is None:
            raise MalformedRequest("Produce: null topic name")
        (partition_count,) = i32(frame, position)
        position += 4
        for _ in range(_checked_count(partition_count, end - position)):
            (index,) = i32(frame, position)
            (length,) = i32(frame, position + 4)
            position += 8
            if length < 0:
                _check_null(length)
                partitions.append(ProducedRecords(topic, index, None))
                continue
            if length > end - position:
                raise MalformedRequest(f"Produce: records of {length} bytes, {end - position} are left")
            partitions.append(ProducedRecords(topic, index, frame[position : position + length]))
            position += length
    return Produce(_text(transactional_id), acks, timeout_ms, partitions, position)


def _parse_flexible(frame: memoryview, position: int, version: int) -> Produce:
    end = len(frame)
    length, position = read_varint(frame, position)
    transactional_id = None
    if length:
        transactional_id, position = _take(frame, position, length - 1)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    topic_count, position = read_varint(frame, position + 6)
    partitions: list[ProducedRecords] = []
    for _ in range(_checked_count(topic_count - 1, end - position)):
        if version >= TOPIC_ID_SINCE:
            topic, position = _take(frame, position, 16)
        else:
            length, position = read_varint(frame, position)
            topic, position = _take(frame, position, length - 1)
        partition_count, position = read_varint(frame, position)
        for _ in range(_checked_count(partition_count - 1, end - position)):
            (index,) = _I32.unpack_from(frame, position)
            length, position = read_varint(frame, position + 4)
            records = None
            if length:
                length -= 1
                if length > end - position:
                    raise MalformedRequest(f"Produce: records of {length} bytes, {end - position} are left")
                records = frame[position : position + length]
                position += length
            partitions.append(ProducedRecords(topic, index, records))
            position = _skip_tags(frame, position)
        position = _skip_tags(frame, position)
    position = _skip_tags(frame, position)
    return Produce(_text(transactional_id), acks, timeout_ms, partitions, position)


def _take(frame: memoryview, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if not 0 <= length <= MAX_STRING_BYTES or end > len(frame):
        raise MalformedRequest(f"Produce: a name of {length} bytes, {len(frame) - position} are left")
    return bytes(frame[position:end]), end


def _plain_string(frame: memoryview, position: int) -> tuple[bytes | None, int]:
    (length,) = _I16.unpack_from(frame, position)
    if length < 0:
        _check_null(length)
        return None, position + 2
    return _take(frame, position + 2, length)


def _check_null(length: int) -> None:
    if length != -1:
        raise MalformedRequest(f"Produce: a length of {length}")


def _checked_count(count: int, bytes_left: int) -> int:
    if not 0 <= count <= bytes_left:
        raise MalformedRequest(f"Produce: an array of {count} items, {bytes_left} bytes are left")
    return count


def _skip_tags(frame: memoryview, position: int) -> int:
    first = frame[position]
    return skip_tagged_fields(frame, position + 1, len(frame), first) if first else position + 1


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", UNREADABLE)


def encode_produce_response(correlation_id: int, version: int, results: list[ProduceResult]) -> bytes:
    """The whole response frame, size and header included. Results of one topic stand next to each other."""
    flexible = version >= FLEXIBLE_SINCE
    topics: list[tuple[bytes, list[bytes]]] = []
    for result in results:
        if not topics or topics[-1][0] != result.topic:
            topics.append((result.topic, []))
        topics[-1][1].append(_encode_result(result, version))
    pieces = [b"\0" if flexible else b"", _count(len(topics), flexible)]
    for topic, partitions in topics:
        if version >= TOPIC_ID_SINCE:
            pieces.append(topic)
        else:
            pieces.append((VARINTS[len(topic) + 1] if flexible else _I16.pack(len(topic))) + topic)
        pieces.append(_count(len(partitions), flexible))
        pieces += partitions
        if flexible:
            pieces.append(b"\0")
    pieces.append(b"\0\0\0\0\0" if flexible else b"\0\0\0\0")  # throttle_time_ms, tags
    body = b"".join(pieces)
    return _SIZE_AND_CORRELATION.pack(len(body) + 4, correlation_id) + body


def _encode_result(result: ProduceResult, version: int) -> bytes:
    _, partition, error_code, base_offset, log_append_time_ms, log_start_offset, message, record_index = result
    if version < 5:
        return _RESULT_V3.pack(partition, error_code, base_offset, log_append_time_ms)
    fixed = _RESULT_V5.pack(partition, error_code, base_offset, log_append_time_ms, log_start_offset)
    if version < 8:
        return fixed
    flexible = version >= FLEXIBLE_SINCE
    if error_code == 0:
        return fixed + (b"\1\0\0" if flexible else b"\0\0\0\0\xff\xff")  # no record errors, null message, no tags
    tags = b"\0" if flexible else b""
    text = _nullable_string(message, flexible)
    if record_index < 0:
        return fixed + _count(0, flexible) + text + tags
    return fixed + _count(1, flexible) + _I32.pack(record_index) + text + tags + text + tags


def _nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    raw = text.encode()[:MAX_STRING_BYTES]
    return (VARINTS[len(raw) + 1] if flexible else _I16.pack(len(raw))) + raw


def _count(count: int, flexible: bool) -> bytes:
    return VARINTS[count + 1] if flexible else _I32.pack(count)
