"""From a frame to its answer: which API, which version, who asks, what went wrong.

This is the only place where an error becomes an error code of a whole request, and where what cannot be answered closes
the connection. A handler that dies of a bug costs its client the connection and us an ERROR line, not the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from penstock.core.errors import BrokerError, ErrorCode, MalformedRequest
from penstock.core.metrics import ApiMetrics
from penstock.handlers.api_versions import unsupported_version
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.produce import produce_usual
from penstock.handlers.registry import APIS, Api, Begin, Handler
from penstock.handlers.responses import response_frame
from penstock.net.connection import Answer, Connection
from penstock.protocol.codec import Request, Response
from penstock.protocol.frames import RequestHeader, read_request_header
from penstock.protocol.messages.internal import AskControllerRequest
from penstock.protocol.messages.records import ProduceRequest
from penstock.protocol.messages.table import FLEXIBLE_SINCE

log = logging.getLogger(__name__)

API_VERSIONS = 18
# Only records are large. Two bytes can claim a topic or a partition, which take a hundred times that in memory.
MAX_CONTROL_REQUEST_BYTES = 4 * 1024 * 1024
# And what a broker passes on: a request that was small enough may be larger in other words.
MAY_BE_LARGE = frozenset({ProduceRequest.API_KEY, AskControllerRequest.API_KEY})


class Pipeline:
    """`apis` are what is served, and `flexible_since` has the first flexible version of each."""

    def __init__(
        self,
        broker: Broker,
        apis: Mapping[int, Api] = APIS,
        flexible_since: Mapping[int, int] = FLEXIBLE_SINCE,
    ) -> None:
        self._broker = broker
        self._apis = apis
        self._flexible_since = flexible_since

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """Called by the connection for every frame; raises MalformedRequest to have it closed."""
        try:
            self._serve(connection, frame)
        except MalformedRequest:
            raise
        except Exception:
            log.exception("request failed unexpectedly", extra={"client_host": connection.session.client_host})
            connection.close("a request failed unexpectedly")

    def _serve(self, connection: Connection, frame: memoryview) -> None:
        if produce_usual(connection, frame, self._broker):
            return
        header = read_request_header(frame, self._flexible_since)
        api = self._apis.get(header.api_key)
        if api is None:
            raise MalformedRequest(f"unknown API key {header.api_key}")
        if not api.served_since <= header.api_version <= api.max_version:
            self._refuse_version(connection, header, api)
            return
        if len(frame) > MAX_CONTROL_REQUEST_BYTES and header.api_key not in MAY_BE_LARGE:
            raise MalformedRequest(
                f"{api.name} of {len(frame)} bytes: more than {MAX_CONTROL_REQUEST_BYTES} are refused"
            )
        if api.serve is not None:
            api.serve(connection, frame, header, self._broker)
            return
        started = time.perf_counter()
        request, consumed = api.request.decode_prefix(frame[header.body_start :], header.api_version)
        if header.body_start + consumed < len(frame):
            self._broker.api_metrics[header.api_key].requests_with_trailing_bytes += 1
        context = RequestContext(connection.session, header.client_id, header.api_version, header.correlation_id)
        call = _Call(api, header, connection.expect_answer(), self._broker.api_metrics[header.api_key], started)
        connection.take_turns()
        if api.begin is not None:
            call.begin(api.begin, request, context, self._broker)
        else:
            assert api.handler is not None
            self._broker.tasks.spawn(call.handle(api.handler, request, context, self._broker), name=api.name)

    def _refuse_version(self, connection: Connection, header: RequestHeader, api: Api) -> None:
        if header.api_key != API_VERSIONS:
            raise MalformedRequest(
                f"{api.name} v{header.api_version} is not served, v{api.min_version} to v{api.max_version} are"
            )
        # KIP-511: a client may ask with a version from the future, and is answered in the oldest one.
        oldest = RequestHeader(API_VERSIONS, 0, header.correlation_id, header.client_id, header.body_start)
        connection.expect_answer().complete(response_frame(oldest, unsupported_version(self._broker.apis)))


class _Call:
    """One request on its way to its answer."""

    __slots__ = ("_answer", "_api", "_header", "_metrics", "_started")

    def __init__(self, api: Api, header: RequestHeader, answer: Answer, metrics: ApiMetrics, started: float) -> None:
        self._api = api
        self._header = header
        self._answer = answer
        self._metrics = metrics
        self._started = started
        metrics.requests += 1

    async def handle(self, handler: Handler, request: Request, context: RequestContext, broker: Broker) -> None:
        try:
            self._complete(await handler(request, context, broker))
        except Exception as error:
            self._failed(error)

    def begin(self, begin: Begin, request: Request, context: RequestContext, broker: Broker) -> None:
        try:
            begin(request, context, broker, self._done)
        except Exception as error:
            self._failed(error)

    def _done(self, outcome: Response | BrokerError) -> None:
        try:
            if isinstance(outcome, BrokerError):
                raise outcome
            self._complete(outcome)
        except Exception as error:
            self._failed(error)

    def _complete(self, response: Response) -> None:
        self._answer.complete(response_frame(self._header, response))
        self._metrics.latency.observe(time.perf_counter() - self._started)

    def _failed(self, error: Exception) -> None:
        try:
            if not isinstance(error, BrokerError | OSError):
                raise error
            self._complete(self._error_response(error))
        except Exception:
            log.exception(
                "request failed unexpectedly", extra={"api": self._api.name, "version": self._header.api_version}
            )
            self._metrics.errors[ErrorCode.UNKNOWN_SERVER_ERROR] += 1
            self._answer.abandon(f"{self._api.name} failed unexpectedly")

    def _error_response(self, error: BrokerError | OSError) -> Response:
        """A whole request failed: said in the response's own error code. One without is answered item by item."""
        if isinstance(error, OSError):  # a full disk, say
            error = BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        self._metrics.errors[error.code] += 1
        response = self._api.response()
        if not hasattr(response, "error_code"):
            raise error
        response.error_code = int(error.code)
        if hasattr(response, "error_message"):
            response.error_message = error.message
        return response
