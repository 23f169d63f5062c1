"""The load on NATS JetStream: streams and consumers through nats-py, messages as prepared bytes of the text protocol.

Every message is published with a reply subject, as JetStream's clients do to be acknowledged, and consumed by a pull
consumer without acknowledgements. nats-py itself publishes and reads an order of magnitude fewer messages a second than
the server takes, so it would be the only thing measured.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from bench.payloads import values
from bench.peers import loops
from bench.peers.peer import Load
from bench.replay import Replayed

CONSUMER = "bench"
REPLY = b"_INBOX.bench.acknowledgements"
DELIVERIES = b"_INBOX.bench.deliveries"
# What may be unacknowledged, or asked for and not yet there: the server cuts off a client that is 64 MiB behind.
WINDOW_BYTES = 4 << 20
WINDOW_MESSAGES = 4_000  # what nats-py allows


def create_stream(port: int, stream: str) -> None:
    """One subject of the stream's name, stored in files, one replica: JetStream's defaults."""

    async def create(jetstream: JetStreamContext) -> None:
        await jetstream.add_stream(name=stream, subjects=[stream])

    _administrate(port, create)


def delete_stream(port: int, stream: str) -> None:
    async def delete(jetstream: JetStreamContext) -> None:
        await jetstream.delete_stream(stream)

    _administrate(port, delete)


def write_one(port: int, stream: str, value: bytes) -> None:
    async def write(jetstream: JetStreamContext) -> None:
        await jetstream.publish(stream, value)

    _administrate(port, write)


def produce(load: Load) -> Replayed:
    with _connect(load.port) as connection:
        connection.sendall(b"SUB %b 1\r\n" % REPLY)
        message = _message(load)
        window = _window(load)
        replayed = loops.produce(connection, message, load.count, window, _Acknowledgements().count_in)
    _check_stored(load)
    return replayed


def consume(load: Load) -> Replayed:
    _create_consumer(load, DeliverPolicy.ALL)
    with _connect(load.port) as connection:
        deliveries = _Deliveries(connection, load, _window(load))
        deliveries.subscribe()
        return loops.consume(connection, load.count, deliveries.count_in)


def latencies_ms(load: Load, rate_per_s: int, seconds: float) -> list[float]:
    _create_consumer(load, DeliverPolicy.ALL)
    with _connect(load.port) as publisher, _connect(load.port) as consumer:
        publisher.sendall(b"SUB %b 1\r\n" % REPLY)
        deliveries = _Deliveries(consumer, load, WINDOW_MESSAGES)
        deliveries.subscribe()
        loop = loops.OpenLoop(publisher, consumer, _message(load))
        return loop.latencies_ms(rate_per_s, seconds, _Acknowledgements().count_in, deliveries.count_in)


class _Occurrences:
    """Counts a text in pieces of a stream, also where it spans two of them."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._rest = b""

    def count_in(self, piece: bytes) -> int:
        seen = self._rest + piece
        self._rest = seen[1 - len(self._text) :]
        return seen.count(self._text)


class _Acknowledgements(_Occurrences):
    """What comes back to a publisher, where an error has no other place to show itself."""

    def __init__(self) -> None:
        super().__init__(b'"seq":')

    def count_in(self, piece: bytes) -> int:
        if b'"error":' in piece or b"-ERR" in piece:
            raise RuntimeError(f"the server refused: {piece[:300]!r}")
        return super().count_in(piece)


class _Deliveries:
    """What a pull consumer sends, asked for in halves of a window, so that the server always has one to go on with."""

    def __init__(self, connection: socket.socket, load: Load, window: int) -> None:
        self._connection = connection
        self._half = max(1, window // 2)
        self._delivered = 0
        # No value has this in it.
        self._heads = _Occurrences(b"MSG %b 2 $JS.ACK." % load.stream.encode())
        wanted = json.dumps({"batch": self._half}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{load.stream}.{CONSUMER}".encode()
        self._request = b"PUB %b %b %d\r\n%b\r\n" % (subject, DELIVERIES, len(wanted), wanted)

    def subscribe(self) -> None:
        self._connection.sendall(b"SUB %b 2\r\n" % DELIVERIES + self._request * 2)

    def count_in(self, piece: bytes) -> int:
        count = self._heads.count_in(piece)
        halves_before, self._delivered = self._delivered // self._half, self._delivered + count
        halves = self._delivered // self._half - halves_before
        if halves:
            self._connection.sendall(self._request * halves)
        return count


def _message(load: Load) -> bytes:
    [value] = values(load.value_bytes, 1)
    return b"PUB %b %b %d\r\n%b\r\n" % (load.stream.encode(), REPLY, len(value), value)


def _window(load: Load) -> int:
    return max(2, min(WINDOW_MESSAGES, WINDOW_BYTES // load.value_bytes))


def _connect(port: int) -> socket.socket:
    connection = loops.connect(port)
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    greeting = b""
    while b"PONG\r\n" not in greeting:
        greeting += loops.receive(connection)
    return connection


def _create_consumer(load: Load, start: DeliverPolicy) -> None:
    async def create(jetstream: JetStreamContext) -> None:
        wanted = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.NONE, deliver_policy=start)
        await jetstream.add_consumer(load.stream, wanted)

    _administrate(load.port, create)


def _check_stored(load: Load) -> None:
    async def check(jetstream: JetStreamContext) -> None:
        stored = (await jetstream.stream_info(load.stream)).state.messages
        assert stored == load.count, f"{stored} messages are in {load.stream}, {load.count} were acknowledged"

    _administrate(load.port, check)


def _administrate(port: int, ask: Callable[[JetStreamContext], Awaitable[None]]) -> None:
    async def connect_and_ask() -> None:
        client = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        try:
            await ask(client.jetstream())
        finally:
            await client.close()

    asyncio.run(connect_and_ask())
