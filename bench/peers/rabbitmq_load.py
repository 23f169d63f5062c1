"""The load on RabbitMQ streams: the conversation in rstream's frames, messages as prepared bytes of that protocol.

Values are published in frames of many, as all of its clients do, and every one is confirmed. A publisher without a name
may use the same publishing ids again, so one prepared frame serves all along. rstream's own producer and consumer make
objects of every message, which costs far more than the broker's part.
"""

import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

from rstream import schema
from rstream.constants import OffsetType
from rstream.encoding import decode_frame, encode_frame, encode_publish

from bench.payloads import values
from bench.peers import loops
from bench.peers.peer import Load
from bench.replay import Replayed

USER = PASSWORD = "guest"  # the one that a new node has, for loopback only
PUBLISHER_ID = SUBSCRIPTION_ID = 1
FRAME_VALUES = 100  # what RabbitMQ's Java client sends at once by default
WINDOW_BYTES = 4 << 20
# Chunks that may be on their way to a consumer.
CREDIT = 50
OK, NO_SUCH_STREAM, STREAM_EXISTS = 1, 2, 5
ATTEMPTS = 5
SIZE_BYTES = 4
# Up to the number of messages in a chunk, the last that is looked at; a confirm has its own earlier.
HEAD_BYTES = 17
CONFIRM, DELIVER = 3, 8

Answer = TypeVar("Answer", bound=schema.Frame)


class Refused(Exception):
    """The broker said no, with its code where it gave one."""

    def __init__(self, message: str, code: int = OK) -> None:
        super().__init__(message)
        self.code = code


class Conversation:
    """A connection that asks and waits for the answer, until it is handed over to a loop."""

    def __init__(self, port: int) -> None:
        self.socket = loops.connect(port)
        self._number = 0
        try:
            self._log_in()
        except BaseException:
            self.socket.close()
            raise

    def ask(self, question: schema.Frame, answer: type[Answer]) -> Answer:
        self.socket.sendall(encode_frame(question))
        found = self._next(answer)
        code = getattr(found, "response_code", OK)
        if code != OK:
            raise Refused(f"{type(question).__name__} got the response code {code}", code)
        return found

    def number(self) -> int:
        """A correlation id."""
        self._number += 1
        return self._number

    def _log_in(self) -> None:
        self.ask(schema.PeerProperties(self.number(), properties=[]), schema.PeerPropertiesResponse)
        self.ask(schema.SaslHandshake(self.number()), schema.SaslHandshakeResponse)
        secret = f"\0{USER}\0{PASSWORD}".encode()
        self.ask(schema.SaslAuthenticate(self.number(), "PLAIN", secret), schema.SaslAuthenticateResponse)
        tune = self._next(schema.Tune)
        no_heartbeats = 0
        self.socket.sendall(encode_frame(schema.Tune(frame_max=tune.frame_max, heartbeat=no_heartbeats)))
        self.ask(schema.Open(self.number(), virtual_host="/"), schema.OpenResponse)

    def _next(self, wanted: type[Answer]) -> Answer:
        frame = decode_frame(self._next_raw())
        if not isinstance(frame, wanted):
            raise Refused(f"{frame} came, a {wanted.__name__} was expected")
        return frame

    def _next_raw(self) -> bytes:
        """Not a byte more than that: what follows belongs to the loop."""
        return self._exactly(int.from_bytes(self._exactly(SIZE_BYTES)))

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            piece = self.socket.recv(size - len(received))
            if not piece:
                raise ConnectionError("RabbitMQ closed the connection")
            received += piece
        return received

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def greet(port: int) -> None:
    Conversation(port).socket.close()


def create_stream(port: int, stream: str) -> None:
    def create(conversation: Conversation) -> None:
        question = schema.Create(conversation.number(), stream=stream, arguments=[])
        conversation.ask(question, schema.CreateResponse)

    _insist(port, create, STREAM_EXISTS)


def delete_stream(port: int, stream: str) -> None:
    def delete(conversation: Conversation) -> None:
        conversation.ask(schema.Delete(conversation.number(), stream=stream), schema.DeleteResponse)

    _insist(port, delete, NO_SUCH_STREAM)


def _insist(port: int, ask: Callable[[Conversation], None], done_already: int) -> None:
    """A node that takes longer than five seconds for it, on a busy machine, hangs up and does it nevertheless."""
    for attempt in range(ATTEMPTS):
        try:
            with Conversation(port) as conversation:
                ask(conversation)
            return
        except ConnectionError:
            if attempt == ATTEMPTS - 1:
                raise
        except Refused as refusal:
            if not attempt or refusal.code != done_already:
                raise
            return


def write_one(port: int, stream: str, value: bytes) -> None:
    with Conversation(port) as conversation:
        _declare_publisher(conversation, stream)
        loops.produce(conversation.socket, _publish_frame(value, 1), 1, 1, _Confirms().count_in)


def produce(load: Load) -> Replayed:
    per_frame = min(FRAME_VALUES, load.count)
    frames_count, rest = divmod(load.count, per_frame)
    assert not rest, f"{load.count} values do not fill frames of {per_frame}"
    with Conversation(load.port) as conversation:
        _declare_publisher(conversation, load.stream)
        frame = _publish_frame(_value(load), per_frame)
        window = max(2, WINDOW_BYTES // len(frame))
        confirms = _Confirms(per_frame)
        return loops.produce(conversation.socket, frame, frames_count, window, confirms.count_in)


def consume(load: Load) -> Replayed:
    with Conversation(load.port) as conversation:
        _subscribe(conversation, load.stream)
        return loops.consume(conversation.socket, load.count, _Chunks(conversation.socket).count_in)


def latencies_ms(load: Load, rate_per_s: int, seconds: float) -> list[float]:
    with Conversation(load.port) as publisher, Conversation(load.port) as consumer:
        _declare_publisher(publisher, load.stream)
        _subscribe(consumer, load.stream)
        loop = loops.OpenLoop(publisher.socket, consumer.socket, _publish_frame(_value(load), 1))
        chunks = _Chunks(consumer.socket)
        return loop.latencies_ms(rate_per_s, seconds, _Confirms().count_in, chunks.count_in)


class _Heads:
    """The first bytes of every frame in a stream of bytes; the rest of it is skipped, not copied."""

    def __init__(self) -> None:
        self._held = b""
        self._to_skip = 0

    def next_in(self, piece: bytes) -> Iterator[bytes]:
        seen = self._held + piece if self._held else piece
        position = self._to_skip
        while position + HEAD_BYTES <= len(seen):
            head = seen[position : position + HEAD_BYTES]
            position += SIZE_BYTES + int.from_bytes(head[:SIZE_BYTES])
            yield head
        self._to_skip = max(0, position - len(seen))
        self._held = seen[position:]


class _Confirms:
    """Counts frames whose values are all confirmed."""

    def __init__(self, per_frame: int = 1) -> None:
        self._per_frame = per_frame
        self._confirmed = 0
        self._heads = _Heads()

    def count_in(self, piece: bytes) -> int:
        frames_before = self._confirmed // self._per_frame
        for head in self._heads.next_in(piece):
            if _key(head) != CONFIRM:
                raise Refused(f"no confirm but a frame with the key {_key(head)}: {head.hex(' ')}")
            self._confirmed += int.from_bytes(head[9:13])
        return self._confirmed // self._per_frame - frames_before


class _Chunks:
    """Counts values in what is delivered, and asks for another chunk for each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._credit = encode_frame(schema.Credit(subscription_id=SUBSCRIPTION_ID, credit=1))
        self._heads = _Heads()

    def count_in(self, piece: bytes) -> int:
        heads = list(self._heads.next_in(piece))
        for head in heads:
            if _key(head) != DELIVER:
                raise Refused(f"no chunk but a frame with the key {_key(head)}: {head.hex(' ')}")
        if heads:
            self._connection.sendall(self._credit * len(heads))
        return sum(int.from_bytes(head[13:17]) for head in heads)


def _key(head: bytes) -> int:
    return int.from_bytes(head[4:6]) & 0x7FFF


def _value(load: Load) -> bytes:
    [value] = values(load.value_bytes, 1)
    return value


def _publish_frame(value: bytes, count: int) -> bytes:
    messages = [schema.Message(publishing_id=number, filter_value=None, data=value) for number in range(count)]
    return bytes(encode_publish(schema.Publish(publisher_id=PUBLISHER_ID, messages=messages), 1))


def _declare_publisher(conversation: Conversation, stream: str) -> None:
    nameless = ""
    question = schema.DeclarePublisher(conversation.number(), PUBLISHER_ID, nameless, stream)
    conversation.ask(question, schema.DeclarePublisherResponse)


def _subscribe(conversation: Conversation, stream: str) -> None:
    question = schema.Subscribe(
        conversation.number(),
        SUBSCRIPTION_ID,
        stream,
        schema.OffsetSpec(OffsetType.FIRST),
        CREDIT,
        properties=[],
    )
    conversation.ask(question, schema.SubscribeResponse)
