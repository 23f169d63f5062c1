"""Requests at a fixed rate, whatever the broker does: latency as a user with a steady load meets it.

A latency counts from the moment the request was due, not from when it was sent, so a stall is charged to every request
that should have gone out during it.
"""

import gc
import os
import select
import socket
import time
from collections import deque
from functools import cache

from bench.replay import Exchange

WARM_UP_S = 1.0
STALL_S = 30


def open_loop_latencies_ms(
    address: tuple[str, int], exchanges: list[Exchange], rate_per_s: int, seconds: float
) -> list[float]:
    """Sends on the connections in turn; returns the latencies of what was due after the warm-up."""
    connections = [_Connection(address, exchange) for exchange in exchanges]
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    count = int(rate_per_s * (WARM_UP_S + seconds))
    latencies: list[float] = []
    gc.disable()
    started = time.perf_counter()
    sent = 0
    while len(latencies) < count:
        next_due = started + sent / rate_per_s if sent < count else started + count / rate_per_s + STALL_S
        # select, not epoll: its timeout counts in microseconds, epoll's in milliseconds.
        readable, _, _ = select.select(by_descriptor, (), (), max(0.0, next_due - time.perf_counter()))
        now = time.perf_counter()
        for descriptor in readable:
            latencies += by_descriptor[descriptor].latencies_ms()
        if sent == count and now >= next_due:
            raise TimeoutError(f"{count - len(latencies)} responses are missing after {STALL_S} s")
        while sent < count and started + sent / rate_per_s <= now:
            connections[sent % len(connections)].send(started + sent / rate_per_s)
            sent += 1
    for connection in connections:
        connection.socket.close()
    # Responses of different connections overtake each other by less than the warm-up matters.
    return latencies[int(rate_per_s * WARM_UP_S) :]


def patience_s(until: float) -> float:
    """How long an end-to-end client may sleep. With a core for itself it does not: to be woken by another core of a
    virtual machine takes longer than a broker needs for a record, twice for each message, whatever it talks to.
    """
    return 0.0 if _has_a_core_for_itself() else max(0.0, until - time.perf_counter())


@cache  # of the process, which stays where it was put
def _has_a_core_for_itself() -> bool:
    return len(os.sched_getaffinity(0)) == 1 < (os.cpu_count() or 1)


class _Connection:
    """One socket and the due times of its unanswered requests; the broker answers in order."""

    def __init__(self, address: tuple[str, int], exchange: Exchange) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._exchange = exchange
        self._request = exchange.requests[: exchange.request_size]
        self._due: deque[float] = deque()
        self._received = bytearray()

    def send(self, due: float) -> None:
        self._due.append(due)
        self.socket.sendall(self._request)

    def latencies_ms(self) -> list[float]:
        chunk = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        self._received += chunk
        frames_count, rest = divmod(len(self._received), self._exchange.response_size)
        for position, value in self._exchange.fixed_bytes:
            whole = len(self._received) - rest
            if self._received[position : whole : self._exchange.response_size].count(value) != frames_count:
                raise RuntimeError(f"a response is not a success: {self._received[:80].hex(' ')}")
        del self._received[: frames_count * self._exchange.response_size]
        return [(now - self._due.popleft()) * 1_000 for _ in range(frames_count)]
