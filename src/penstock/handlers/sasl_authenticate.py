"""SaslAuthenticate: a step of the proof that SaslHandshake began.

v1: for how long the proof holds (KIP-368)    v2: flexible

Comes here where there is nothing to prove, as SaslHandshake does.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.authentication import SaslAuthenticateRequest, SaslAuthenticateResponse


async def sasl_authenticate(
    request: SaslAuthenticateRequest, context: RequestContext, broker: Broker
) -> SaslAuthenticateResponse:
    raise BrokerError(ErrorCode.ILLEGAL_SASL_STATE, f"nothing is to be proven on {context.listener} now")
