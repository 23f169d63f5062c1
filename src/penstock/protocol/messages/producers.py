"""Identities of idempotent and transactional producers."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import int16, int32, int64, string


class InitProducerIdRequest(Request, api_key=22, versions="0-5", flexible=2):
    """v3: a producer may bump its own epoch (KIP-360)    v4: PRODUCER_FENCED    v5: TRANSACTION_ABORTABLE (KIP-890)

    v6 is unstable in Kafka 4.2 (two-phase commit, KIP-939).
    """

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)


class InitProducerIdResponse(Response, to=InitProducerIdRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
