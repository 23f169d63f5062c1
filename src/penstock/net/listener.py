"""Accepts connections within their limits, and ends the ones that overstay.

Refusing is cheap and visible: a connection over a limit is accepted and closed at once (all that TCP allows), counted,
and logged once per address and minute.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.net.connection import Connection, Session
from penstock.net.spans import WINDOWS
from penstock.runtime.clock import Clock
from penstock.runtime.tick import Tick

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
SWEEP_INTERVAL_S = 1.0
REFUSAL_LOG_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_frame_bytes: int
    max_connections: int
    max_connections_per_address: int
    idle_limit_ms: int
    read_deadline_ms: int
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1


@dataclass(slots=True)
class ConnectionCounters:
    accepted: int = 0
    closed: int = 0
    refused: int = 0
    malformed: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class Listener:
    """One listening socket and its connections."""

    name: str
    limits: ConnectionLimits
    serve: Callable[[Connection, memoryview], None]
    tick: Tick
    clock: Clock
    connections: set[Connection] = field(default_factory=set)
    counters: ConnectionCounters = field(default_factory=ConnectionCounters)
    address: tuple[str, int] = ("", 0)
    _socket: socket.socket | None = None
    _per_address: Counter[str] = field(default_factory=Counter)
    _refusal_logged_ms: dict[str, int] = field(default_factory=dict)
    _next_connection_id: int = 0
    _sweeper: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `address` has it. Clients wait until `start`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self.limits.receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)
            sock.setblocking(False)
            sock.bind((host, port))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        self._socket = sock
        self.address = sock.getsockname()[:2]

    def start(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), self._accept)
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._rest(error)
                    return
                continue  # the client gave up between its connect and our accept
            self._admit(sock, address[0])

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: trying again at once would spin, so listen again a little later."""
        assert self._socket is not None
        log.error("cannot accept connections", extra={"listener": self.name, "error": error.strerror})
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        loop.call_later(0.2, self._listen_again)

    def _listen_again(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _admit(self, sock: socket.socket, host: str) -> None:
        limits = self.limits
        if len(self.connections) >= limits.max_connections:
            self._refuse(sock, host, f"max.connections={limits.max_connections}")
            return
        if self._per_address[host] >= limits.max_connections_per_address:
            self._refuse(sock, host, f"max.connections.per.ip={limits.max_connections_per_address}")
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        self._next_connection_id += 1
        self._per_address[host] += 1
        self.counters.accepted += 1
        self.connections.add(
            Connection(
                sock,
                Session(self._next_connection_id, self.name, host),
                serve=self.serve,
                on_closed=self._closed,
                tick=self.tick,
                loop=asyncio.get_running_loop(),
                max_frame_bytes=limits.max_frame_bytes,
                now_ms=self.clock.monotonic_ms(),
            )
        )

    def _refuse(self, sock: socket.socket, host: str, limit: str) -> None:
        sock.close()
        self.counters.refused += 1
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._refusal_logged_ms.get(host, -REFUSAL_LOG_INTERVAL_MS) >= REFUSAL_LOG_INTERVAL_MS:
            self._refusal_logged_ms = {host: now_ms}
            log.warning("connection refused", extra={"listener": self.name, "client_host": host, "limit": limit})

    def _closed(self, connection: Connection, reason: str) -> None:
        host = connection.session.client_host
        self.connections.discard(connection)
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        counters = self.counters
        counters.closed += 1
        counters.received_bytes += connection.received_bytes
        counters.sent_bytes += connection.sent_bytes
        if reason.startswith("malformed"):
            counters.malformed += 1
            log.warning("connection closed", extra={"client_host": host, "reason": reason})
        else:
            log.debug("connection closed", extra={"client_host": host, "reason": reason})

    def _sweep(self) -> None:
        now_ms = self.clock.monotonic_ms()
        limits = self.limits
        for connection in list(self.connections):
            connection.sweep(now_ms, idle_limit_ms=limits.idle_limit_ms, read_deadline_ms=limits.read_deadline_ms)
        WINDOWS.sweep(now_ms)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)

    def stop_accepting(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self.stop_accepting()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close("the broker is stopping")
