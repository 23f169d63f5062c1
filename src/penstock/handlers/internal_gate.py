"""The way into the internal listener: nobody gets past it who does not prove to know the cluster's key.

Until then only ApiVersions, SaslHandshake and SaslAuthenticate are served, and only frames of a few kilobytes are read;
anything else closes the connection. Who has proven it is a broker, and is served as one by the pipeline behind.

SaslHandshake v1    SaslAuthenticate v0 to v2
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from penstock.core.errors import BrokerError, ErrorCode, MalformedRequest
from penstock.core.ids import BrokerId
from penstock.handlers.responses import response_frame
from penstock.net.cluster_key import MECHANISM, ServerProof, Verifier
from penstock.net.connection import Connection
from penstock.protocol.codec import Response
from penstock.protocol.frames import RequestHeader, read_request_header
from penstock.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.protocol.messages.cluster import ApiVersionsRequest
from penstock.protocol.messages.table import FLEXIBLE_SINCE, REQUESTS

log = logging.getLogger(__name__)

Serve = Callable[[Connection, memoryview], None]

# What the listener is to be limited to: a broker's frames may be large only after its proof.
MAX_UNPROVEN_FRAME_BYTES = 16 * 1024
HANDSHAKE_VERSION = 1


class InternalGate:
    """`serve` is for the listener; `behind` serves brokers, and ApiVersions to anybody.

    `cluster_key` is asked on every connection; while there is none, nobody can prove that they know it.
    """

    def __init__(self, behind: Serve, cluster_key: Callable[[], str | None], max_frame_bytes: int) -> None:
        self._behind = behind
        self._cluster_key = cluster_key
        self._max_frame_bytes = max_frame_bytes
        self._verifier: tuple[str, Verifier] | None = None

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """A connection's first frame; what follows goes to its own proof, and then to the pipeline."""
        proof = _Proving(self)
        connection.hand_to(proof.serve)
        proof.serve(connection, frame)

    def serve_behind(self, connection: Connection, frame: memoryview) -> None:
        self._behind(connection, frame)

    def admit(self, connection: Connection, broker_id: BrokerId) -> None:
        session = replace(connection.session, principal=f"Broker:{broker_id}", broker_id=broker_id)
        connection.admit(session, self._behind, self._max_frame_bytes)
        log.debug("broker admitted", extra={"broker": broker_id, "client_host": session.client_host})

    def verifier(self) -> Verifier:
        cluster_key = self._cluster_key()
        if not cluster_key:
            raise BrokerError(ErrorCode.SASL_AUTHENTICATION_FAILED, "this broker does not know the cluster's key yet")
        if self._verifier is None or self._verifier[0] != cluster_key:
            self._verifier = (cluster_key, Verifier(cluster_key))
        return self._verifier[1]


class _Proving:
    """One connection on its way through the gate: a handshake, then the two steps of the proof."""

    __slots__ = ("_expected", "_gate", "_proof")

    def __init__(self, gate: InternalGate) -> None:
        self._gate = gate
        self._proof: ServerProof | None = None
        self._expected: Callable[[Connection, RequestHeader, bytes], None] | None = None

    def serve(self, connection: Connection, frame: memoryview) -> None:
        header = read_request_header(frame, FLEXIBLE_SINCE)
        if header.api_key == ApiVersionsRequest.API_KEY:
            self._gate.serve_behind(connection, frame)
            return
        body = frame[header.body_start :]
        connection.take_turns()
        if header.api_key == SaslHandshakeRequest.API_KEY and self._expected is None:
            if header.api_version != HANDSHAKE_VERSION:
                raise MalformedRequest(f"SaslHandshake v{header.api_version}, only v{HANDSHAKE_VERSION} is served here")
            self._handshake(connection, header, SaslHandshakeRequest.decode(body, header.api_version))
        elif header.api_key == SaslAuthenticateRequest.API_KEY and self._expected is not None:
            request = SaslAuthenticateRequest.decode(body, header.api_version)
            try:
                self._expected(connection, header, request.auth_bytes)
            except BrokerError as error:
                self._refuse(connection, header, error)
        else:
            name = REQUESTS[header.api_key].NAME
            raise MalformedRequest(f"{name} on the internal listener by somebody who has not proven to be a broker")

    def _handshake(self, connection: Connection, header: RequestHeader, request: SaslHandshakeRequest) -> None:
        if request.mechanism == MECHANISM:
            self._expected = self._first
            _answer(connection, header, SaslHandshakeResponse(mechanisms=[MECHANISM]))
            return
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        _answer(connection, header, SaslHandshakeResponse(error_code=code, mechanisms=[MECHANISM]))
        _close(connection, f"the mechanism {request.mechanism!r} is not served")

    def _first(self, connection: Connection, header: RequestHeader, said: bytes) -> None:
        self._proof = ServerProof(self._gate.verifier())
        told = self._proof.first(said)
        self._expected = self._final
        _answer(connection, header, SaslAuthenticateResponse(auth_bytes=told))

    def _final(self, connection: Connection, header: RequestHeader, said: bytes) -> None:
        assert self._proof is not None
        broker_id, told = self._proof.final(said)
        _answer(connection, header, SaslAuthenticateResponse(auth_bytes=told))
        self._gate.admit(connection, broker_id)

    def _refuse(self, connection: Connection, header: RequestHeader, error: BrokerError) -> None:
        refusal = SaslAuthenticateResponse(error_code=error.code, error_message=error.message)
        _answer(connection, header, refusal)
        _close(connection, error.message)


def _answer(connection: Connection, header: RequestHeader, response: Response) -> None:
    connection.expect_answer().complete(response_frame(header, response))


def _close(connection: Connection, reason: str) -> None:
    log.warning("broker refused", extra={"client_host": connection.session.client_host, "reason": reason})
    connection.close_after_answers(f"refused: {reason}")
