"""A server that does nothing but count: what the replay client reaches against it is the client's own ceiling.

It answers every `request_size` bytes with the next response of a prepared buffer, whatever the bytes are.
"""

import os
import select
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from bench.machine import SPAWN

RECEIVE_BUFFER_BYTES = 1 << 20


@contextmanager
def stub(request_size: int, response: bytes, cores: Collection[int] = ()) -> Iterator[tuple[str, int]]:
    """Runs the stub in its own process, on these cores or where its parent is, and yields its address."""
    with serving(_serve, request_size, response, cores) as address:
        yield address


@contextmanager
def serving(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[str, int]]:
    """Runs `serve(parent, *arguments)`, which tells its parent the port, in its own process."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=serve, args=(there, *arguments), daemon=True)
    process.start()
    try:
        yield "127.0.0.1", here.recv()
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection, request_size: int, response: bytes, cores: Collection[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    server = socket.create_server(("127.0.0.1", 0))
    parent.send(server.getsockname()[1])
    responses = response * max(1, (1 << 16) // len(response))
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    clients: dict[int, _Client] = {}
    poller = select.epoll()
    poller.register(server.fileno(), select.EPOLLIN)
    while True:
        for descriptor, events in poller.poll():
            if descriptor == server.fileno():
                client = _Client(server.accept()[0], request_size, len(response), responses)
                clients[client.socket.fileno()] = client
                poller.register(client.socket.fileno(), select.EPOLLIN)
                continue
            client = clients[descriptor]
            if events & (select.EPOLLIN | select.EPOLLHUP) and not client.receive(buffer):
                clients.pop(descriptor).socket.close()
                continue
            poller.modify(descriptor, select.EPOLLIN if client.send() else select.EPOLLIN | select.EPOLLOUT)


class _Client:
    """The replay client's connection seen from the other end: two counters and no look at the bytes."""

    def __init__(self, connection: socket.socket, request_size: int, response_size: int, responses: bytes) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._request_size = request_size
        self._response_size = response_size
        self._responses = memoryview(responses)
        self._received = 0
        self._sent = 0

    def receive(self, buffer: bytearray) -> bool:
        try:
            received = self.socket.recv_into(buffer)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        self._received += received
        return received > 0

    def send(self) -> bool:
        owed = self._received // self._request_size * self._response_size
        while self._sent < owed:
            start = self._sent % len(self._responses)
            try:
                self._sent += self.socket.send(self._responses[start : start + owed - self._sent])
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
        return True
