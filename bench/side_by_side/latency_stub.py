"""A server that hands every batch on at once: what is left of an end-to-end latency when the broker does nothing.

One producer, one consumer with a fetch that waits. The batch that the consumer gets is a prepared one, with the offset
that it asked for: what remains is the client, four wake-ups, and the loopback device.
"""

import os
import select
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from bench import wire
from bench.stub import serving

TOPIC_ID = bytes(16)
_PRODUCE_KEY = 0
_HEADER = struct.Struct(">ih")  # the frame's size, and its API


@contextmanager
def latency_stub(topic: str, batch: wire.Batch, cores: Collection[int] = ()) -> Iterator[tuple[str, int]]:
    """Runs it in its own process, on these cores or where its parent is, and yields its address."""
    with serving(_serve, topic, batch, cores) as address:
        yield address


def _serve(parent: Connection, topic: str, batch: wire.Batch, cores: Collection[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    server = socket.create_server(("127.0.0.1", 0))
    parent.send(server.getsockname()[1])
    relay = _Relay(topic, batch)
    poller = select.epoll()
    poller.register(server.fileno(), select.EPOLLIN)
    clients: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == server.fileno():
                client = server.accept()[0]
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client
                poller.register(client.fileno(), select.EPOLLIN)
            elif not relay.receive(clients[descriptor]):
                clients.pop(descriptor).close()


class _Relay:
    def __init__(self, topic: str, batch: wire.Batch) -> None:
        self._acknowledgement = wire.produce_response(topic, 0)
        self._fetched = bytearray(wire.fetch_response(TOPIC_ID, 0, batch.data))
        self._offset_position = self._fetched.index(batch.data)
        self._records_count = batch.records_count
        self._next_offset = 0
        self._produced = 0
        self._waiting: socket.socket | None = None
        self._received: dict[socket.socket, bytearray] = {}

    def receive(self, client: socket.socket) -> bool:
        """False when the client has gone."""
        try:
            chunk = client.recv(1 << 20)
        except ConnectionError:
            chunk = b""
        received = self._received.setdefault(client, bytearray())
        received += chunk
        while len(received) >= _HEADER.size:
            size, api_key = _HEADER.unpack_from(received)
            if len(received) < 4 + size:
                break
            del received[: 4 + size]
            if api_key == _PRODUCE_KEY:
                client.sendall(self._acknowledgement)
                self._produced += 1
            else:
                self._waiting = client
            self._hand_on()
        return bool(chunk)

    def _hand_on(self) -> None:
        if self._waiting is not None and self._produced:
            struct.pack_into(">q", self._fetched, self._offset_position, self._next_offset)
            self._waiting.sendall(self._fetched)
            self._next_offset += self._records_count
            self._produced -= 1
            self._waiting = None
