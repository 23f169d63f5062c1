"""Every message in every version, against kio as an independent codec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader
from tests.protocol import kio_oracle
from tests.protocol.every_version import every_version, examples

from penstock.core.ids import NO_TOPIC_ID, TopicId
from penstock.protocol.codec import Message, Request
from penstock.protocol.messages.cluster import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from penstock.protocol.messages.records import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.protocol.messages.table import FLEXIBLE_SINCE, MESSAGES, REQUESTS, RESPONSES
from penstock.protocol.messages.topics import CreateTopicsRequest
from penstock.protocol.schema import (
    Array,
    Blob,
    Field,
    Fixed,
    Nested,
    Struct,
    Text,
    Versions,
    WireType,
    array,
    bytestring,
    int16,
    nested,
    uuid,
)

# What Kafka 4.2 advertises; Produce from v0 on although v0 to v2 are gone.
ADVERTISED_BY_KAFKA_4_2 = {
    "Produce": (0, 13),
    "Fetch": (4, 18),
    "ListOffsets": (1, 11),
    "Metadata": (0, 13),
    "OffsetCommit": (2, 10),
    "OffsetFetch": (1, 10),
    "FindCoordinator": (0, 6),
    "JoinGroup": (0, 9),
    "Heartbeat": (0, 4),
    "LeaveGroup": (0, 5),
    "SyncGroup": (0, 5),
    "DescribeGroups": (0, 6),
    "ListGroups": (0, 5),
    "SaslHandshake": (0, 1),
    "ApiVersions": (0, 4),
    "CreateTopics": (2, 7),
    "DeleteTopics": (1, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (0, 5),
    "OffsetForLeaderEpoch": (2, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (0, 5),
    "WriteTxnMarkers": (1, 2),
    "TxnOffsetCommit": (0, 5),
    "DescribeConfigs": (1, 4),
    "AlterConfigs": (0, 2),
    "DescribeLogDirs": (1, 4),
    "SaslAuthenticate": (0, 2),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (0, 2),
    "ElectLeaders": (0, 2),
    "UpdateFeatures": (0, 2),
    "IncrementalAlterConfigs": (0, 1),
    "AlterPartitionReassignments": (0, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (0, 2),
    "DescribeProducers": (0, 0),
    "UnregisterBroker": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ConsumerGroupHeartbeat": (0, 1),
    "ConsumerGroupDescribe": (0, 1),
    "DescribeTopicPartitions": (0, 0),
}
FIRST_PRODUCE_VERSION = 3


def our_layout(struct: type[Struct], version: int) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for field in struct.FIELDS:
        if field.versions.has(version):
            is_array = isinstance(field.wire, Array)
            element = field.wire.element if isinstance(field.wire, Array) else field.wire
            nullable = field.nullable.has(version) and field.tag is None
            rows.append((field.name, type_name(element, version), is_array, nullable, field.tag))
    return rows


def type_name(wire: WireType, version: int) -> Any:
    match wire:
        case Fixed():
            return {"?": "bool", "b": "int8", "h": "int16", "i": "int32", "q": "int64", "16s": "uuid"}[wire.format]
        case Text():
            return "string"
        case Blob():
            return "records" if wire.is_records else "bytes"
        case Nested():
            return our_layout(wire.struct, version)
    raise AssertionError(f"an array of arrays is not in any layout: {wire}")


TIMESTAMPS = ("log_append_time_ms", "transaction_start_time_ms")


def with_timestamps_named_as_kio(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [
        (
            name.removesuffix("_ms") if name in TIMESTAMPS else name,
            with_timestamps_named_as_kio(kind) if isinstance(kind, list) else kind,
            *rest,
        )
        for name, kind, *rest in rows
    ]


# The declarations


def test_given_kafka_4_2_then_the_advertised_versions_are_the_same_and_declared_without_a_gap() -> None:
    advertised = {request.NAME: (request.ADVERTISED_MIN_VERSION, request.MAX_VERSION) for request in REQUESTS.values()}

    assert advertised == ADVERTISED_BY_KAFKA_4_2
    assert ProduceRequest.MIN_VERSION == FIRST_PRODUCE_VERSION
    for request, response in MESSAGES:
        assert request is ProduceRequest or request.MIN_VERSION == request.ADVERTISED_MIN_VERSION
        assert (response.MIN_VERSION, response.MAX_VERSION) == (request.MIN_VERSION, request.MAX_VERSION)
        assert set(range(request.MIN_VERSION, request.MAX_VERSION + 1)) <= kio_oracle.kio_versions(request)
    assert REQUESTS.keys() == RESPONSES.keys() == FLEXIBLE_SINCE.keys()
    assert len(REQUESTS) == len(MESSAGES)


@every_version
def test_given_a_version_then_its_layout_is_the_one_kio_has(message: type[Message], version: int) -> None:
    theirs = kio_oracle.oracle(message, version)

    assert with_timestamps_named_as_kio(our_layout(message, version)) == kio_oracle.layout(theirs)
    assert (version >= message.FLEXIBLE_SINCE) == theirs.__flexible__  # type: ignore[attr-defined]
    assert theirs.__api_key__ == message.API_KEY  # type: ignore[attr-defined]


def defaults_differ(struct: type[Struct], entity: type, version: int) -> Iterator[str]:
    by_name = {field.name: field for field in struct.FIELDS}
    for name, default in kio_oracle.explicit_defaults(entity).items():
        field = by_name.get(name) or by_name[name + "_ms"]
        if kio_oracle.our_default(field.default) != default:
            yield f"{struct.__name__}.{field.name} v{version}: {field.default!r}, kio has {default!r}"
    for kio_field in fields(entity):
        entity_of_field = kio_oracle.field_type(kio_field).struct
        if entity_of_field is not None:
            yield from defaults_differ(nested_struct(by_name[kio_field.name]), entity_of_field, version)


def nested_struct(field: Field) -> type[Struct]:
    wire = field.wire.element if isinstance(field.wire, Array) else field.wire
    assert isinstance(wire, Nested)
    return wire.struct


@every_version
def test_given_a_version_then_defaults_are_those_kio_states(message: type[Message], version: int) -> None:
    assert list(defaults_differ(message, kio_oracle.oracle(message, version), version)) == []


# Round trips


@every_version
@examples(6)
@given(data=st.data())
def test_given_any_message_then_we_encode_and_decode_the_bytes_that_kio_writes(
    message: type[Message], version: int, data: st.DataObject
) -> None:
    theirs = data.draw(kio_oracle.entities(kio_oracle.oracle(message, version)))
    encoded = kio_oracle.encoded_by_kio(theirs)
    ours = kio_oracle.ours(message, kio_oracle.plain(theirs))

    assert ours.encode(version) == encoded
    assert message.decode_prefix(encoded, version) == (ours, len(encoded))
    assert message.decode_prefix(memoryview(encoded + b"more"), version) == (ours, len(encoded))


def test_given_counts_and_lengths_beyond_one_byte_then_we_agree_with_kio() -> None:
    topics = [MetadataResponseTopic(name="x" * 249, partitions=[]) for _ in range(130)]
    replicas = list(range(20_000))
    topics[0].partitions = [MetadataResponsePartition(replica_nodes=replicas, isr_nodes=replicas[:126]) for _ in "ab"]
    message = MetadataResponse(topics=topics)

    for version in (5, 12):
        theirs: Any = kio_oracle.oracle(MetadataResponse, version)
        encoded = message.encode(version)
        decoded, _ = entity_reader(theirs)(encoded, 0)

        assert kio_oracle.encoded_by_kio(decoded) == encoded
        assert MetadataResponse.decode(encoded, version) == message


class Inner(Struct):
    code: int = int16()


class EveryTypeRequest(Request, api_key=999, versions="0-1", flexible=1):
    """The types that no message of ours has yet."""

    blob: bytes = bytestring()
    null_blob: bytes | None = bytestring(nullable="0+")
    inner: Inner = nested(Inner)
    ids: list[Any] = array(uuid)


def test_given_types_no_message_has_yet_then_they_are_laid_out_as_the_protocol_says() -> None:
    message = EveryTypeRequest(blob=b"ab", inner=Inner(code=7), ids=[b"i" * 16, b"j" * 16])

    plain = b"\0\0\0\x02ab" + b"\xff\xff\xff\xff" + b"\0\x07" + b"\0\0\0\x02" + b"i" * 16 + b"j" * 16
    compact = b"\x03ab" + b"\0" + b"\0\x07\0" + b"\x03" + b"i" * 16 + b"j" * 16 + b"\0"

    assert message.encode(0) == plain
    assert message.encode(1) == compact
    assert EveryTypeRequest.decode(plain, 0) == EveryTypeRequest.decode(compact, 1) == message
    assert type(EveryTypeRequest.decode(plain, 0).blob) is bytes


def test_given_tagged_fields_at_their_default_then_they_are_not_sent() -> None:
    nothing_tagged = b"\0\x03" + b"\x01" + bytes(4)
    assert ApiVersionsResponse(error_code=3).encode(3) == nothing_tagged + b"\0"

    feature = SupportedFeatureKey(name="f", max_version=1)
    with_feature = ApiVersionsResponse(error_code=3, supported_features=[feature]).encode(3)
    assert with_feature == nothing_tagged + b"\x01" + b"\x00\x08" + b"\x02" + b"\x02f\0\0\0\x01\0"


class NullableTagRequest(Request, api_key=998, versions="0", flexible=0):
    inner: Inner | None = nested(Inner, nullable="0+", tag=0)


@pytest.mark.parametrize(
    ("inner", "encoded"), [(Inner(), b"\0"), (None, b"\1\0\1\0"), (Inner(code=7), b"\1\0\4\1\0\7\0")]
)
def test_given_a_tagged_struct_that_may_be_null_then_null_is_sent_and_an_empty_one_is_not(
    inner: Inner | None, encoded: bytes
) -> None:
    message = NullableTagRequest(inner=inner)

    assert message.encode(0) == encoded
    assert NullableTagRequest.decode_prefix(encoded, 0) == (message, len(encoded))
    assert NullableTagRequest() == NullableTagRequest(inner=Inner())


# Records


class Span:
    """Records in a file somewhere."""

    def __init__(self, length: int) -> None:
        self.length = length


def a_fetch_response(*records: Any) -> FetchResponse:
    partitions = [PartitionData(partition_index=index, records=each) for index, each in enumerate(records)]
    partitions[-1].current_leader = LeaderIdAndEpoch(leader_id=4, leader_epoch=5)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])


def test_given_a_produce_request_when_decoded_then_its_records_are_a_view_of_the_buffer() -> None:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=memoryview(b"batch"))])
    for version in (3, 9):
        buffer = bytearray(ProduceRequest(acks=1, topic_data=[data]).encode(version))

        records = ProduceRequest.decode(memoryview(buffer), version).topic_data[0].partition_data[0].records

        assert isinstance(records, memoryview)
        records[0:1] = b"B"
        assert b"Batch" in buffer


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_given_records_in_files_then_they_stand_alone_between_the_bytes(version: int) -> None:
    first, last = Span(3), Span(300)
    parts = a_fetch_response(first, b"1234", None, b"", Span(0), last).encode_parts(version)
    whole = a_fetch_response(b"one", b"1234", None, b"", b"", bytes(300)).encode(version)

    assert [part for part in parts if not isinstance(part, bytes)] == [first, last]
    stand_ins: dict[Any, bytes] = {first: b"one", last: bytes(300)}
    assert b"".join(part if isinstance(part, bytes) else stand_ins[part] for part in parts) == whole


def test_given_records_as_bytes_then_the_parts_are_one() -> None:
    response = a_fetch_response(b"one", bytearray(b"two"), memoryview(b"three"))

    assert response.encode_parts(12) == [response.encode(12)]


def test_given_records_in_a_file_when_they_are_the_end_then_no_empty_part_follows() -> None:
    span = Span(3)
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[PartitionData(records=span)])])

    assert response.encode_parts(4)[1:] == [span]


# Objects


def test_given_two_messages_then_they_share_no_defaults() -> None:
    first, second = CreateTopicsRequest(), CreateTopicsRequest()

    first.topics.append(kio_oracle.ours(nested_struct(CreateTopicsRequest.FIELDS[0]), {"name": "t"}))

    assert second.topics == []
    assert EveryTypeRequest().inner is not EveryTypeRequest().inner
    assert first != second
    assert second == CreateTopicsRequest(timeout_ms=60_000)
    assert second != MetadataRequest()


def test_given_a_field_that_is_not_in_the_layout_then_it_is_refused() -> None:
    with pytest.raises(TypeError):
        CreateTopicsRequest(topic="t")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        CreateTopicsRequest().topic = "t"  # type: ignore[attr-defined]


def test_given_fields_a_version_lacks_then_they_are_dropped_and_have_their_default_after_decoding() -> None:
    topic = MetadataRequestTopic(name="t", topic_id=TopicId(b"i" * 16))
    request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)

    decoded = MetadataRequest.decode(request.encode(1), 1)

    assert decoded == MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=NO_TOPIC_ID)])
    assert decoded.allow_auto_topic_creation


def test_given_a_value_that_cannot_be_encoded_then_the_error_names_the_message_and_version() -> None:
    with pytest.raises(AttributeError) as null_name:
        MetadataResponse(topics=[MetadataResponseTopic(name=None)]).encode(11)
    with pytest.raises(ValueError, match="Metadata v14 is not supported"):
        MetadataResponse().encode(14)

    assert null_name.value.__notes__ == ["while encoding MetadataResponse v11"]
    assert MetadataResponse(topics=[MetadataResponseTopic(name=None)]).encode(12)


def test_given_a_range_of_versions_then_it_reads_as_in_kafkas_definitions() -> None:
    assert [version for version in range(6) if Versions.parse("3").has(version)] == [3]
    assert [version for version in range(6) if Versions.parse("1-3").has(version)] == [1, 2, 3]
    assert [version for version in range(6) if Versions.parse("4+").has(version)] == [4, 5]
    assert "timeout_ms=60000" in repr(CreateTopicsRequest())
