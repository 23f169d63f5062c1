"""The bytes that the benchmark's clients prepare and count by, read by the codec that they never use themselves."""

import struct

import pytest
from bench.side_by_side import latency_client
from bench.side_by_side.loads import BATCH_BYTES, LOADS, Load
from bench.side_by_side.stub_answers import Answers

from bench import payloads, wire
from penstock.core.ids import TopicId
from penstock.protocol.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.records import iterate

pytestmark = pytest.mark.quick

TOPIC_ID = TopicId(bytes(range(16)))
HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(wire.CLIENT_ID) + 1


def response_of(*partitions: PartitionData) -> bytes:
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=list(partitions))
    return wire.response_frame(FetchResponse(responses=[topic]).encode(wire.FETCH_VERSION))


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_given_a_load_when_its_batch_is_made_then_it_is_full_and_has_the_values_of_all_clients(
    load: Load,
) -> None:
    batch = load.batch()

    values = [record.value for record in iterate(batch.data)]

    assert values == payloads.values(load.value_bytes, batch.records_count)
    assert BATCH_BYTES / 2 < len(batch.data) <= BATCH_BYTES


def test_given_values_when_compressed_then_about_half_of_them_is_left() -> None:
    values = payloads.values(1_000, 100)

    share = len(wire.batch_of(values, "lz4").data) / len(wire.batch_of(values).data)

    assert len(set(values)) == 100 and not any(b"\n" in value for value in values)
    assert 0.4 < share < 0.75


def test_given_a_fetch_of_several_partitions_when_read_then_it_asks_for_each_offset() -> None:
    frame = wire.fetch_partitions_request(TOPIC_ID, {0: 10, 1: 20}, 4_096, max_wait_ms=500)

    request = FetchRequest.decode(frame[HEADER_BYTES:], wire.FETCH_VERSION)

    [topic] = request.topics
    assert (request.max_wait_ms, request.max_bytes) == (500, 8_192)
    assert [(each.partition, each.fetch_offset, each.partition_max_bytes) for each in topic.partitions] == [
        (0, 10, 4_096),
        (1, 20, 4_096),
    ]


def test_given_a_response_of_several_partitions_when_looked_at_then_every_error_code_is_found() -> None:
    partitions = [
        PartitionData(partition_index=index, error_code=index, records=bytes(length))
        for index, length in enumerate((0, 1, 126, 127, 70_000))
    ]

    response = response_of(*partitions)

    own, *others = wire.fetch_error_positions(response)
    assert own == wire.FETCH_ERROR_POSITION and wire.int16_at(response, own) == 0
    assert [wire.int16_at(response, position) for position in others] == [0, 1, 2, 3, 4]


def test_given_a_waiting_consumers_request_when_its_offset_is_replaced_then_the_next_fetch_asks_for_it() -> None:
    request = bytearray(wire.fetch_partitions_request(TOPIC_ID, {0: 5}, 4_096))

    struct.pack_into(">q", request, len(request) - latency_client.OFFSET_FROM_END, 1 << 40)

    [topic] = FetchRequest.decode(request[HEADER_BYTES:], wire.FETCH_VERSION).topics
    assert topic.partitions[0].fetch_offset == 1 << 40


def test_given_fetched_batches_when_read_then_the_consumer_goes_on_behind_the_last_of_them() -> None:
    first, second = wire.batch_of([b"a", b"b"]).data, bytearray(wire.batch_of([b"c"] * 5).data)
    struct.pack_into(">q", second, 0, 2)

    assert latency_client.next_offset(first + bytes(second), 0) == 7
    assert latency_client.next_offset(b"", 3) == 3


def test_given_a_fetch_from_the_stub_when_answered_then_its_records_begin_where_they_were_asked_for() -> None:
    load = Load("1kb", 1, "lz4")
    partition = FetchPartition(partition=0, fetch_offset=1_234)

    answer = Answers(9_092, load).to(FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])]))

    assert isinstance(answer, FetchResponse)
    records = answer.responses[0].partitions[0].records
    assert isinstance(records, memoryview)
    offsets = [record.offset for record in iterate(records)]
    assert offsets[0] == 1_234 and len(offsets) >= load.batch().records_count
