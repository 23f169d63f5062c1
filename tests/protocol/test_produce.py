"""The hand-written Produce codec against the declarative one, which is itself checked against kio."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import MalformedRequest
from penstock.core.ids import TopicId
from penstock.protocol.messages.records import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.protocol.produce import (
    FLEXIBLE_SINCE,
    TOPIC_ID_SINCE,
    ProducedRecords,
    ProduceResult,
    encode_produce_response,
    parse_produce,
)

VERSIONS = st.integers(ProduceRequest.MIN_VERSION, ProduceRequest.MAX_VERSION)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
IDS = st.binary(min_size=16, max_size=16)
RECORDS = st.none() | st.binary(max_size=300)
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), RECORDS), max_size=4)
TOPICS = st.lists(st.tuples(NAMES, IDS, PARTITIONS), max_size=4)


def a_request(
    transactional_id: str | None, topics: list[tuple[str, bytes, list[tuple[int, bytes | None]]]]
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=TopicId(topic_id),
                partition_data=[
                    PartitionProduceData(index=index, records=None if content is None else memoryview(content))
                    for index, content in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )


@given(VERSIONS, st.none() | NAMES, TOPICS)
def test_parsing_by_hand_finds_what_the_declared_message_holds(version, transactional_id, topics) -> None:  # type: ignore[no-untyped-def]
    body = a_request(transactional_id, topics).encode(version)

    parsed = parse_produce(memoryview(b"header" + body), 6, version)

    assert (parsed.transactional_id, parsed.acks, parsed.timeout_ms) == (transactional_id, -1, 1234)
    assert parsed.partitions == [
        ProducedRecords(topic_id if version >= TOPIC_ID_SINCE else name.encode(), index, content)
        for name, topic_id, partitions in topics
        for index, content in partitions
    ]


@given(VERSIONS)
def test_a_request_cut_at_any_byte_is_malformed_and_nothing_else(version: int) -> None:
    body = a_request("tx", [("orders", bytes(16), [(0, b"records"), (1, b"more")])]).encode(version)

    for end in range(len(body)):
        with pytest.raises(MalformedRequest):
            parse_produce(memoryview(body)[:end], 0, version)


@given(VERSIONS, st.binary(max_size=200))
def test_garbage_is_parsed_or_malformed_and_nothing_else(version: int, garbage: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        parse_produce(memoryview(garbage), 0, version)


RESULTS = st.lists(
    st.tuples(
        st.integers(0, 2**31 - 1),
        st.sampled_from([0, 2, 87]),
        st.integers(-1, 2**63 - 1),
        st.none() | NAMES,
        st.integers(-1, 5),
    ),
    min_size=1,
    max_size=3,
)


@given(VERSIONS, st.lists(st.tuples(NAMES, IDS, RESULTS), max_size=3, unique_by=(lambda t: t[0], lambda t: t[1])))
def test_answering_by_hand_gives_the_bytes_of_the_declared_message(version, topics) -> None:  # type: ignore[no-untyped-def]
    def wire(name: str, topic_id: bytes) -> bytes:
        return topic_id if version >= TOPIC_ID_SINCE else name.encode()

    results = [
        ProduceResult(wire(name, topic_id), index, code, offset, -1, 0, message, record_index)
        for name, topic_id, rows in topics
        for index, code, offset, message, record_index in rows
    ]
    declared = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=TopicId(topic_id),
                partition_responses=[
                    PartitionProduceResponse(
                        index=index,
                        error_code=code,
                        base_offset=offset,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        record_errors=[
                            BatchIndexAndErrorMessage(batch_index=record_index, batch_index_error_message=message)
                        ]
                        if code and record_index >= 0
                        else [],
                        error_message=message if code else None,
                    )
                    for index, code, offset, message, record_index in rows
                ],
            )
            for name, topic_id, rows in topics
        ]
    ).encode(version)

    frame = encode_produce_response(77, version, results)

    header_tags = b"\0" if version >= FLEXIBLE_SINCE else b""
    assert frame == (len(frame) - 4).to_bytes(4, "big") + (77).to_bytes(4, "big") + header_tags + declared
