"""The raw replay client: pre-encoded requests, pipelined, counted by length.

It must cost less than the broker it measures. Both directions are streams of equal frames, so the client keeps two byte
counters per connection and does no work per request: it sends slices of one prepared buffer round and round, receives
into a ring of whole frames, and checks with strided slices that every response has the length and the error codes of a
success.
"""

import resource
import select
import socket
import time
from dataclasses import dataclass

SEND_AT_LEAST_SHARE = 4  # a quarter of the window must be free before more is sent, else each response costs one send
RING_BYTES = 1 << 18
STALL_S = 30


@dataclass(frozen=True, slots=True)
class Exchange:
    """Requests to repeat on one connection, and what every response must look like."""

    requests: bytes
    request_size: int
    response_size: int
    fixed_bytes: tuple[tuple[int, int], ...]
    """(position in the frame, value): the frame's length and its error codes."""

    window: int
    """How many requests may be unanswered."""

    client_host: str = "127.0.0.1"
    """The address to connect from: to a broker, a client with another address than its own is on another machine."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a run took, the client's own processor time included."""

    elapsed_s: float
    client_cpu_s: float


def success(response: bytes, error_positions: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """What all further responses must have in common with this first one: its length and no error."""
    length = tuple((position, response[position]) for position in range(4))
    no_errors = tuple((position + byte, 0) for position in error_positions for byte in (0, 1))
    return length + no_errors


def replay(address: tuple[str, int], exchanges: list[Exchange], count: int) -> Replayed:
    """Has `count` requests answered on each connection; the clock runs from the first send to the last response."""
    connections = [_Connection(address, exchange, count) for exchange in exchanges]
    with select.epoll() as poller:
        for connection in connections:
            poller.register(connection.socket.fileno(), select.EPOLLIN)
        cpu_before, started = _cpu_s(), time.perf_counter()
        _run(poller, connections)
        replayed = Replayed(time.perf_counter() - started, _cpu_s() - cpu_before)
    for connection in connections:
        connection.socket.close()
    return replayed


def _run(poller: select.epoll, connections: list["_Connection"]) -> None:
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    wanted = dict.fromkeys(by_descriptor, select.EPOLLIN)
    ready = [(descriptor, 0) for descriptor in by_descriptor]
    unfinished = len(connections)
    while True:
        for descriptor, events in ready:
            connection = by_descriptor[descriptor]
            if events and connection.receive():
                unfinished -= 1
            interest = select.EPOLLIN if connection.send() else select.EPOLLIN | select.EPOLLOUT
            if interest != wanted[descriptor]:
                wanted[descriptor] = interest
                poller.modify(descriptor, interest)
        if not unfinished:
            return
        ready = poller.poll(STALL_S)
        if not ready:
            for connection in connections:
                connection.check_unfinished()
            raise TimeoutError(f"no response for {STALL_S} s")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Connection:
    """One socket with the two counters. Every position is a stream position modulo the size of its buffer."""

    def __init__(self, address: tuple[str, int], exchange: Exchange, count: int) -> None:
        self.socket = socket.create_connection(address, source_address=(exchange.client_host, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._exchange = exchange
        self._requests = memoryview(exchange.requests)
        self._window_bytes = exchange.window * exchange.request_size
        self._send_at_least = max(exchange.request_size, self._window_bytes // SEND_AT_LEAST_SHARE)
        self._ring = memoryview(bytearray(max(1, RING_BYTES // exchange.response_size) * exchange.response_size))
        self._to_send = count * exchange.request_size
        self._to_receive = count * exchange.response_size
        self._sent = 0
        self._received = 0

    def send(self) -> bool:
        """Sends what the window allows; false when the socket took less than that."""
        answered = self._received // self._exchange.response_size * self._exchange.request_size
        limit = min(answered + self._window_bytes, self._to_send)
        if limit - self._sent < self._send_at_least and limit < self._to_send:
            return True
        while self._sent < limit:
            start = self._sent % len(self._requests)
            slice_ = self._requests[start : start + limit - self._sent]
            try:
                taken = self.socket.send(slice_)
            except BlockingIOError:
                return False
            self._sent += taken
        return True

    def receive(self) -> bool:
        """Receives what is there, once; true when the last response is complete."""
        start = self._received % len(self._ring)
        try:
            received = self.socket.recv_into(self._ring[start:])
        except BlockingIOError:
            return False
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._received += received
        self._check(start, start + received)
        return self._received == self._to_receive

    def check_unfinished(self) -> None:
        """A response shorter than a success, as most errors are, never fills its place: what has come of it tells."""
        size = self._exchange.response_size
        begun = self._received % size
        start = self._received % len(self._ring) - begun
        frame = self._ring[start : start + begun].tobytes()
        if any(frame[position] != value for position, value in self._exchange.fixed_bytes if position < begun):
            raise RuntimeError(f"a response is not a success: {frame[:80].hex(' ')}")

    def _check(self, start: int, end: int) -> None:
        """Checks the frames that ended between these two positions of the ring."""
        size = self._exchange.response_size
        first, last = start // size * size, end // size * size
        frames_count = (last - first) // size
        if not frames_count:
            return
        for position, value in self._exchange.fixed_bytes:
            if self._ring[first + position : last : size].tobytes().count(value) != frames_count:
                frames = [self._ring[at : at + min(size, 80)].tobytes() for at in range(first, last, size)]
                wrong = next(each for each in frames if each[position] != value)
                raise RuntimeError(f"a response is not a success, its byte {position} is not {value}: {wrong.hex(' ')}")
