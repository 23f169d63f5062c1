"""One socket to one broker. A request goes in the newest version that both sides know.

Requests may be sent ahead: answers come in the order of the requests. An answer may be received into a buffer that is
used again and again; what it holds of records then is a view of that buffer.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from penstock.core.errors import MalformedRequest
from penstock.protocol.codec import Request, Response
from penstock.protocol.frames import API_VERSIONS_KEY, read_response_header, request_header
from penstock.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.errors import NoAnswer, NotAuthenticated, Unreachable, Unsupported
from penstock.wire.settings import Address, ClientSettings
from penstock.wire.tls import secured

Answer = TypeVar("Answer", bound=Response)

_SIZE_BYTES = 4
# What is not a broker may say anything: the first bytes of an HTTP answer would be a gigabyte.
_MAX_ANSWER_BYTES = 256 << 20
_ANY_BROKER_KNOWS = 0
_GROWTH_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Asked(Generic[Answer]):
    """A request that was sent; its answer is what the connection receives next, or after that of those before it."""

    response: type[Answer]
    version: int
    correlation_id: int
    has_tags: bool


class ReceiveBuffer:
    """As large as the largest answer so far. The next answer overwrites the one before."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def first(self, count: int) -> memoryview:
        if count > len(self._bytes):
            # Whoever still has a view of the old one keeps it.
            self._bytes = bytearray(-(-count // _GROWTH_BYTES) * _GROWTH_BYTES)
        return memoryview(self._bytes)[:count]


class Connection:
    """Everything it does raises NoAnswer when the broker does not behave as one."""

    def __init__(self, channel: socket.socket, address: Address, settings: ClientSettings) -> None:
        self._settings = settings
        self._address = address
        self._channel = channel
        self._correlation_id = 0
        self._answers = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def to(cls, address: Address, settings: ClientSettings, name: str = "") -> Connection:
        """`name` is what an error calls the broker."""
        try:
            channel = socket.create_connection(address, settings.connect_timeout_s)
        except OSError as error:
            raise NoAnswer(f"{name or address}: {error.strerror or error}", str(address)) from None
        return cls(channel, address, settings)

    def _begin(self) -> None:
        self._channel.settimeout(self._settings.request_timeout_s)
        self._channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._settings.tls is not None:
            try:
                self._channel = secured(self._channel, self._address, self._settings.tls)
            except ssl.SSLCertVerificationError as error:
                raise NotAuthenticated(
                    f"the broker at {self._address} is not trusted: {error.verify_message}"
                ) from None
            except OSError as error:
                self._fail(f"cannot be talked to with TLS: {getattr(error, 'reason', None) or error}")
        known = self.receive(self._send(ApiVersionsRequest(), ApiVersionsResponse, _ANY_BROKER_KNOWS))
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in known.api_keys}
        if self._settings.login is not None:
            from penstock.wire.login import log_in

            log_in(self, self._settings.login)

    @property
    def address(self) -> Address:
        return self._address

    def ask(self, request: Request, response: type[Answer], needed: int = 0, at_most: int | None = None) -> Answer:
        """`needed` is the lowest version that can say what the request says, `at_most` the highest."""
        return self.receive(self.send(request, response, needed, at_most))

    def send(
        self, request: Request, response: type[Answer], needed: int = 0, at_most: int | None = None
    ) -> Asked[Answer]:
        """As `ask`, but the answer is still to be received."""
        return self._send(request, response, self.version_of(request, needed, at_most))

    def version_of(self, request: Request, needed: int = 0, at_most: int | None = None) -> int:
        lowest, highest = self._versions.get(request.API_KEY, (0, -1))
        version = min(highest, request.MAX_VERSION if at_most is None else at_most)
        if version < max(lowest, request.MIN_VERSION, needed):
            raise Unsupported(
                f"the broker at {self._address} is too old or too new: it has no {request.NAME} of this kind"
            )
        return version

    def _send(self, request: Request, response: type[Answer], version: int) -> Asked[Answer]:
        self._correlation_id += 1
        flexible = version >= request.FLEXIBLE_SINCE
        client_id = self._settings.client_id
        frame = request_header(request.API_KEY, version, self._correlation_id, client_id, flexible=flexible)
        frame += request.encode(version)
        try:
            self._channel.sendall(len(frame).to_bytes(_SIZE_BYTES, "big") + frame)
        except OSError as error:
            self._broken(error)
        has_tags = flexible and request.API_KEY != API_VERSIONS_KEY
        return Asked(response, version, self._correlation_id, has_tags)

    def receive(self, asked: Asked[Answer], buffer: ReceiveBuffer | None = None) -> Answer:
        try:
            answered = self._received(buffer or ReceiveBuffer())
            correlation_id, start = read_response_header(answered, flexible=asked.has_tags)
            if correlation_id != asked.correlation_id:
                raise MalformedRequest(f"an answer to {correlation_id}")
            answer = asked.response.decode(answered[start:], asked.version)
        except (OSError, MalformedRequest) as error:
            self._broken(error)
        self._answers += 1
        return answer

    def fileno(self) -> int:
        return self._channel.fileno()

    def has_unread(self) -> bool:
        """Whether TLS has decrypted more than was read, of which the socket knows nothing."""
        return isinstance(self._channel, ssl.SSLSocket) and self._channel.pending() > 0

    def is_closed(self) -> bool:
        """By us, or by the other side while nothing was asked: nothing else could come."""
        if self._channel.fileno() < 0:
            return True
        self._channel.setblocking(False)
        try:
            self._channel.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        finally:
            self._channel.settimeout(self._settings.request_timeout_s)
        return True

    def close(self) -> None:
        self._channel.close()

    def _received(self, buffer: ReceiveBuffer) -> memoryview:
        size = int.from_bytes(self._exactly(buffer.first(_SIZE_BYTES)), "big")
        if size > _MAX_ANSWER_BYTES:
            raise MalformedRequest(f"an answer of {size} bytes")
        return self._exactly(buffer.first(size))

    def _exactly(self, view: memoryview) -> memoryview:
        at = 0
        while at < len(view):
            count = self._channel.recv_into(view[at:])
            if not count:
                raise ConnectionError
            at += count
        return view

    def _broken(self, error: Exception) -> NoReturn:
        if isinstance(error, TimeoutError):
            self._fail(f"did not answer within {self._settings.request_timeout_s:g} s")
        if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
            # In TLS 1.3 the client has long finished when the broker looks at its certificate.
            self.close()
            raise NotAuthenticated(f"the broker at {self._address} does not trust us: {error.reason}") from None
        protocol = self._settings.security_protocol
        if self._answers and isinstance(error, OSError):
            # Anybody may ask for versions.
            wants_login = self._answers == 1 and self._settings.login is None
            hint = f": perhaps it wants a login (security.protocol is {protocol})" if wants_login else ""
            self._fail(f"has closed the connection{hint}")
        how = "without TLS and logins" if protocol == "PLAINTEXT" else "when asked like this"
        self._fail(f"does not answer as brokers do {how} (security.protocol is {protocol})")

    def _fail(self, how: str) -> NoReturn:
        self.close()
        raise NoAnswer(f"the broker at {self._address} {how}", str(self._address)) from None


def with_answers(connections: Iterable[Connection], timeout_s: float) -> list[Connection]:
    """All that have something to receive, or are broken, as soon as there is one."""
    found = []
    poller = select.poll()
    by_number = {}
    for each in connections:
        number = each.fileno()
        if number < 0 or each.has_unread():
            found.append(each)
        else:
            by_number[number] = each
            poller.register(number, select.POLLIN)
    pause_ms = 0.0 if found else max(0.0, timeout_s) * 1_000
    return found + [by_number[number] for number, _ in poller.poll(pause_ms)]


def reach(addresses: Iterable[Address], timeout_s: float) -> tuple[socket.socket, Address]:
    """The first of the brokers that lets us connect. Raises Unreachable."""
    reasons = []
    for address in addresses:
        try:
            return socket.create_connection(address, timeout_s), address
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise Unreachable(f"no broker there, is it running? {'; '.join(reasons)}")
