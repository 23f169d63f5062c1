"""The two ways to drive a peer: as fast as it acknowledges, and at a fixed rate whatever it does.

Both count messages in what arrives instead of reading them: the client must cost less than the peer. A stream keeps the
order of one publisher, so the n-th message that a consumer gets is the n-th that was due.
"""

import gc
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from bench.open_loop import WARM_UP_S, patience_s
from bench.replay import Replayed

RECEIVE_BYTES = 1 << 20
STALL_S = 120

Counting = Callable[[bytes], int]
"""How many messages or acknowledgements a piece of what was received completes."""


class Stopwatch:
    """Time on the clock and of this process."""

    def __init__(self) -> None:
        self._cpu_before_s, self._started = _cpu_s(), time.perf_counter()

    def read(self) -> Replayed:
        return Replayed(time.perf_counter() - self._started, _cpu_s() - self._cpu_before_s)


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=STALL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket) -> bytes:
    piece = connection.recv(RECEIVE_BYTES)
    if not piece:
        raise ConnectionError("the peer closed the connection")
    return piece


def produce(connection: socket.socket, message: bytes, count: int, window: int, acknowledged_in: Counting) -> Replayed:
    """Sends the same `message` so often, never with more than `window` of them unacknowledged."""
    messages = memoryview(message * window)
    total_bytes, sent_bytes, acknowledged = count * len(message), 0, 0
    connection.setblocking(False)
    stopwatch = Stopwatch()
    while acknowledged < count:
        limit_bytes = min(total_bytes, (acknowledged + window) * len(message))
        # A quarter of the window must be free before more is sent, else every acknowledgement costs a call.
        wants = (
            limit_bytes - sent_bytes >= min(len(messages) // 4, total_bytes - sent_bytes) and sent_bytes < limit_bytes
        )
        readable, writable, _ = select.select([connection], [connection] if wants else (), (), STALL_S)
        if not readable and not writable:
            raise TimeoutError(f"{count - acknowledged} messages are not acknowledged after {STALL_S} s")
        if readable:
            acknowledged += acknowledged_in(receive(connection))
        if writable:
            start = sent_bytes % len(messages)
            sent_bytes += connection.send(messages[start : start + limit_bytes - sent_bytes])
    return stopwatch.read()


def consume(connection: socket.socket, count: int, delivered_in: Counting) -> Replayed:
    """Until so many messages have come; `delivered_in` asks for more where the protocol wants that."""
    stopwatch = Stopwatch()
    delivered = 0
    while delivered < count:
        delivered += delivered_in(receive(connection))
    return stopwatch.read()


class OpenLoop:
    """One publisher and one consumer at a fixed rate. Latency counts from when a message was due."""

    def __init__(self, publisher: socket.socket, consumer: socket.socket, message: bytes) -> None:
        self._publisher, self._consumer, self._message = publisher, consumer, message
        self._due: deque[float] = deque()
        self._latencies_ms: list[float] = []

    def latencies_ms(
        self, rate_per_s: int, seconds: float, acknowledged_in: Counting, delivered_in: Counting
    ) -> list[float]:
        """Of what was due after the warm-up."""
        count = int(rate_per_s * (WARM_UP_S + seconds))
        sent = acknowledged = 0
        gc.disable()
        started = time.perf_counter()
        while len(self._latencies_ms) < count or acknowledged < count:
            next_due = started + (sent / rate_per_s if sent < count else count / rate_per_s + STALL_S)
            readable, _, _ = select.select((self._consumer, self._publisher), (), (), patience_s(next_due))
            if self._consumer in readable:
                self._delivered(delivered_in(receive(self._consumer)))
            if self._publisher in readable:
                acknowledged += acknowledged_in(receive(self._publisher))
            now = time.perf_counter()
            if sent == count and now >= next_due:
                raise TimeoutError(f"{len(self._due)} messages have not come after {STALL_S} s")
            due_count = min(count, int((now - started) * rate_per_s) + 1) - sent
            if due_count > 0:
                self._due.extend(started + number / rate_per_s for number in range(sent, sent + due_count))
                self._publisher.sendall(self._message * due_count)
                sent += due_count
        return self._latencies_ms[int(rate_per_s * WARM_UP_S) :]

    def _delivered(self, count: int) -> None:
        now = time.perf_counter()
        for _ in range(count):
            self._latencies_ms.append((now - self._due.popleft()) * 1_000)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
