"""Requests that librdkafka does not know, over connections of our own: without TLS and logins, which are its trade.

A request goes in the newest version that both sides know. Whatever goes wrong on the way ends the command, but what any
broker can answer is asked of another one first: these commands are used when brokers die.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from penstock.cli.client import addresses, fail, reach
from penstock.core.errors import BrokerError, ErrorCode, MalformedRequest
from penstock.protocol.codec import Request, Response
from penstock.protocol.frames import API_VERSIONS_KEY, read_response_header, request_header
from penstock.protocol.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

Answer = TypeVar("Answer", bound=Response)
Result = TypeVar("Result")

_CLIENT_ID = "penstock-cli"
_SIZE_BYTES = 4
# What is not a broker may say anything: the first bytes of an HTTP answer would be a gigabyte.
_MAX_ANSWER_BYTES = 256 << 20
_ANY_BROKER_KNOWS = 0
_TRANSACTIONAL_ID = 1
_SEVERAL_KEYS_SINCE = 4
_AGAIN_AFTER_S = 0.1
_PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class NoAnswer(Exception):
    """A broker is not there, or says nothing that can be understood; the message names it."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id} at {self.host}:{self.port}"


class Connection:
    """Everything it does raises NoAnswer."""

    def __init__(self, channel: socket.socket, timeout_s: float) -> None:
        self._channel = channel
        self._channel.settimeout(timeout_s)
        self._timeout_s = timeout_s
        host, port = channel.getpeername()[:2]
        self._address = f"{host}:{port}"
        self._correlation_id = 0
        self._has_answered = False
        known = self._exchange(ApiVersionsRequest(), ApiVersionsResponse, _ANY_BROKER_KNOWS)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in known.api_keys}
        self._has_answered = True

    def ask(self, request: Request, response: type[Answer], needed: int = 0) -> Answer:
        """`needed` is the lowest version that can say what the request says."""
        lowest, highest = self._versions.get(request.API_KEY, (0, -1))
        version = min(highest, request.MAX_VERSION)
        if version < max(lowest, request.MIN_VERSION, needed):
            fail(f"the broker at {self._address} is too old or too new: it has no {request.NAME} of this kind")
        return self._exchange(request, response, version)

    def _exchange(self, request: Request, response: type[Answer], version: int) -> Answer:
        self._correlation_id += 1
        flexible = version >= request.FLEXIBLE_SINCE
        frame = request_header(request.API_KEY, version, self._correlation_id, _CLIENT_ID, flexible=flexible)
        frame += request.encode(version)
        try:
            self._channel.sendall(len(frame).to_bytes(_SIZE_BYTES, "big") + frame)
            answered = memoryview(self._received())
            flexible = flexible and request.API_KEY != API_VERSIONS_KEY
            correlation_id, start = read_response_header(answered, flexible=flexible)
            if correlation_id != self._correlation_id:
                raise MalformedRequest(f"an answer to {correlation_id}")
            return response.decode(answered[start:], version)
        except TimeoutError:
            self._fail(f"did not answer within {self._timeout_s:g} s")
        except (OSError, MalformedRequest) as error:
            if self._has_answered and isinstance(error, OSError):
                self._fail("has closed the connection")
            self._fail("does not answer as brokers do without TLS and logins, which is all that this command knows")

    def is_closed(self) -> bool:
        """By the other side, while nothing was asked."""
        self._channel.setblocking(False)
        try:
            return self._channel.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._channel.settimeout(self._timeout_s)

    def _received(self) -> bytes:
        size = int.from_bytes(self._exactly(_SIZE_BYTES), "big")
        if size > _MAX_ANSWER_BYTES:
            raise MalformedRequest(f"an answer of {size} bytes")
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            chunk = self._channel.recv(min(count - len(received), 1 << 20))
            if not chunk:
                raise ConnectionError
            received += chunk
        return bytes(received)

    def _fail(self, how: str) -> NoReturn:
        self._channel.close()
        raise NoAnswer(f"the broker at {self._address} {how}", self._address) from None


class Cluster:
    """The brokers, each with one connection, made when it is asked something."""

    def __init__(self, bootstrap: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._addresses = addresses(bootstrap)
        self._connections: dict[Node, Connection] = {}
        self._seen: list[tuple[str, int]] = []
        try:
            self._any = Connection(reach(bootstrap), timeout_s)
        except NoAnswer as error:
            self._any = self._another(error)

    def ask(self, node: Node, request: Request, response: type[Answer], needed: int = 0) -> Answer:
        try:
            return self.try_to_ask(node, request, response, needed)
        except NoAnswer as error:
            fail(str(error))

    def try_to_ask(self, node: Node, request: Request, response: type[Answer], needed: int = 0) -> Answer:
        """Raises NoAnswer. A broker that was restarted since it was asked last is not gone."""
        connection = self._connections.pop(node, None)
        if connection is not None and connection.is_closed():
            connection = None
        if connection is None:
            connection = self._connected((node.host, node.port), f"broker {node}")
        answer = connection.ask(request, response, needed)
        self._connections[node] = connection
        return answer

    def ask_any(self, request: Request, response: type[Answer], needed: int = 0) -> Answer:
        """For what every broker can answer, or passes on. It may be asked twice."""
        try:
            return self._any.ask(request, response, needed)
        except NoAnswer as error:
            self._any = self._another(error)
        try:
            return self._any.ask(request, response, needed)
        except NoAnswer as error:
            fail(str(error))

    def _another(self, first: NoAnswer) -> Connection:
        """A broker that answers, of those that are known; the command ends here when there is none."""
        for host, port in dict.fromkeys((*self._addresses, *self._seen)):
            if f"{host}:{port}" != first.address:
                with suppress(NoAnswer):
                    return self._connected((host, port), f"{host}:{port}")
        return fail(str(first))

    def _connected(self, address: tuple[str, int], name: str) -> Connection:
        try:
            channel = socket.create_connection(address, self._timeout_s)
        except OSError as error:
            raise NoAnswer(f"{name}: {error.strerror or error}", f"{address[0]}:{address[1]}") from None
        return Connection(channel, self._timeout_s)

    def nodes(self) -> list[Node]:
        """Every broker."""
        return self._nodes(self.ask_any(MetadataRequest(topics=[]), MetadataResponse))

    def topics(self) -> tuple[dict[int, Node], dict[str, MetadataResponseTopic]]:
        """Every broker and every topic, by id and by name; a topic may have an error in place of partitions."""
        found = self.ask_any(MetadataRequest(topics=None), MetadataResponse)
        return {node.id: node for node in self._nodes(found)}, {topic.name or "": topic for topic in found.topics}

    def coordinator_of(self, transactional_id: str) -> Node:
        """Raises BrokerError while there is none."""
        request = FindCoordinatorRequest(
            key_type=_TRANSACTIONAL_ID, key=transactional_id, coordinator_keys=[transactional_id]
        )
        found = self.ask_any(request, FindCoordinatorResponse, needed=_SEVERAL_KEYS_SINCE)
        (coordinator,) = found.coordinators
        check(coordinator.error_code, coordinator.error_message)
        return Node(coordinator.node_id, coordinator.host, coordinator.port)

    def settled(self, what: str, attempt: Callable[[], Result]) -> Result:
        """What is answered once coordinators have stopped moving; a refusal ends the command."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return attempt()
            except BrokerError as refused:
                if refused.code not in _PASSING or time.monotonic() >= deadline:
                    fail(f"{what}: {reason(refused)}")
            time.sleep(_AGAIN_AFTER_S)

    def _nodes(self, found: MetadataResponse) -> list[Node]:
        nodes = sorted(
            (Node(broker.node_id, broker.host, broker.port) for broker in found.brokers), key=lambda node: node.id
        )
        self._seen = [(node.host, node.port) for node in nodes]
        return nodes


def check(code: int, message: str | None = None) -> None:
    """Raises what the broker answered, unless that is success."""
    if code == ErrorCode.NONE:
        return
    try:
        known = ErrorCode(code)
    except ValueError:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, message or error_name(code)) from None
    raise BrokerError(known, message or "")


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}, which this version does not know"


def reason(refused: BrokerError) -> str:
    """The broker's words for an error, if it has any, and its name, which is what one searches for."""
    name = refused.code.name
    return name if refused.message == name else f"{refused.message} ({name})"
