"""The hand-written Produce codec against the declarative one, which is itself checked against kio."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import MalformedRequest
from penstock.core.ids import TopicId
from penstock.protocol.batch import Codec, read_header
from penstock.protocol.frames import read_request_header
from penstock.protocol.messages.records import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from penstock.protocol.messages.table import FLEXIBLE_SINCE as FLEXIBLE_SINCE_BY_KEY
from penstock.protocol.produce import (
    FLEXIBLE_SINCE,
    TOPIC_ID_SINCE,
    ProducedRecords,
    ProduceResult,
    encode_produce_response,
    parse_produce,
    usual_produce,
    usual_response,
)
from penstock.protocol.records import KERNEL, Record, build_batch
from penstock.protocol.validation import ProduceLimits, check_batch

NO_LIMITS = ProduceLimits(max_message_bytes=2**31 - 1)
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


def framed(version: int, body: bytes, client_id: bytes | None = b"client") -> bytes:
    length = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", 0, version, 99, length) + (client_id or b"") + b"\0" + body


def a_usual_frame(
    version: int, batch: bytes | bytearray, topic: str = "orders", client_id: bytes | None = b"c"
) -> bytes:
    return framed(version, a_request(None, [(topic, bytes(16), [(3, bytes(batch))])]).encode(version), client_id)


needs_the_kernel = pytest.mark.skipif(KERNEL != "compiled", reason="the record kernel is not compiled")


def a_batch(values: list[bytes], codec: Codec, is_idempotent: bool) -> bytearray:
    records = [Record(None, value, (), 1_700_000_000_000 + at) for at, value in enumerate(values)]
    if is_idempotent:
        return build_batch(records, codec=codec, producer_id=5, producer_epoch=1, base_sequence=7)
    return build_batch(records, codec=codec)


VALUES = st.lists(st.binary(max_size=300), min_size=1, max_size=5)
BATCHES = st.builds(a_batch, VALUES, st.sampled_from(Codec), st.booleans())


@needs_the_kernel
@given(st.integers(9, 12), BATCHES, st.text("abc.-_", min_size=1, max_size=126), st.none() | st.binary(max_size=20))
def test_the_usual_request_is_found_as_the_general_way_finds_it(version, batch, topic, client_id) -> None:  # type: ignore[no-untyped-def]
    frame = memoryview(bytearray(a_usual_frame(version, batch, topic, client_id)))

    usual = usual_produce(frame)

    assert usual is not None
    correlation_id, acks, timeout_ms, found_topic, partition, records, header = usual
    assert (correlation_id, acks, timeout_ms) == (99, -1, 1234)
    assert (found_topic, partition, bytes(records)) == (topic.encode(), 3, bytes(batch))
    assert header == read_header(batch)
    records[0] = 1  # a view of the frame, not a copy
    assert bytes(frame).count(bytes(batch)) == 0


@needs_the_kernel
@given(st.integers(9, 12), BATCHES, st.data())
def test_whatever_the_usual_way_takes_the_general_way_takes_too(version, batch, data) -> None:  # type: ignore[no-untyped-def]
    frame = bytearray(a_usual_frame(version, batch))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    frame = frame[: data.draw(st.sampled_from([len(frame), data.draw(st.integers(0, len(frame)))]))]

    usual = usual_produce(memoryview(frame))

    if usual is not None:
        header = read_request_header(memoryview(frame), FLEXIBLE_SINCE_BY_KEY)
        request = parse_produce(memoryview(frame), header.body_start, header.api_version)
        ((topic, partition, records),) = request.partitions
        assert records is not None
        checked = check_batch(records, NO_LIMITS, header.api_version, now_ms=0)
        assert usual == (header.correlation_id, request.acks, request.timeout_ms, topic, partition, records, checked)


@needs_the_kernel
@pytest.mark.parametrize("version", [3, 8, 13])
def test_other_versions_are_not_usual(version: int) -> None:
    assert usual_produce(memoryview(bytearray(a_usual_frame(version, build_batch([Record(None, b"x")]))))) is None


@needs_the_kernel
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [("a", bytes(16), [])],
        [("a", bytes(16), [(0, b"x")]), ("b", bytes(16), [(0, b"x")])],
        [("a", bytes(16), [(0, b"x"), (1, b"x")])],
        [("a", bytes(16), [(0, None)])],
        [("", bytes(16), [(0, b"x")])],
        [("a" * 200, bytes(16), [(0, b"x")])],
    ],
)
def test_other_shapes_are_not_usual(topics: list[tuple[str, bytes, list[tuple[int, bytes | None]]]]) -> None:
    batch = bytes(build_batch([Record(None, b"x")]))
    filled = [(n, i, [(at, content and batch) for at, content in partitions]) for n, i, partitions in topics]

    assert usual_produce(memoryview(bytearray(framed(9, a_request(None, filled).encode(9))))) is None
    assert usual_produce(memoryview(bytearray(framed(9, a_request("tx", filled).encode(9))))) is None


@needs_the_kernel
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.binary(min_size=1, max_size=126),
    st.integers(0, 2**31 - 1),
    st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3),
)
def test_the_usual_answer_has_the_bytes_of_the_general_one(correlation_id, topic, partition, numbers) -> None:  # type: ignore[no-untyped-def]
    result = ProduceResult(topic, partition, 0, *numbers)

    for version in range(9, 13):
        general = encode_produce_response(correlation_id, version, [result])
        assert usual_response(correlation_id, topic, partition, *numbers) == general
