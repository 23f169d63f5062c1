"""The answer to a Fetch, written by hand: what a busy consumer of many partitions costs most, after their bytes.

The declarative FetchResponse in `messages` says the same and is its oracle in the tests; brokers answer each other with
that one. Records stay where they are: they are parts of the answer, between its bytes. A partition takes 1 us here,
4.7 us as a declared message.

v5: log start offset    v7: error and session (KIP-227)    v11: the replica to read from (KIP-392)    v12: flexible
v13: topic ids for names
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from penstock.core.ids import TopicId
from penstock.protocol.primitives import VARINTS, RecordsSpan

SESSION_SINCE = 7
FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13
NO_REPLICA = -1
# An answer says in 31 bits how long it is; behind so many bytes there is still room for a batch and for all the rest.
MAX_RECORDS_BYTES = 1 << 30

_START_SINCE = 5
_REPLICA_SINCE = 11

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_PREFIX = struct.Struct(">ii")
_SESSION = struct.Struct(">hi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
# From v12 on, with a number of aborted transactions that is none or 0: all but the length of the records.
_USUAL = struct.Struct(">ihqqqBi")

Span = TypeVar("Span", bound=RecordsSpan)


class FetchedPartition(Generic[Span]):
    """What a consumer is told of one partition. `aborted` is None for those who read uncommitted records."""

    __slots__ = (
        "aborted",
        "error_code",
        "high_watermark",
        "index",
        "last_stable_offset",
        "log_start_offset",
        "preferred_read_replica",
        "records",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.error_code = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.aborted: Sequence[tuple[int, int]] | None = None  # producer id, first offset
        self.preferred_read_replica = NO_REPLICA
        self.records: Span | None = None


def encode_fetch_response(
    correlation_id: int,
    version: int,
    topics: Iterable[tuple[str | TopicId, Sequence[FetchedPartition[Span]]]],
    *,
    session_id: int = 0,
    error_code: int = 0,
) -> list[bytes | bytearray | Span]:
    """The whole response frame, size and header included. From v13 on `topics` are named by their ids."""
    flexible = version >= FLEXIBLE_SINCE
    named = list(topics)
    first = chunk = bytearray(_PREFIX.pack(0, correlation_id))
    chunk += b"\0\0\0\0\0" if flexible else b"\0\0\0\0"  # the header's tags, throttle_time_ms
    if version >= SESSION_SINCE:
        chunk += _SESSION.pack(error_code, session_id)
    chunk += _count(len(named), flexible)
    parts: list[bytes | bytearray | Span] = [chunk]
    spans_bytes = 0
    for topic, partitions in named:
        chunk += _topic(topic, flexible)
        chunk += _count(len(partitions), flexible)
        for partition in partitions:
            chunk += _usual(partition) if flexible and not partition.aborted else _partition(partition, version)
            # Empty, not null: older clients stumble over null.
            span = partition.records
            chunk += _count(0 if span is None else span.length, flexible)
            if span is not None:
                spans_bytes += span.length
                chunk = bytearray()
                parts += (span, chunk)
            if flexible:
                chunk += b"\0"
        if flexible:
            chunk += b"\0"
    if flexible:
        chunk += b"\0"
    size = spans_bytes + sum(len(part) for part in parts if isinstance(part, bytearray)) - 4
    first[:4] = _I32.pack(size)
    return parts if chunk else parts[:-1]


def _usual(partition: FetchedPartition[Span]) -> bytes:
    return _USUAL.pack(
        partition.index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        partition.aborted is not None,
        partition.preferred_read_replica,
    )


def _partition(partition: FetchedPartition[Span], version: int) -> bytes:
    """All that comes before the records and their length."""
    flexible = version >= FLEXIBLE_SINCE
    watermarks = partition.index, partition.error_code, partition.high_watermark, partition.last_stable_offset
    if version >= _START_SINCE:
        encoded = _PARTITION_V5.pack(*watermarks, partition.log_start_offset)
    else:
        encoded = _PARTITION_V4.pack(*watermarks)
    aborted = partition.aborted
    if aborted is None:
        encoded += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        encoded += _count(len(aborted), flexible)
        for each in aborted:
            encoded += _ABORTED.pack(*each) + (b"\0" if flexible else b"")
    if version >= _REPLICA_SINCE:
        encoded += _I32.pack(partition.preferred_read_replica)
    return encoded


def _topic(topic: str | TopicId, flexible: bool) -> bytes:
    if not isinstance(topic, str):
        return topic
    name = topic.encode()
    return (VARINTS[len(name) + 1] if flexible else _I16.pack(len(name))) + name


def _count(count: int, flexible: bool) -> bytes:
    return VARINTS[count + 1] if flexible else _I32.pack(count)
