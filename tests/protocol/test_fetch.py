"""The hand-written answer to Fetch against the declared message, which is itself checked against kio."""

from __future__ import annotations

import struct
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import TopicId
from penstock.protocol.fetch import FLEXIBLE_SINCE, TOPIC_ID_SINCE, FetchedPartition, encode_fetch_response
from penstock.protocol.frames import response_header
from penstock.protocol.messages.records import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)


class Span(NamedTuple):
    """Records that lie elsewhere; `number` tells spans of one length apart."""

    number: int
    length: int


VERSIONS = st.integers(FetchRequest.MIN_VERSION, FetchRequest.MAX_VERSION)
I16, I32, I64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
ABORTED = st.none() | st.lists(st.tuples(I64, I64), max_size=3)
# Around every length at which a varint has one byte more.
LENGTHS = st.integers(1, 300) | st.integers(16_370, 16_400) | st.integers(2**21 - 5, 2**21 + 5) | st.just(2**26)
SPANS = st.none() | st.builds(Span, st.integers(0, 1_000), LENGTHS)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)


@st.composite
def partitions(draw: st.DrawFn) -> FetchedPartition[Span]:
    partition = FetchedPartition[Span](draw(I32))
    partition.error_code = draw(I16)
    partition.high_watermark = draw(I64)
    partition.last_stable_offset = draw(I64)
    partition.log_start_offset = draw(I64)
    partition.aborted = draw(ABORTED)
    partition.preferred_read_replica = draw(I32)
    partition.records = draw(SPANS)
    return partition


TOPICS = st.lists(st.tuples(NAMES, st.binary(min_size=16, max_size=16), st.lists(partitions(), max_size=4)), max_size=3)


def declared(partition: FetchedPartition[Span]) -> PartitionData:
    aborted = partition.aborted
    return PartitionData(
        partition_index=partition.index,
        error_code=partition.error_code,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=partition.log_start_offset,
        aborted_transactions=None
        if aborted is None
        else [AbortedTransaction(producer_id=producer_id, first_offset=first) for producer_id, first in aborted],
        preferred_read_replica=partition.preferred_read_replica,
        records=b"" if partition.records is None else partition.records,
    )


def joined(parts: list[object]) -> list[bytes | Span]:
    """What stands between two spans, in one piece."""
    found: list[bytes | Span] = [b""]
    for part in parts:
        last = found[-1]
        if isinstance(part, Span):
            found += [part, b""]
        else:
            assert isinstance(part, (bytes, bytearray)) and isinstance(last, bytes)
            found[-1] = last + part
    return found


@given(VERSIONS, I32, I16, I32, TOPICS)
def test_written_by_hand_it_is_what_the_declared_message_is(
    version: int,
    correlation_id: int,
    error_code: int,
    session_id: int,
    topics: list[tuple[str, bytes, list[FetchedPartition[Span]]]],
) -> None:
    by_id = version >= TOPIC_ID_SINCE

    parts = encode_fetch_response(
        correlation_id,
        version,
        [(TopicId(topic_id) if by_id else name, rows) for name, topic_id, rows in topics],
        session_id=session_id,
        error_code=error_code,
    )

    response = FetchResponse(
        error_code=error_code,
        session_id=session_id,
        responses=[
            FetchableTopicResponse(topic=name, topic_id=TopicId(topic_id), partitions=list(map(declared, rows)))
            for name, topic_id, rows in topics
        ],
    )
    frame = joined(list(parts))
    header = response_header(correlation_id, flexible=version >= FLEXIBLE_SINCE)
    expected = joined([header, *response.encode_parts(version)])
    assert isinstance(frame[0], bytes)
    assert [frame[0][4:], *frame[1:]] == expected
    size = sum(part.length if isinstance(part, Span) else len(part) for part in expected)
    assert frame[0][:4] == struct.pack(">i", size)
    assert all(isinstance(part, Span) or part for part in parts), "an empty part is one more piece to send"
