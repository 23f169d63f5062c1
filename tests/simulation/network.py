"""Connections between simulated hosts, as TCP gives them: in order within each, and otherwise as late as luck wants.

The two ends are the real ones: `net.channel.Channel` asks, `net.connection.Connection` serves. What is lost is lost
with its connection. A cut path keeps what is sent into it, and delivers it when it is mended, as TCP would; a path may
be cut in one direction only. Who was killed is missed at once, as the kernel says so; who lost power, when it is back.

Luck is drawn for each direction of each connection by itself: a run does not depend on the order in which several
connections are written to in the same moment.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context

from penstock.core.errors import ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.listeners import INTERNAL_LISTENER
from penstock.net.channel import MAX_ANSWER_BYTES, Address, Channel, NotSent, Opener, _Receiving
from penstock.net.cluster_key import Credentials
from penstock.net.connection import Session
from tests.simulation.loop import Process, ProcessState, Readable, SimulatedLoop

INTERNAL_PORT = 9093
CLIENT_PORT = 9092
APART_S = 1e-7
KNOCKS_EVERY_S = 0.1

# What the network does by itself is no process's.
_NOBODY = Context()

Accept = Callable[["ServerSocket", Session], None]


class Server:
    """A process that listens; None while there is none."""

    def __init__(self, process: Process, accept: Accept) -> None:
        self.process = process
        self.accept = accept


class Network:
    def __init__(self, loop: SimulatedLoop, seed: object) -> None:
        self.loop = loop
        self.seed = seed
        self.servers: dict[str, Server] = {}
        # Hosts without power: nobody there says that nobody is there.
        self.dark: set[str] = set()
        self.delivered = 0
        self.slow_share = 0.02
        self.slow_s = (0.01, 0.3)
        self._cut: set[tuple[str, str]] = set()
        self._wires: dict[Wire, None] = {}
        self._count: Counter[tuple[str, str]] = Counter()
        self._descriptors = 1_000_000

    # Faults

    def cut(self, source: str, destination: str) -> None:
        self._cut.add((source, destination))

    def mend(self, source: str, destination: str) -> None:
        self._cut.discard((source, destination))
        self._go_on()

    def mend_all(self) -> None:
        self._cut.clear()
        self._go_on()

    def is_cut(self, source: str, destination: str) -> bool:
        return (source, destination) in self._cut

    def _go_on(self) -> None:
        for wire in list(self._wires):
            wire.there.go_on()
            wire.back.go_on()

    def reset(self, host: str, other: str) -> None:
        """All connections between the two, with what is on its way."""
        for wire in self._between(host, other):
            wire.reset()

    def _between(self, host: str, other: str | None = None) -> list[Wire]:
        return [
            wire
            for wire in self._wires
            if host in (wire.client, wire.server) and (other is None or other in (wire.client, wire.server))
        ]

    def killed(self, host: str) -> None:
        """The kernel closes what the process had open."""
        self.servers.pop(host, None)
        for wire in self._between(host):
            wire.ended_at(host)

    def darkened(self, host: str) -> None:
        self.servers.pop(host, None)
        self.dark.add(host)

    def lit(self, host: str) -> None:
        """Who still believes in a connection to it learns that nobody knows of it."""
        self.dark.discard(host)
        for wire in self._between(host):
            wire.ended_at(host)

    # Connecting

    def listen(self, host: str, process: Process, accept: Accept) -> None:
        self.servers[host] = Server(process, accept)

    async def open_channel(
        self, client: str, process: Process, address: Address, *, broker_id: BrokerId | None = None, timeout_ms: int
    ) -> Channel:
        host, port = address
        self._count[client, host] += 1
        luck = random.Random(f"{self.seed}/{client}>{host}/{self._count[client, host]}")
        await asyncio.sleep(self.latency(luck) + self.latency(luck))
        give_up_s = self.loop.time() + timeout_ms / 1000
        while host in self.dark or self.is_cut(client, host) or self.is_cut(host, client):
            if self.loop.time() >= give_up_s:
                raise NotSent(ErrorCode.REQUEST_TIMED_OUT, f"{host} did not answer within {timeout_ms} ms")
            await asyncio.sleep(KNOCKS_EVERY_S)
        server = self.servers.get(host)
        if server is None:
            raise NotSent(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {host}: connection refused")
        channel = Channel(address, client)
        receiving = _Receiving(channel)
        receiving.max_answer_bytes = MAX_ANSWER_BYTES
        wire = Wire(self, luck, client, process, host, server.process, receiving)
        self._wires[wire] = None
        receiving.connection_made(wire.transport)
        is_internal = port == INTERNAL_PORT
        session = Session(
            self._descriptors,
            INTERNAL_LISTENER if is_internal else "PLAINTEXT",
            client,
            principal=f"Broker:{broker_id}" if is_internal else "User:ANONYMOUS",
            broker_id=broker_id if is_internal else None,
        )
        self.loop.call_soon(server.accept, wire.socket, session, context=server.process.context)
        return channel

    def opener(self, client: str, process: Process) -> Opener:
        """For `Channels`: brokers are taken to be who they say they are."""

        async def open_channel(address: Address, credentials: Credentials, *, timeout_ms: int) -> Channel:
            return await self.open_channel(
                client, process, address, broker_id=credentials.broker_id, timeout_ms=timeout_ms
            )

        return open_channel

    def latency(self, luck: random.Random) -> float:
        if luck.random() < self.slow_share:
            return luck.uniform(*self.slow_s)
        return luck.uniform(0.0001, 0.002)

    def forget(self, wire: Wire) -> None:
        self._wires.pop(wire, None)

    def next_descriptor(self) -> int:
        self._descriptors += 1
        return self._descriptors


class Wire:
    """One connection. What arrives at an end that is closed is thrown away."""

    def __init__(
        self,
        network: Network,
        luck: random.Random,
        client: str,
        client_process: Process,
        server: str,
        server_process: Process,
        receiving: _Receiving,
    ) -> None:
        self.network = network
        self.client = client
        self.server = server
        self.transport = _Transport(self)
        self.socket = ServerSocket(self, network.next_descriptor())
        self._receiving = receiving
        self._is_open_at_client = True
        self.there = Direction(self, luck, client, server, server_process, self.socket.arrived)
        self.back = Direction(self, luck, server, client, client_process, self._answered)

    def _answered(self, content: bytes | None) -> None:
        if not self._is_open_at_client:
            return
        if content is None:
            self._is_open_at_client = False
            self._forget_if_over()
            self._receiving.connection_lost(None)
            return
        while content and self._is_open_at_client:
            room = self._receiving.get_buffer(-1)
            count = min(len(room), len(content))
            room[:count] = content[:count]
            self._receiving.buffer_updated(count)
            content = content[count:]

    def client_closed(self) -> None:
        if self._is_open_at_client:
            self._is_open_at_client = False
            self.there.send(None)
            self._forget_if_over()

    def server_closed(self) -> None:
        self.back.send(None)
        self._forget_if_over()

    def ended_at(self, host: str) -> None:
        """Its process is gone: the other end hears of it."""
        if host == self.client:
            self.client_closed()
        else:
            self.socket.is_closed = True
            self.back.send(None)

    def reset(self) -> None:
        self.there.lose()
        self.back.lose()
        self.there.send(None)
        self.back.send(None)

    def _forget_if_over(self) -> None:
        if not self._is_open_at_client and self.socket.is_closed:
            self.network.forget(self)


class Direction:
    """Bytes from one end to the other; None is the end of them."""

    def __init__(
        self,
        wire: Wire,
        luck: random.Random,
        source: str,
        destination: str,
        process: Process,
        arrived: Callable[[bytes | None], None],
    ) -> None:
        self._network = wire.network
        self._luck = random.Random(luck.random())
        self._source = source
        self._destination = destination
        self._process = process
        self._arrived = arrived
        self._last_s = 0.0
        self._generation = 0
        self._held: list[bytes | None] = []

    def send(self, content: bytes | None) -> None:
        loop = self._network.loop
        # Timers of the same moment are in no order.
        self._last_s = max(self._last_s + APART_S, loop.time() + self._network.latency(self._luck))
        # Not the receiver's yet: it may be stopped, and the network goes on.
        loop.call_at(self._last_s, self._arrives, content, self._generation, context=_NOBODY)

    def _arrives(self, content: bytes | None, generation: int) -> None:
        if generation != self._generation:
            return
        if self._held or self._network.is_cut(self._source, self._destination):
            self._held.append(content)
        else:
            self._hand_over(content)

    def _hand_over(self, content: bytes | None) -> None:
        if self._process.state is not ProcessState.DEAD:
            self._network.delivered += 1
            self._network.loop.call_soon(self._arrived, content, context=self._process.context)

    def go_on(self) -> None:
        if self._held and not self._network.is_cut(self._source, self._destination):
            held, self._held = self._held, []
            for content in held:
                self._hand_over(content)

    def lose(self) -> None:
        self._generation += 1
        self._held.clear()


class _Transport(asyncio.Transport):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._wire.there.send(bytes(data))

    def abort(self) -> None:
        self._wire.client_closed()


class ServerSocket(Readable):
    """What a connection needs of a socket."""

    def __init__(self, wire: Wire, descriptor: int) -> None:
        self._wire = wire
        self._descriptor = descriptor
        self._received = bytearray()
        self._is_ended = False
        self.is_closed = False
        wire.network.loop.add_source(self)

    def arrived(self, content: bytes | None) -> None:
        if content is None:
            self._is_ended = True
        else:
            self._received += content
        self._wire.network.loop.poll(self._descriptor)

    @property
    def is_readable(self) -> bool:
        return not self.is_closed and (bool(self._received) or self._is_ended)

    def fileno(self) -> int:
        return self._descriptor

    def getsockname(self) -> tuple[str, int]:
        return (self._wire.server, CLIENT_PORT)

    def recv_into(self, buffer: memoryview) -> int:
        if not self._received:
            if self._is_ended:
                return 0
            raise BlockingIOError
        count = min(len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        del self._received[:count]
        return count

    def send(self, content: bytes | bytearray | memoryview, flags: int = 0) -> int:
        self._wire.back.send(bytes(content))
        return len(content)

    def sendmsg(self, contents: Sequence[bytes | bytearray | memoryview], _: tuple[()], flags: int = 0) -> int:
        return self.send(b"".join(contents), flags)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._wire.server_closed()
