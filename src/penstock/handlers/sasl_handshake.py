"""SaslHandshake: which mechanism a client wants to prove itself with.

v1: what follows stands in SaslAuthenticate

Comes here where there is nothing to prove: on a listener that asks no client who it is, or after the proof
(`internal_gate.py` has the handshake itself).
"""

from __future__ import annotations

from penstock.core.errors import ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.authentication import SaslHandshakeRequest, SaslHandshakeResponse


async def sasl_handshake(
    request: SaslHandshakeRequest, context: RequestContext, broker: Broker
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
