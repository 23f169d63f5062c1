"""What stands before the body of a request and of a response; the size prefix is the connection's business.

A flexible version's request has header v2 and its response header v1: as before, then tagged fields. Two exceptions
keep old peers able to talk: the client id always has an int16 length, and the response to ApiVersions always has header
v0, since its client does not know yet what the broker understands (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct as Layout
from struct import error as StructError
from typing import NamedTuple

from penstock.core.errors import MalformedRequest
from penstock.protocol.primitives import UNREADABLE, skip_tagged_fields

API_VERSIONS_KEY = 18

_REQUEST_HEADER = Layout(">hhih")  # api_key, api_version, correlation_id, length of client_id
_REQUEST_HEADER_SIZE = _REQUEST_HEADER.size
_unpack_request_header = _REQUEST_HEADER.unpack_from
_RESPONSE_HEADER = Layout(">i")
_RESPONSE_HEADER_V0 = _RESPONSE_HEADER.pack
_RESPONSE_HEADER_V1 = Layout(">ix").pack


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def read_request_header(frame: memoryview, flexible_since: Mapping[int, int]) -> RequestHeader:
    """`flexible_since` has the first flexible version of every API that is known."""
    try:
        api_key, api_version, correlation_id, length = _unpack_request_header(frame)
        first_flexible = flexible_since.get(api_key)
        if first_flexible is None:
            raise MalformedRequest(f"unknown API key {api_key}")
        if length == -1:
            client_id, at = None, _REQUEST_HEADER_SIZE
        else:
            at = _REQUEST_HEADER_SIZE + length
            if not _REQUEST_HEADER_SIZE <= at <= len(frame):
                raise MalformedRequest(f"client id of {length} bytes in a request of {len(frame)}")
            client_id = frame[_REQUEST_HEADER_SIZE:at].tobytes().decode("utf-8", UNREADABLE)
        if api_version >= first_flexible:
            tags = frame[at]
            at += 1
            if tags:
                at = skip_tagged_fields(frame, at, len(frame), tags)
    except (IndexError, StructError):
        raise MalformedRequest(f"a request of {len(frame)} bytes ends within its header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, at)


def has_flexible_response_header(api_key: int, api_version: int, first_flexible: int) -> bool:
    return api_version >= first_flexible and api_key != API_VERSIONS_KEY


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str, *, flexible: bool) -> bytes:
    name = client_id.encode()
    header = _REQUEST_HEADER.pack(api_key, api_version, correlation_id, len(name)) + name
    return header + b"\0" if flexible else header


def read_response_header(frame: memoryview, *, flexible: bool) -> tuple[int, int]:
    """The correlation id, and where the body starts."""
    try:
        (correlation_id,) = _RESPONSE_HEADER.unpack_from(frame)
        at = _RESPONSE_HEADER.size
        if flexible:
            tags = frame[at]
            at += 1
            if tags:
                at = skip_tagged_fields(frame, at, len(frame), tags)
    except (IndexError, StructError):
        raise MalformedRequest(f"a response of {len(frame)} bytes ends within its header") from None
    return correlation_id, at


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    return _RESPONSE_HEADER_V1(correlation_id) if flexible else _RESPONSE_HEADER_V0(correlation_id)
