"""A blocking socket that speaks just enough of the protocol to say anything to a broker, right or wrong.

It checks nothing that it sends. Whether a request is flexible (KIP-482) it learns from `kio`'s schemas, which
nobody here wrote.
"""

import io
import itertools
import socket
import struct
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

_API_VERSIONS = 18
_SIZE = struct.Struct(">i")


class RequestMessage(Protocol):
    """What penstock.protocol.messages' request classes offer."""

    API_KEY: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]

    def encode(self, version: int) -> bytes: ...


class ResponseMessage(Protocol):
    @classmethod
    def decode(cls, body: bytes, version: int) -> Any: ...


Response = TypeVar("Response", bound=ResponseMessage)


class RawClient:
    """One connection. Every wait has the deadline given at the start; `TimeoutError` tells that it passed."""

    def __init__(self, address: tuple[str, int], *, timeout: float = 10, client_id: str | None = "raw") -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(address, timeout)
        self._correlation_ids = itertools.count(1)

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Bytes as they are, without a size in front."""
        self.socket.sendall(data)

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(_SIZE.pack(len(payload)) + payload)

    def receive_frame(self) -> bytes | None:
        """The payload of the next frame; None when the broker closed the connection in place of it."""
        size = self._receive_exactly(_SIZE.size)
        return None if size is None else self._receive_exactly(_SIZE.unpack(size)[0])

    def is_closed_by_broker(self) -> bool:
        """Waits for the broker to close; False when it sent something instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def send_request(self, api_key: int, version: int, body: bytes, *, flexible: bool | None = None) -> int:
        """Sends without waiting for the answer; returns the correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_frame(self.request_header(api_key, version, correlation_id, flexible=flexible) + body)
        return correlation_id

    def request_header(self, api_key: int, version: int, correlation_id: int, *, flexible: bool | None = None) -> bytes:
        is_flexible = _is_flexible(api_key, version) if flexible is None else flexible
        client_id = None if self.client_id is None else self.client_id.encode()
        header = struct.pack(">hhih", api_key, version, correlation_id, -1 if client_id is None else len(client_id))
        return header + (client_id or b"") + (b"\0" if is_flexible else b"")

    def receive_response(
        self, api_key: int, version: int, correlation_id: int, *, flexible: bool | None = None
    ) -> bytes:
        """The body of the next answer, which must be the one to `correlation_id`."""
        frame = self.receive_frame()
        if frame is None:
            raise ConnectionError(f"the broker closed the connection instead of answering request {correlation_id}")
        (answered_id,) = _SIZE.unpack_from(frame)
        assert answered_id == correlation_id, f"answer to request {answered_id}, expected {correlation_id}"
        is_flexible = _is_flexible(api_key, version) if flexible is None else flexible
        # ApiVersions keeps the old response header for ever, so that a client of any age can read it (KIP-511).
        return frame[5:] if is_flexible and api_key != _API_VERSIONS else frame[4:]

    def request(self, api_key: int, version: int, body: bytes, *, flexible: bool | None = None) -> bytes:
        """Sends a request body and returns the body of the answer."""
        correlation_id = self.send_request(api_key, version, body, flexible=flexible)
        return self.receive_response(api_key, version, correlation_id, flexible=flexible)

    def ask(self, request: Any) -> Any:
        """Sends a request of kio's classes and returns its answer, parsed by kio."""
        api_key, version = request.__api_key__, request.__version__
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        answer, _size = entity_reader(load_response_schema(api_key, version))(
            self.request(api_key, version, body.getvalue()), 0
        )
        return answer

    def exchange(self, request: RequestMessage, version: int, response: type[Response]) -> Response:
        """Sends a request of penstock.protocol.messages and returns its answer, parsed by the same package."""
        flexible = version >= request.FLEXIBLE_SINCE
        body = self.request(request.API_KEY, version, request.encode(version), flexible=flexible)
        answer: Response = response.decode(body, version)
        return answer

    def close(self) -> None:
        self.socket.close()

    def _receive_exactly(self, count: int) -> bytes | None:
        received = bytearray()
        while len(received) < count:
            try:
                chunk = self.socket.recv(count - len(received))
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            received += chunk
        return bytes(received)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_flexible(api_key: int, version: int) -> bool:
    return load_request_schema(api_key, version).__flexible__
