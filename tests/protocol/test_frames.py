"""Headers of requests and responses, against kio and against bytes that are no header."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.request_header.v1.header import RequestHeader as KioHeaderV1
from kio.schema.request_header.v2.header import RequestHeader as KioHeaderV2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponseHeaderV0
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.protocol.every_version import every_request_version, every_response_version, examples

from penstock.core.errors import MalformedRequest
from penstock.protocol.codec import Message
from penstock.protocol.frames import (
    RequestHeader,
    has_flexible_response_header,
    read_request_header,
    read_response_header,
    request_header,
    response_header,
)
from penstock.protocol.messages.table import FLEXIBLE_SINCE

METADATA = 3
API_VERSIONS = 18
FIRST_FLEXIBLE_METADATA = 9


def a_frame(api_key: int, version: int, client_id: str | None, *, tags: bytes | None = None) -> bytes:
    """A request with correlation id 77 and nothing after its header, written by kio but for the tags."""
    flexible = tags is not None
    header_type: Any = KioHeaderV2 if flexible else KioHeaderV1
    header = header_type(request_api_key=api_key, request_api_version=version, correlation_id=77, client_id=client_id)
    with io.BytesIO() as buffer:
        entity_writer(header_type)(buffer, header)
        written = buffer.getvalue()
    return written[:-1] + tags if tags is not None else written


def read(frame: bytes) -> RequestHeader:
    return read_request_header(memoryview(frame), FLEXIBLE_SINCE)


@every_request_version
def test_given_a_version_then_its_header_is_read_to_the_byte_where_the_body_begins(
    message: type[Message], version: int
) -> None:
    kio_request = getattr(load_payload_module(message.API_KEY, version, EntityType.request), message.__name__)
    flexible = kio_request.__header_schema__ is KioHeaderV2
    frame = a_frame(message.API_KEY, version, "client", tags=b"\0" if flexible else None)

    header = read(frame + b"body")

    assert header == RequestHeader(message.API_KEY, version, 77, "client", len(frame))


@every_request_version
def test_given_a_version_then_its_request_header_is_the_one_kio_writes(message: type[Message], version: int) -> None:
    kio_request = getattr(load_payload_module(message.API_KEY, version, EntityType.request), message.__name__)
    flexible = kio_request.__header_schema__ is KioHeaderV2
    expected = a_frame(message.API_KEY, version, "clïent", tags=b"\0" if flexible else None)

    assert request_header(message.API_KEY, version, 77, "clïent", flexible=flexible) == expected


@every_response_version
def test_given_a_version_then_its_response_header_is_the_one_kio_reads(message: type[Message], version: int) -> None:
    header_type = getattr(
        load_payload_module(message.API_KEY, version, EntityType.response), message.__name__
    ).__header_schema__
    flexible = has_flexible_response_header(message.API_KEY, version, message.FLEXIBLE_SINCE)

    encoded = response_header(-5, flexible=flexible)

    assert entity_reader(header_type)(encoded, 0) == (header_type(correlation_id=-5), len(encoded))


@pytest.mark.parametrize(
    ("header", "flexible"), [(b"", False), (b"\0", True), (b"\x01\x05\x03abc", True), (b"\x80\x00", True)]
)
def test_given_a_response_then_its_header_is_read_and_a_cut_one_is_malformed(header: bytes, flexible: bool) -> None:
    frame = (-5).to_bytes(4, "big", signed=True) + header

    assert read_response_header(memoryview(frame + b"body"), flexible=flexible) == (-5, len(frame))
    for cut in range(len(frame)):
        with pytest.raises(MalformedRequest):
            read_response_header(memoryview(frame[:cut]), flexible=flexible)


def test_given_flexible_api_versions_then_the_response_header_stays_plain() -> None:
    assert not has_flexible_response_header(API_VERSIONS, 4, FLEXIBLE_SINCE[API_VERSIONS])
    assert has_flexible_response_header(METADATA, FIRST_FLEXIBLE_METADATA, FLEXIBLE_SINCE[METADATA])
    assert not has_flexible_response_header(METADATA, FIRST_FLEXIBLE_METADATA - 1, FLEXIBLE_SINCE[METADATA])
    assert len(response_header(7, flexible=False)) == entity_reader(KioResponseHeaderV0)(bytes(4), 0)[1]


@pytest.mark.parametrize(("api_key", "version", "tags"), [(METADATA, 1, None), (METADATA, 9, b"\0")])
@pytest.mark.parametrize("client_id", [None, "", "ü" * 100])
def test_given_any_client_id_then_it_is_read(
    api_key: int, version: int, tags: bytes | None, client_id: str | None
) -> None:
    frame = a_frame(api_key, version, client_id, tags=tags)

    assert read(frame) == RequestHeader(api_key, version, 77, client_id, len(frame))


def test_given_a_client_id_that_is_not_utf8_then_it_is_read_with_replacements() -> None:
    assert read(a_frame(METADATA, 1, "ab").replace(b"ab", b"a\xff")).client_id == "a?"


@pytest.mark.parametrize("tags", [b"\x02" + b"\x05\x03abc" + b"\x80\x01\x00", b"\x80\x00"])
def test_given_tagged_fields_in_the_header_then_the_body_begins_after_them(tags: bytes) -> None:
    frame = a_frame(METADATA, 9, "c", tags=tags)

    assert read(frame + b"body").body_start == len(frame)


def test_given_an_unsupported_version_of_api_versions_then_its_header_is_still_read() -> None:
    assert read(a_frame(API_VERSIONS, 99, "c", tags=b"\0")).api_version == 99


@pytest.mark.parametrize("api_key", [9999, -1, 4])
def test_given_an_unknown_api_key_then_the_request_is_malformed(api_key: int) -> None:
    with pytest.raises(MalformedRequest, match=f"unknown API key {api_key}"):
        read(a_frame(api_key, 0, "c"))


@pytest.mark.parametrize("version", [1, 9])
def test_given_a_header_cut_at_any_byte_then_the_request_is_malformed(version: int) -> None:
    frame = a_frame(METADATA, version, "client", tags=b"\x01\x05\x03abc" if version >= 9 else None)

    for cut in range(len(frame)):
        with pytest.raises(MalformedRequest):
            read(frame[:cut])


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x80\x00", b"\x00\x02", b"\x7f\xff"])
def test_given_a_client_id_of_impossible_length_then_the_request_is_malformed(length: bytes) -> None:
    with pytest.raises(MalformedRequest, match="client id of"):
        read(a_frame(METADATA, 1, None)[:-2] + length + b"c")


@examples(300)
@given(st.binary(max_size=60), st.sampled_from(sorted(FLEXIBLE_SINCE)), st.integers(-1, 20))
def test_given_garbage_then_nothing_but_malformed_is_raised(garbage: bytes, api_key: int, version: int) -> None:
    start = api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
    for frame in (garbage, start + garbage, start + bytes(5) + garbage):
        try:
            header = read(frame)
        except MalformedRequest:
            continue
        assert header.body_start <= len(frame)
