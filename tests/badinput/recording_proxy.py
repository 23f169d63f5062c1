"""A man in the middle who writes down what clients say: requests of real clients, to be spoilt and replayed."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024


class RecordingProxy:
    """Listens on a port of its own and passes everything on. `requests` are the payloads of all frames sent so far."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._broker: tuple[str, int] | None = None
        self._sockets: list[socket.socket] = []
        self._streams: list[bytearray] = []
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    @property
    def bootstrap(self) -> str:
        return "{}:{}".format(*self.address)

    @property
    def requests(self) -> list[bytes]:
        return [payload for stream in self._streams for payload in _payloads(bytes(stream))]

    def forward_to(self, broker: tuple[str, int]) -> None:
        """From now on connections are taken."""
        self._broker = broker
        self._run(self._accept)

    def _run(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                assert self._broker is not None
                broker = socket.create_connection(self._broker)
                self._sockets += [client, broker]
                stream = bytearray()
                self._streams.append(stream)
                self._run(self._pass_on, client, broker, stream)
                self._run(self._pass_on, broker, client, bytearray())

    def _pass_on(self, source: socket.socket, target: socket.socket, record: bytearray) -> None:
        with suppress(OSError):  # one of the two hung up
            while data := source.recv(_CHUNK_BYTES):
                record += data
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever is in accept
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


def _payloads(stream: bytes) -> list[bytes]:
    payloads, at = [], 0
    while at + 4 <= len(stream):
        size = int.from_bytes(stream[at : at + 4], "big")
        if at + 4 + size > len(stream):
            break
        payloads.append(stream[at + 4 : at + 4 + size])
        at += 4 + size
    return payloads
