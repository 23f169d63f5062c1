"""Bytes that are no message: whatever arrives, decoding ends in a message or in MalformedRequest, at no cost."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol import kio_oracle
from tests.protocol.every_version import every_version, examples

from penstock.core.errors import MalformedRequest
from penstock.protocol.codec import Message
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from penstock.protocol.messages.group_offsets import OffsetFetchRequest
from penstock.protocol.messages.groups import FindCoordinatorRequest
from penstock.protocol.messages.records import FetchRequest, ProduceRequest

# Half of it is made of the bytes that counts, lengths and varints turn on.
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]), min_size=1, max_size=12).map(bytes),
)


def decodes_or_is_malformed(message: type[Message], body: bytes, version: int) -> None:
    """Any other exception fails the test."""
    try:
        message.decode(body, version)
    except MalformedRequest as error:
        assert str(error)


@every_version
@examples(2)
@given(data=st.data())
def test_given_a_message_cut_at_any_byte_then_it_is_malformed(
    message: type[Message], version: int, data: st.DataObject
) -> None:
    encoded = kio_oracle.encoded_by_kio(data.draw(kio_oracle.entities(kio_oracle.oracle(message, version))))

    for cut in range(len(encoded)):
        with pytest.raises(MalformedRequest):
            message.decode(encoded[:cut], version)


@every_version
@examples(6)
@given(data=st.data(), garbage=GARBAGE)
def test_given_a_message_with_garbage_in_it_then_nothing_but_malformed_is_raised(
    message: type[Message], version: int, data: st.DataObject, garbage: bytes
) -> None:
    encoded = kio_oracle.encoded_by_kio(data.draw(kio_oracle.entities(kio_oracle.oracle(message, version))))
    start = data.draw(st.integers(0, len(encoded)))

    decodes_or_is_malformed(message, garbage, version)
    decodes_or_is_malformed(message, encoded[:start] + garbage + encoded[start + len(garbage) :], version)
    decodes_or_is_malformed(message, encoded[:start] + garbage + encoded[start:], version)


@every_version
def test_given_huge_counts_and_lengths_then_nothing_is_allocated_for_them(message: type[Message], version: int) -> None:
    message.decode_prefix(an_empty_body(message, version), version)
    bodies = [
        zeros + claim + bytes(40)
        for zeros in (b"", bytes(1), bytes(2), bytes(4), bytes(6), b"\x02", b"\0\0\0\x01")
        for claim in (b"\x7f\xff\xff\xff", b"\x7f\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\x7f", b"\xff" * 9)
    ]

    tracemalloc.start()
    for body in bodies:
        decodes_or_is_malformed(message, body, version)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def an_empty_body(message: type[Message], version: int) -> bytes:
    """A valid body with nothing in it; decoding it has the codec compiled before memory is watched."""
    if message in (MetadataRequest, OffsetFetchRequest):  # null topics are not in all their versions
        return message(topics=[]).encode(version)
    return message().encode(version)


@pytest.mark.parametrize(
    ("message", "version", "body", "complaint"),
    [
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "topics: must not be null"),
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "topics: negative count -2"),
        (MetadataRequest, 1, b"\0\0\0\x03\0\0", "topics: 3 elements, but only 2 bytes are left"),
        (MetadataRequest, 1, b"\0\0\0\x01\xff\xff", "topics: name: must not be null"),
        (MetadataRequest, 1, b"\0\0\0\x01\xff\xfe", "topics: name: invalid length -2"),
        (MetadataRequest, 1, b"\0\0\0\x01\0\x04abc", "topics: name: 4 bytes, but only 3 are left"),
        (MetadataRequest, 9, b"\x02\0\0", "topics: name: must not be null"),
        (MetadataRequest, 9, b"\xff\xff\xff\xff\xff\x01", "varint is longer than 5 bytes"),
        (ApiVersionsRequest, 3, b"\x81\x80\x02" + bytes(32768), "client_software_name: invalid length 32768"),
        (ProduceRequest, 3, b"\xff\xfe", "transactional_id: invalid length -2"),
        (FindCoordinatorRequest, 4, b"\0\0", "coordinator_keys: must not be null"),
        (MetadataRequest, 9, b"\x01\1", "goes on"),
        (MetadataRequest, 99, b"", "Metadata v99 is not supported"),
        (ProduceRequest, 2, b"", "Produce v2 is not supported"),
    ],
)
def test_given_a_broken_body_then_the_complaint_says_what_is_wrong(
    message: type[Message], version: int, body: bytes, complaint: str
) -> None:
    with pytest.raises(MalformedRequest, match=complaint):
        message.decode(body, version)


def test_given_a_count_with_room_for_smaller_elements_only_then_it_is_refused_before_the_first_is_read() -> None:
    # 1,000 partitions of 16 bytes each cannot be in 1,000 bytes, so not even one of them is made.
    body = FetchRequest(topics=[]).encode(4)[:-4] + b"\0\0\0\x01\0\x01t" + (1000).to_bytes(4, "big") + bytes(1000)

    with pytest.raises(MalformedRequest, match="partitions: 1000 elements, but only 1000 bytes are left"):
        FetchRequest.decode(body, 4)


def test_given_a_body_that_memory_does_not_suffice_for_then_it_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setitem(MetadataRequest._decoders, 1, out_of_memory)

    with pytest.raises(MalformedRequest, match="too much to decode"):
        MetadataRequest.decode(b"", 1)


def test_given_text_that_is_not_utf8_then_it_is_decoded_with_replacements() -> None:
    request = MetadataRequest.decode(b"\0\0\0\x01\0\x03a\xff\xc3", 1)

    assert request.topics == [MetadataRequestTopic(name="a??")]


# Tagged fields

NOTHING_TAGGED = ApiVersionsResponse(error_code=3).encode(3)[:-1]


def test_given_unknown_tags_then_they_are_skipped_and_the_known_are_read() -> None:
    body = NOTHING_TAGGED + b"\x03" + b"\x01\x08" + bytes(7) + b"\x05" + b"\x09\x02??" + b"\x80\x01\x00"

    response, consumed = ApiVersionsResponse.decode_prefix(body + b"next", 3)

    assert consumed == len(body)
    assert response == ApiVersionsResponse(error_code=3, finalized_features_epoch=5)


def test_given_no_tags_counted_in_more_bytes_than_needed_then_the_message_ends_after_them() -> None:
    with_known_tags = NOTHING_TAGGED + b"\x80\x80\x00"
    without = ApiVersionsRequest(client_software_name="c").encode(3)[:-1] + b"\x80\x00"

    assert ApiVersionsResponse.decode_prefix(with_known_tags, 3) == (
        ApiVersionsResponse(error_code=3),
        len(with_known_tags),
    )
    assert ApiVersionsRequest.decode_prefix(without, 3) == (
        ApiVersionsRequest(client_software_name="c"),
        len(without),
    )


def test_given_many_unknown_tags_then_they_are_skipped() -> None:
    tags = b"".join(varint(tag) + b"\x01x" for tag in range(100, 1100))
    body = ApiVersionsRequest(client_software_name="c").encode(3)[:-1] + varint(1000) + tags

    assert ApiVersionsRequest.decode_prefix(body, 3) == (ApiVersionsRequest(client_software_name="c"), len(body))


def varint(value: int) -> bytes:
    """Two bytes, for values from 128 to 16,383; one below."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


@pytest.mark.parametrize(
    ("tags", "complaint"),
    [
        (b"\x02\x09\x00\x09\x00", "tag 9 comes after tag 9"),
        (b"\x02\x09\x00\x08\x00", "tag 8 comes after tag 9"),
        (b"\x01\x09\x05abcd", "tagged field 9 has 5 bytes, but only 4 are left"),
        (b"\x01\x01\x07" + bytes(8), "finalized_features_epoch: tagged with 7 bytes, but has 8"),
        (b"\x01\x01\x09" + bytes(9), "finalized_features_epoch: tagged with 9 bytes, but has 8"),
        (b"\x05\x09\x00\x0a\x00", "5 tagged fields, but only 4 bytes are left"),
        (b"\xff\xff\xff\xff\x0f", "tagged fields, but only 0 bytes are left"),
    ],
)
def test_given_tagged_fields_against_the_rules_then_they_are_malformed(tags: bytes, complaint: str) -> None:
    with pytest.raises(MalformedRequest, match=complaint):
        ApiVersionsResponse.decode(NOTHING_TAGGED + tags, 3)
