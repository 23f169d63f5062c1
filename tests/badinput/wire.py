"""Requests put together byte by byte, so that any byte of them can be wrong."""

import ssl
import struct

from penstock.protocol.codec import Request

CORRELATION_ID = 7
NULL_CLIENT_ID = b"\xff\xff"
NO_TAGS = b"\0"


def size_prefix(size: int) -> bytes:
    return struct.pack(">i", size)


def framed(payload: bytes) -> bytes:
    return size_prefix(len(payload)) + payload


def varint(value: int) -> bytes:
    """Unsigned, as in flexible versions."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text(content: bytes | str) -> bytes:
    encoded = content.encode() if isinstance(content, str) else content
    return struct.pack(">h", len(encoded)) + encoded


def compact_text(content: bytes | str) -> bytes:
    encoded = content.encode() if isinstance(content, str) else content
    return varint(len(encoded) + 1) + encoded


def header(api_key: int, version: int, *, client_id: bytes = NULL_CLIENT_ID, tags: bytes = b"") -> bytes:
    """A request's header; a flexible version has `tags`, at least NO_TAGS."""
    return struct.pack(">hhi", api_key, version, CORRELATION_ID) + client_id + tags


def request_header(request: type[Request], version: int, *, client_id: bytes = NULL_CLIENT_ID) -> bytes:
    tags = NO_TAGS if version >= request.FLEXIBLE_SINCE else b""
    return header(request.API_KEY, version, client_id=client_id, tags=tags)


def whole_request(request: Request, version: int, *, client_id: bytes = NULL_CLIENT_ID) -> bytes:
    """Header and body, without the size in front."""
    return request_header(type(request), version, client_id=client_id) + request.encode(version)


def tls_client_hello() -> bytes:
    """What a client sends first that takes the plaintext port for a TLS one."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(received, sent, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake ended without a server")
