"""How a connection proves who is at its other end (KIP-43, KIP-152)."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import array, bytestring, int16, int64, string


class SaslHandshakeRequest(Request, api_key=17, versions="0-1"):
    """v0: what follows stands on the connection without a header    v1: it follows in SaslAuthenticate"""

    mechanism: str = string()


class SaslHandshakeResponse(Response, to=SaslHandshakeRequest):
    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslAuthenticateRequest(Request, api_key=36, versions="0-2", flexible=2):
    auth_bytes: bytes = bytestring()


class SaslAuthenticateResponse(Response, to=SaslAuthenticateRequest):
    """v1: for how long the authentication holds (KIP-368)"""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = bytestring()
    session_lifetime_ms: int = int64(versions="1+")
