"""Connections over real sockets, with a server whose answers the test controls."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.net.connection import MAX_ANSWERS_WAITING, RECEIVE_BUFFER_BYTES, Answer, Connection
from penstock.net.listener import ConnectionLimits, Listener
from penstock.net.spans import MAX_WINDOWS, WINDOWS
from penstock.runtime.clock import SystemClock
from penstock.runtime.tick import Tick

LIMITS = ConnectionLimits(
    max_frame_bytes=8 * 1024 * 1024,
    max_connections=50,
    max_connections_per_address=40,
    idle_limit_ms=60_000,
    read_deadline_ms=30_000,
)

# A client with another address than the broker's counts as one on another machine.
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"


@dataclass
class SteppingClock:
    at_ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


@dataclass
class Server:
    """Keeps every frame and its answer; answers nothing by itself unless `echo` is set."""

    frames: list[bytes] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    echo: bool = False
    listener: Listener = field(init=False)

    def serve(self, connection: Connection, frame: memoryview) -> None:
        content = bytes(frame)
        self.frames.append(content)
        self.connections.append(connection)
        answer = connection.expect_answer()
        self.answers.append(answer)
        if self.echo:
            answer.complete((framed(content),))


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = start(Server(), LIMITS)
    yield served
    served.listener.close()


def start(server: Server, limits: ConnectionLimits, clock: SteppingClock | SystemClock | None = None) -> Server:
    server.listener = Listener(
        name="PLAINTEXT",
        limits=limits,
        serve=server.serve,
        tick=Tick(asyncio.get_running_loop()),
        clock=clock or SystemClock(),
    )
    server.listener.bind("127.0.0.1", 0)
    server.listener.start()
    return server


async def connect(server: Server, client_host: str = HERE) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*server.listener.address, limit=2**24, local_addr=(client_host, 0))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 5), "big")
    return await asyncio.wait_for(reader.readexactly(size), 5)


async def until(condition, timeout_s: float = 5.0) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is about sockets, which have no event
            await asyncio.sleep(0)


async def test_given_frames_in_arbitrary_pieces_then_each_arrives_whole_and_in_order(server: Server) -> None:
    server.echo = True
    reader, writer = await connect(server)
    frames = [b"a", b"bc" * 5_000, b"d" * (RECEIVE_BUFFER_BYTES + 1), b"e" * 3_000_000, b"f"]
    stream = b"".join(framed(each) for each in frames)

    for start_at in range(2_000):
        writer.write(stream[start_at : start_at + 1])
        await asyncio.sleep(0)
    writer.write(stream[2_000:])

    assert [await read_frame(reader) for _ in frames] == frames
    assert server.frames == frames


async def test_given_answers_completed_out_of_order_then_they_leave_in_request_order(server: Server) -> None:
    reader, writer = await connect(server)
    writer.write(framed(b"1") + framed(b"2") + framed(b"3"))
    await until(lambda: len(server.answers) == 3)

    for index in (2, 1, 0):
        server.answers[index].complete((framed(b"answer %d" % (index + 1)),))

    assert [await read_frame(reader) for _ in range(3)] == [b"answer 1", b"answer 2", b"answer 3"]


async def test_given_a_client_that_pipelines_without_reading_then_it_is_not_read_until_it_is_answered(
    server: Server,
) -> None:
    reader, writer = await connect(server)
    total = 10 * MAX_ANSWERS_WAITING
    for number in range(total):
        writer.write(framed(b"%d" % number))
    await until(lambda: len(server.answers) >= MAX_ANSWERS_WAITING)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(server.answers) == MAX_ANSWERS_WAITING

    answered = 0
    while answered < total:
        await until(lambda seen=answered: len(server.answers) > seen)
        server.answers[answered].complete((framed(server.frames[answered]),))
        answered += 1

    assert [await read_frame(reader) for _ in range(total)] == [b"%d" % number for number in range(total)]


@dataclass(frozen=True)
class Span:
    file: Opened
    position: int
    length: int


@dataclass(frozen=True)
class Opened:
    fd: int


@pytest.mark.parametrize("client_host", [HERE, ELSEWHERE])
@pytest.mark.parametrize("length", [1, 64 * 1024, 64 * 1024 + 1, 5_000_000, 13_000_000])
async def test_given_a_file_span_between_bytes_then_all_of_it_arrives(
    server: Server, tmp_path: Path, length: int, client_host: str
) -> None:
    content = os.urandom(length + 10)
    (tmp_path / "segment").write_bytes(content)
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    reader, writer = await connect(server, client_host)
    writer.write(framed(b"fetch"))
    await until(lambda: bool(server.answers))

    server.answers[0].complete((struct.pack(">i", length + 6) + b"abc", Span(Opened(descriptor), 7, length), b"xyz"))

    assert await read_frame(reader) == b"abc" + content[7 : 7 + length] + b"xyz"
    os.close(descriptor)


async def test_given_a_file_that_is_cut_while_it_is_sent_then_only_that_connection_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "segment").write_bytes(bytes(1_000_000))
    descriptor, looked = os.open(tmp_path / "segment", os.O_RDONLY), os.fstat
    reader, writer = await connect(server)
    writer.write(framed(b"fetch"))
    await until(lambda: bool(server.answers))

    def cut_after_the_look(asked: int) -> os.stat_result:
        found = looked(asked)
        if asked == descriptor:
            os.truncate(tmp_path / "segment", 10)
        return found

    monkeypatch.setattr(os, "fstat", cut_after_the_look)
    server.answers[0].complete((struct.pack(">i", 1_000_000), Span(Opened(descriptor), 0, 1_000_000)))

    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await read_frame(reader)
    os.close(descriptor)


async def test_given_spans_of_thousands_of_partitions_then_all_of_them_arrive_in_order(
    server: Server, tmp_path: Path
) -> None:
    pieces = [b"%05d" % number for number in range(5_000)]
    (tmp_path / "segment").write_bytes(b"".join(pieces))
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    reader, writer = await connect(server, HERE)
    writer.write(framed(b"fetch"))
    await until(lambda: bool(server.answers))

    rows = [part for at in range(5_000) for part in (b"row ", Span(Opened(descriptor), 5 * at, 5))]
    server.answers[0].complete((struct.pack(">i", 9 * 5_000), *rows))

    assert await read_frame(reader) == b"".join(b"row " + piece for piece in pieces)
    os.close(descriptor)


@pytest.mark.parametrize("client_host", [HERE, ELSEWHERE])
async def test_given_a_slow_reader_then_the_answer_waits_in_the_file_and_not_in_memory(
    server: Server, tmp_path: Path, client_host: str
) -> None:
    length = 20_000_000
    (tmp_path / "segment").write_bytes(bytes(length))
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    sock = socket.create_connection(server.listener.address, source_address=(client_host, 0))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, framed(b"1") + framed(b"2"))
    await until(lambda: len(server.answers) == 2)

    for answer in server.answers:
        answer.complete((struct.pack(">i", length), Span(Opened(descriptor), 0, length)))
    received = 0
    while received < 2 * (length + 4):
        received += len(await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 5))

    assert received == 2 * (length + 4)
    sock.close()
    os.close(descriptor)


@pytest.mark.parametrize("client_host", [HERE, ELSEWHERE])
async def test_given_a_file_that_ends_inside_a_span_then_the_connection_is_closed_and_others_go_on(
    server: Server, tmp_path: Path, client_host: str
) -> None:
    (tmp_path / "segment").write_bytes(bytes(100_000))
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    reader, writer = await connect(server, client_host)
    writer.write(framed(b"fetch"))
    await until(lambda: bool(server.answers))

    server.answers[0].complete((struct.pack(">i", 200_000), Span(Opened(descriptor), 4_096, 200_000)))

    with pytest.raises(asyncio.IncompleteReadError):
        await read_frame(reader)
    server.echo = True
    reader, writer = await connect(server, client_host)
    writer.write(framed(b"other"))
    assert await read_frame(reader) == b"other"
    os.close(descriptor)


async def test_given_a_file_that_grows_when_it_is_read_on_then_what_was_added_arrives(
    server: Server, tmp_path: Path
) -> None:
    content = os.urandom(9_000_000)
    (tmp_path / "segment").write_bytes(b"")
    descriptor = os.open(tmp_path / "segment", os.O_RDWR)
    file = Opened(descriptor)
    reader, writer = await connect(server)
    for number, (start, end) in enumerate(pairwise([0, 20_000, 90_000, 4_500_000, 9_000_000])):
        os.pwrite(descriptor, content[start:end], start)
        writer.write(framed(b"fetch"))
        await until(lambda answered=number: len(server.answers) > answered)

        server.answers[number].complete((struct.pack(">i", end - start), Span(file, start, end - start)))

        assert await read_frame(reader) == content[start:end]
    os.close(descriptor)


async def test_given_many_files_when_they_are_read_then_few_stay_mapped_and_none_that_nobody_reads_any_more(
    server: Server, tmp_path: Path
) -> None:
    reader, writer = await connect(server)
    for number in range(2 * MAX_WINDOWS):
        content = os.urandom(100_000)
        (tmp_path / str(number)).write_bytes(content)
        descriptor = os.open(tmp_path / str(number), os.O_RDONLY)
        writer.write(framed(b"fetch"))
        await until(lambda answered=number: len(server.answers) > answered)

        server.answers[number].complete((struct.pack(">i", 100_000), Span(Opened(descriptor), 0, 100_000)))

        assert await read_frame(reader) == content
        os.close(descriptor)
    assert 0 < len(WINDOWS) <= MAX_WINDOWS

    await until(lambda: len(WINDOWS) == 0)


async def test_given_no_descriptor_left_to_map_a_file_then_it_is_sent_without(server: Server, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "segment").write_bytes(content)
    descriptor = os.open(tmp_path / "segment", os.O_RDONLY)
    reader, writer = await connect(server)
    writer.write(framed(b"fetch"))
    await until(lambda: bool(server.answers))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        server.answers[0].complete((struct.pack(">i", len(content)), Span(Opened(descriptor), 0, len(content))))

        assert await read_frame(reader) == content
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(descriptor)


@pytest.mark.parametrize("size", [0, -1, -(2**31), LIMITS.max_frame_bytes + 1, 0x7FFFFFFF, 0x16030100, 0x47455420])
async def test_given_an_impossible_size_then_the_connection_is_closed_and_others_go_on(
    server: Server, size: int
) -> None:
    server.echo = True
    reader, writer = await connect(server)

    writer.write(struct.pack(">i", size) + b"rest")

    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert server.listener.counters.malformed == 1
    other_reader, other_writer = await connect(server)
    other_writer.write(framed(b"still there?"))
    assert await read_frame(other_reader) == b"still there?"


async def test_given_half_a_request_then_silence_when_the_deadline_passes_then_it_is_closed() -> None:
    clock = SteppingClock()
    server = start(Server(), LIMITS, clock)
    _, writer = await connect(server)
    writer.write(struct.pack(">i", 1000) + b"half")
    await until(lambda: bool(server.listener.connections))
    (connection,) = server.listener.connections
    await until(lambda: connection.received_bytes == 8)

    for step_ms in (0, 29_000, 2_000):
        clock.at_ms += step_ms
        connection.sweep(clock.at_ms, idle_limit_ms=600_000, read_deadline_ms=30_000)
        writer.write(b".")  # one byte now and then does not help

    assert connection.closed
    server.listener.close()


async def test_given_silence_when_the_idle_limit_passes_then_it_is_closed(server: Server) -> None:
    reader, _ = await connect(server)
    await until(lambda: bool(server.listener.connections))
    (connection,) = server.listener.connections

    connection.sweep(1_000, idle_limit_ms=500, read_deadline_ms=100)
    connection.sweep(1_400, idle_limit_ms=500, read_deadline_ms=100)
    assert not connection.closed
    connection.sweep(1_501, idle_limit_ms=500, read_deadline_ms=100)

    assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_given_too_many_connections_then_the_next_one_is_closed_and_one_that_ends_makes_room() -> None:
    server = start(Server(echo=True), replace(LIMITS, max_connections_per_address=2))
    first = await connect(server)
    await connect(server)
    await until(lambda: len(server.listener.connections) == 2)

    refused_reader, _ = await connect(server)
    assert await asyncio.wait_for(refused_reader.read(), 5) == b""
    assert server.listener.counters.refused == 1

    first[1].close()
    await until(lambda: len(server.listener.connections) == 1)
    reader, writer = await connect(server)
    writer.write(framed(b"room"))
    assert await read_frame(reader) == b"room"
    server.listener.close()


async def test_given_a_waiting_answer_when_the_connection_closes_then_whoever_waits_is_told(server: Server) -> None:
    told = []
    _, writer = await connect(server)
    writer.write(framed(b"wait"))
    await until(lambda: bool(server.answers))
    server.answers[0].on_connection_closed = lambda: told.append(True)

    writer.close()

    await until(lambda: bool(told))


async def test_given_a_paused_connection_when_its_client_goes_then_the_next_sweep_closes_it(server: Server) -> None:
    _, writer = await connect(server)
    for _ in range(MAX_ANSWERS_WAITING + 10):
        writer.write(framed(b"wait"))
    await until(lambda: len(server.answers) == MAX_ANSWERS_WAITING)
    (connection,) = server.listener.connections
    connection.sweep(0, idle_limit_ms=600_000, read_deadline_ms=30_000)
    assert not connection.closed

    writer.close()
    await writer.wait_closed()

    def is_swept() -> bool:
        connection.sweep(0, idle_limit_ms=600_000, read_deadline_ms=30_000)
        return connection.closed

    await until(is_swept)


async def test_given_a_lent_frame_then_later_reads_do_not_touch_it(server: Server) -> None:
    kept: list[memoryview] = []

    def keep(connection: Connection, frame: memoryview) -> None:
        kept.append(frame)
        connection.lend()

    server.listener.close()
    server.listener = Listener("PLAINTEXT", LIMITS, keep, Tick(asyncio.get_running_loop()), SystemClock())
    server.listener.bind("127.0.0.1", 0)
    server.listener.start()
    _, writer = await connect(server)

    for number in range(100):
        writer.write(framed(b"%03d" % number * 1000))
        await until(lambda count=number + 1: len(kept) == count)

    assert [bytes(each) for each in kept] == [b"%03d" % number * 1000 for number in range(100)]
