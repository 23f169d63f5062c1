"""Channels between brokers over real sockets: the real listener and gate, with answers that the test controls."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.handlers.internal_gate import MAX_UNPROVEN_FRAME_BYTES, InternalGate
from penstock.handlers.responses import response_frame
from penstock.net.channel import (
    MAX_KEPT_BYTES,
    MAX_UNPROVEN_ANSWER_BYTES,
    READ_BYTES,
    Address,
    Channel,
    Channels,
    NoAnswer,
    NotSent,
    open_channel,
)
from penstock.net.cluster_key import ITERATIONS, MECHANISM, ClientProof, Credentials, ServerProof, Verifier
from penstock.net.connection import Answer, Connection, Session
from penstock.net.listener import ConnectionLimits, Listener
from penstock.net.rounds import MAX_IN_A_ROUND, Rounds
from penstock.protocol.codec import Request, Response
from penstock.protocol.frames import RequestHeader, read_request_header, request_header
from penstock.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.protocol.messages.cluster import MetadataRequest
from penstock.protocol.messages.internal import AskControllerRequest, AskControllerResponse
from penstock.protocol.messages.table import FLEXIBLE_SINCE
from penstock.runtime.clock import SystemClock
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick

KEY = base64.b64encode(bytes(range(32))).decode()
ANOTHER_KEY = base64.b64encode(bytes(range(1, 33))).decode()
TWO = Credentials(BrokerId(2), KEY)
LIMITS = ConnectionLimits(
    max_frame_bytes=MAX_UNPROVEN_FRAME_BYTES,
    max_connections=50,
    max_connections_per_address=50,
    idle_limit_ms=60_000,
    read_deadline_ms=30_000,
)
MAX_FRAME_BYTES = 32 * 1024 * 1024
_FLEXIBLE = FLEXIBLE_SINCE | {AskControllerRequest.API_KEY: AskControllerRequest.FLEXIBLE_SINCE}


@dataclass
class Peer:
    """Another broker's internal listener. It answers with what it was sent, unless told to keep it (`hold`)."""

    key: str | None = KEY
    sessions: list[Session] = field(default_factory=list)
    requests: list[AskControllerRequest] = field(default_factory=list)
    held: list[tuple[Answer, RequestHeader]] = field(default_factory=list)
    hold: bool = False
    listener: Listener = field(init=False)

    def __post_init__(self) -> None:
        gate = InternalGate(self.serve, lambda: self.key, MAX_FRAME_BYTES)
        self.listener = Listener(
            name="INTERNAL",
            limits=LIMITS,
            serve=gate.serve,
            tick=Tick(asyncio.get_running_loop()),
            clock=SystemClock(),
        )
        self.listener.bind("127.0.0.1", 0)
        self.listener.start()

    @property
    def address(self) -> Address:
        return self.listener.address

    def serve(self, connection: Connection, frame: memoryview) -> None:
        header = read_request_header(frame, _FLEXIBLE)
        request = AskControllerRequest.decode(frame[header.body_start :], header.api_version)
        self.sessions.append(connection.session)
        self.requests.append(request)
        answer = connection.expect_answer()
        if self.hold:
            self.held.append((answer, header))
        else:
            answer.complete(response_frame(header, AskControllerResponse(body=request.body)))


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    started = Peer()
    yield started
    started.listener.close()


async def ask(channel: Channel, body: bytes = b"", *, timeout_ms: int = 5_000) -> bytes:
    answer = await channel.request(AskControllerRequest(command="Echo", body=body), 0, timeout_ms=timeout_ms)
    return AskControllerResponse.decode(answer, 0).body


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the condition is about sockets, which have no event
            await asyncio.sleep(0)


# Asking


async def test_given_the_key_when_opened_then_requests_come_from_that_broker(peer: Peer) -> None:
    channel = await open_channel(peer.address, TWO)

    assert await ask(channel, b"hello") == b"hello"
    assert [(each.principal, each.broker_id, each.listener) for each in peer.sessions] == [("Broker:2", 2, "INTERNAL")]


async def test_given_a_thousand_requests_at_once_then_each_gets_its_own_answer(peer: Peer) -> None:
    channel = await open_channel(peer.address, TWO)
    bodies = [b"%d " % number * (number % 700) for number in range(1_000)]

    answers = await asyncio.gather(*(ask(channel, body) for body in bodies))

    assert answers == bodies


@pytest.mark.parametrize("size", [READ_BYTES - 40, READ_BYTES, MAX_KEPT_BYTES // 4, 10 * 1024 * 1024])
async def test_given_answers_of_any_size_then_they_arrive_whole_and_belong_to_whoever_asked(
    peer: Peer, size: int
) -> None:
    channel = await open_channel(peer.address, TWO)
    body = bytes(range(251)) * (size // 251)

    views = await asyncio.gather(
        *(
            channel.request(AskControllerRequest(body=each), 0, timeout_ms=20_000)
            for each in (b"before", body, b"between", body[::-1], b"after")
        )
    )

    assert await ask(channel, b"another") == b"another"  # nothing received later may change what was handed over
    decoded = [AskControllerResponse.decode(view, 0).body for view in views]
    assert decoded == [b"before", body, b"between", body[::-1], b"after"]


async def test_given_a_large_answer_that_nobody_keeps_then_its_buffer_is_used_again(peer: Peer) -> None:
    channel = await open_channel(peer.address, TWO)
    buffers = []

    for body in (b"x" * MAX_KEPT_BYTES, b"y" * (MAX_KEPT_BYTES // 2), b"z" * MAX_KEPT_BYTES):
        view = await channel.request(AskControllerRequest(body=body[READ_BYTES:]), 0, timeout_ms=20_000)
        assert AskControllerResponse.decode(view, 0).body == body[READ_BYTES:]
        buffers.append(id(view.obj))
        view.release()

    assert len(set(buffers)) == 1


async def test_given_answers_in_single_bytes_then_they_are_put_together() -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.prove()
        header, request = await exchange.receive(AskControllerRequest)
        for byte in framed(header, AskControllerResponse(body=request.body)):
            exchange.writer.write(bytes([byte]))
            await exchange.writer.drain()
            await asyncio.sleep(0)

    async with a_server(trickle) as address:
        channel = await open_channel(address, TWO)

        assert await ask(channel, b"in pieces") == b"in pieces"


# Proving


async def test_given_another_key_then_the_broker_is_refused_and_asks_nothing(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotSent) as refused, caplog.at_level(logging.WARNING):
        await open_channel(peer.address, Credentials(BrokerId(2), ANOTHER_KEY))

    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    await until(lambda: not peer.listener.connections)
    assert "broker refused" in caplog.text
    assert peer.requests == []


async def test_given_a_server_without_the_key_when_it_lets_everybody_in_then_nothing_is_said_to_it() -> None:
    proven_anyway = []

    async def pretend(exchange: Exchange) -> None:
        await exchange.handshake()
        await exchange.step(ServerProof(Verifier(ANOTHER_KEY)).first)
        await exchange.step(lambda said: b"v=" + base64.b64encode(bytes(32)))
        proven_anyway.append(await exchange.reader.read())

    async with a_server(pretend) as address:
        with pytest.raises(NotSent) as refused:
            await open_channel(address, TWO)

        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        await until(lambda: proven_anyway)
    assert proven_anyway == [b""]


async def test_given_a_server_that_wants_millions_of_iterations_then_it_is_refused_at_once() -> None:
    async def exhaust(exchange: Exchange) -> None:
        await exchange.handshake()
        honest = ServerProof(Verifier(KEY)).first
        await exchange.step(lambda said: honest(said).replace(b"i=%d" % ITERATIONS, b"i=9999999"))

    async with a_server(exhaust) as address:
        with pytest.raises(NotSent, match="9999999 iterations"):
            await open_channel(address, TWO)


async def test_given_what_a_broker_said_when_somebody_says_it_again_then_they_are_refused(peer: Peer) -> None:
    said: list[bytes] = []

    async def relay(exchange: Exchange) -> None:
        reader, writer = await asyncio.open_connection(*peer.address)
        while frame := await read_frame(exchange.reader):
            said.append(frame)
            writer.write(frame)
            exchange.writer.write(await read_frame(reader))
        writer.close()

    async with a_server(relay) as address:
        channel = await open_channel(address, TWO)
        await ask(channel, b"overheard")
        channel.close("done")
    assert len(said) == 4  # a handshake, two steps, and the request
    peer.requests.clear()

    reader, writer = await asyncio.open_connection(*peer.address)
    answers = []
    for frame in said:
        writer.write(frame)
        answers.append(await read_frame(reader))

    refusal = SaslAuthenticateResponse.decode(answers[2][9:], 2)
    assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answers[3] == b""
    assert peer.requests == []
    writer.close()


@pytest.mark.parametrize(
    "user", ["broker-", "broker-01", "broker--1", "broker-99999999999", "broker-2147483648", "admin", "broker-2x"]
)
async def test_given_the_key_but_a_name_that_is_no_brokers_then_it_is_refused(peer: Peer, user: str) -> None:
    broker = ServerProof(Verifier(KEY))

    with pytest.raises(BrokerError) as refused:
        broker.first(f"n,,n={user},r=abc".encode())

    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_given_a_broker_without_a_key_then_nobody_is_let_in(peer: Peer) -> None:
    for missing in (None, ""):
        peer.key = missing

        with pytest.raises(NotSent) as refused:
            await open_channel(peer.address, Credentials(BrokerId(2), ""))

        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_given_credentials_when_they_are_printed_then_the_key_is_not() -> None:
    assert KEY not in repr(TWO)
    assert KEY not in str([TWO, Verifier(KEY), ClientProof(TWO)])


# The gate


def a_request(request: Request, version: int, correlation_id: int = 0) -> bytes:
    flexible = version >= request.FLEXIBLE_SINCE
    content = request_header(request.API_KEY, version, correlation_id, "x", flexible=flexible) + request.encode(version)
    return struct.pack(">i", len(content)) + content


def framed(header: RequestHeader, response: Response) -> bytes:
    return b"".join(part for part in response_frame(header, response) if isinstance(part, bytes))


HANDSHAKE = a_request(SaslHandshakeRequest(mechanism=MECHANISM), 1)
FIRST_STEP = a_request(SaslAuthenticateRequest(auth_bytes=ClientProof(TWO).first()), 2)
ASKED = a_request(AskControllerRequest(command="Echo"), 0)


@pytest.mark.parametrize(
    "said",
    {
        "the private API": ASKED,
        "an ordinary request": a_request(MetadataRequest(topics=[]), 12),
        "a request after the handshake": HANDSHAKE + a_request(MetadataRequest(topics=[]), 12),
        "a request after the first step": HANDSHAKE + FIRST_STEP + ASKED,
        "a step without a handshake": FIRST_STEP,
        "a second handshake": HANDSHAKE + HANDSHAKE,
        "the handshake of bare tokens": a_request(SaslHandshakeRequest(mechanism=MECHANISM), 0),
        "another mechanism": a_request(SaslHandshakeRequest(mechanism="PLAIN"), 1),
        "no SCRAM message": HANDSHAKE + a_request(SaslAuthenticateRequest(auth_bytes=b"\xff\0"), 2),
        "an empty step": HANDSHAKE + a_request(SaslAuthenticateRequest(), 2),
        "a second first step": HANDSHAKE + FIRST_STEP + FIRST_STEP,
        "garbage": b"\0\0\0\x20" + bytes(range(100, 132)),
        "a large frame": struct.pack(">i", MAX_UNPROVEN_FRAME_BYTES + 1),
        "the web": b"GET / HTTP/1.1\r\n\r\n",
    }.items(),
    ids=lambda said: said[0],
)
async def test_given_anything_but_a_proof_then_the_connection_is_closed(peer: Peer, said: tuple[str, bytes]) -> None:
    reader, writer = await asyncio.open_connection(*peer.address)
    writer.write(said[1])

    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)

    await until(lambda: not peer.listener.connections)
    assert peer.requests == []
    writer.close()


async def test_given_a_request_before_the_proof_then_the_log_says_what_it_was(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection(*peer.address)
    writer.write(a_request(MetadataRequest(topics=[]), 12))

    assert await asyncio.wait_for(reader.read(), 5) == b""
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Metadata on the internal listener" in line.reason  # type: ignore[attr-defined]
    writer.close()


# Ending


@pytest.mark.parametrize("size", [100, 5 * READ_BYTES])
async def test_given_a_server_that_dies_inside_an_answer_then_all_who_wait_are_told(size: int) -> None:
    async def die(exchange: Exchange) -> None:
        await exchange.prove()
        header, _ = await exchange.receive(AskControllerRequest)
        exchange.writer.write(framed(header, AskControllerResponse(body=bytes(size)))[:-1])
        await exchange.writer.drain()

    async with a_server(die) as address:
        channel = await open_channel(address, TWO)
        outcomes = await asyncio.gather(*(ask(channel) for _ in range(3)), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [NoAnswer] * 3
    assert not channel.is_open
    with pytest.raises(NotSent):
        await ask(channel)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\x08" + bytes.fromhex("7fffffff") + bytes(4),  # to nothing that was asked
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
        b"\x7f\xff\xff\xff",
    ],
)
async def test_given_an_answer_that_is_none_then_the_channel_ends(garbage: bytes) -> None:
    async def babble(exchange: Exchange) -> None:
        await exchange.prove()
        await exchange.receive(AskControllerRequest)
        exchange.writer.write(garbage)
        await exchange.reader.read()

    async with a_server(babble) as address:
        channel = await open_channel(address, TWO)

        with pytest.raises(NoAnswer):
            await ask(channel)

    assert not channel.is_open


async def test_given_a_large_answer_before_the_proof_then_it_is_not_taken() -> None:
    async def boast(exchange: Exchange) -> None:
        exchange.writer.write(struct.pack(">i", MAX_UNPROVEN_ANSWER_BYTES + 1))
        await exchange.reader.read()

    async with a_server(boast) as address:
        with pytest.raises(NotSent, match="at most"):
            await open_channel(address, TWO)


async def test_given_no_answer_within_the_time_then_the_channel_ends_and_those_behind_are_told(peer: Peer) -> None:
    peer.hold = True
    channel = await open_channel(peer.address, TWO)

    outcomes = await asyncio.gather(
        ask(channel, timeout_ms=50), ask(channel, timeout_ms=60_000), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes] == [NoAnswer, NoAnswer]
    assert isinstance(outcomes[0], NoAnswer)
    assert outcomes[0].code is ErrorCode.REQUEST_TIMED_OUT
    assert not channel.is_open


async def test_given_somebody_who_gives_up_then_the_others_get_their_answers(peer: Peer) -> None:
    peer.hold = True
    channel = await open_channel(peer.address, TWO)
    tasks = TaskGroup()
    impatient = tasks.spawn(ask(channel, b"a"), name="impatient")
    patient = tasks.spawn(ask(channel, b"b"), name="patient")
    await until(lambda: len(peer.held) == 2)

    impatient.cancel()
    await asyncio.wait((impatient,))
    for answer, header in peer.held:
        answer.complete(response_frame(header, AskControllerResponse(body=b"late")))

    assert await patient == b"late"
    assert channel.is_open


async def test_given_a_server_that_accepts_and_says_nothing_then_opening_has_a_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()

        with pytest.raises(NotSent) as late:
            await open_channel(address, TWO, timeout_ms=50)

    assert late.value.code is ErrorCode.REQUEST_TIMED_OUT


# Channels


async def test_given_many_who_ask_at_once_then_one_channel_serves_them(peer: Peer) -> None:
    channels = Channels(lambda: TWO)

    first, *others = await asyncio.gather(*(channels.to(peer.address) for _ in range(20)))

    assert all(each is first for each in others)
    assert peer.listener.counters.accepted == 1
    await channels.close()


async def test_given_a_channel_that_ended_when_asked_again_then_it_is_opened_anew(peer: Peer) -> None:
    channels = Channels(lambda: TWO)
    before = await channels.to(peer.address)
    for connection in list(peer.listener.connections):
        connection.close("test")
    await until(lambda: not before.is_open)

    after = await channels.to(peer.address)

    assert after is not before
    assert await ask(after, b"again") == b"again"
    await channels.close()


async def test_given_a_failure_when_asked_again_at_once_then_nothing_is_tried_until_a_pause_is_over(peer: Peer) -> None:
    credentials = [Credentials(BrokerId(2), ANOTHER_KEY)]
    channels = Channels(lambda: credentials[0])
    for _ in range(10):
        with pytest.raises(NotSent) as refused:
            await channels.to(peer.address)
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert peer.listener.counters.accepted == 1

    credentials[0] = TWO
    channel = None
    async with asyncio.timeout(5):
        while channel is None:
            with suppress(NotSent):
                channel = await channels.to(peer.address)
            await asyncio.sleep(0)

    assert await ask(channel, b"at last") == b"at last"
    assert peer.listener.counters.accepted == 2
    await channels.close()


async def test_given_channels_when_closed_then_whoever_waits_is_told_and_nothing_is_opened(peer: Peer) -> None:
    peer.hold = True
    channels = Channels(lambda: TWO)
    tasks = TaskGroup()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        opening = tasks.spawn(_outcome(channels.to(silent.getsockname())), name="opening")
        waiting = tasks.spawn(_outcome(ask(await channels.to(peer.address))), name="waiting")
        await until(lambda: peer.held)

        await channels.close()

        assert isinstance(await opening, NotSent)
        assert isinstance(await waiting, NoAnswer)
    with pytest.raises(NotSent):
        await channels.to(peer.address)


async def _outcome(work):  # type: ignore[no-untyped-def]
    try:
        return await work
    except BrokerError as error:
        return error


# A server that does as the test says


@dataclass
class Exchange:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receive(self, kind: type[Request]):  # type: ignore[no-untyped-def]
        frame = memoryview(await read_frame(self.reader))[4:]
        header = read_request_header(frame, _FLEXIBLE)
        return header, kind.decode(frame[header.body_start :], header.api_version)

    async def handshake(self) -> None:
        header, _ = await self.receive(SaslHandshakeRequest)
        self.writer.write(framed(header, SaslHandshakeResponse(mechanisms=[MECHANISM])))

    async def step(self, told: Callable[[bytes], bytes]) -> None:
        header, request = await self.receive(SaslAuthenticateRequest)
        self.writer.write(framed(header, SaslAuthenticateResponse(auth_bytes=told(request.auth_bytes))))

    async def prove(self) -> None:
        proof = ServerProof(Verifier(KEY))
        await self.handshake()
        await self.step(proof.first)
        await self.step(lambda said: proof.final(said)[1])


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """With its size; empty at the end."""
    try:
        size = await asyncio.wait_for(reader.readexactly(4), 5)
        return size + await asyncio.wait_for(reader.readexactly(int.from_bytes(size, "big")), 5)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""


class a_server:
    """`behave` serves each connection, which is closed after it."""

    def __init__(self, behave: Callable[[Exchange], object]) -> None:
        self._behave = behave

    async def __aenter__(self) -> Address:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._behave(Exchange(reader, writer))  # type: ignore[misc]
            finally:
                writer.close()

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address: Address = self._server.sockets[0].getsockname()
        return address

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


# Rounds


def echoing(peer: Peer, channels: Channels, tasks: TaskGroup) -> Rounds[bytes, bytes]:
    """Asks for all of a round in one request, which the peer answers with the same."""

    async def exchange(channel: Channel, questions: Sequence[bytes]) -> Sequence[bytes | BrokerError]:
        return (await ask(channel, b" ".join(questions))).split(b" ")

    addresses = {BrokerId(1): peer.address}
    return Rounds("echo", exchange, address_of=addresses.get, channels=channels, tasks=tasks)


async def test_given_questions_while_a_round_is_under_way_then_they_go_together_in_their_order(peer: Peer) -> None:
    tasks, channels = TaskGroup(), Channels(lambda: TWO)
    rounds, answers = echoing(peer, channels, tasks), list[bytes | BrokerError]()
    peer.hold = True
    rounds.ask(BrokerId(1), b"first", answers.append)
    await until(lambda: len(peer.held) == 1)
    for number in range(MAX_IN_A_ROUND + 1):
        rounds.ask(BrokerId(1), b"%d" % number, answers.append)

    peer.hold = False
    ((answer, header),) = peer.held
    answer.complete(response_frame(header, AskControllerResponse(body=b"first")))
    await until(lambda: len(answers) == MAX_IN_A_ROUND + 2)

    assert answers == [b"first", *(b"%d" % number for number in range(MAX_IN_A_ROUND + 1))]
    assert [len(each.body.split()) for each in peer.requests] == [1, MAX_IN_A_ROUND, 1]
    await channels.close()
    await tasks.stop()


async def test_given_a_broker_that_is_gone_or_a_lost_answer_then_all_of_the_round_hear_it_and_the_next_is_asked(
    peer: Peer,
) -> None:
    tasks, channels = TaskGroup(), Channels(lambda: TWO)
    rounds, answers = echoing(peer, channels, tasks), list[bytes | BrokerError]()
    rounds.ask(BrokerId(9), b"nobody", answers.append)
    await until(lambda: answers)
    peer.hold = True
    rounds.ask(BrokerId(1), b"lost", answers.append)
    await until(lambda: peer.held)

    for connection in list(peer.listener.connections):
        connection.close("a test")
    await until(lambda: len(answers) == 2)
    peer.hold = False
    rounds.ask(BrokerId(1), b"again", answers.append)
    await until(lambda: len(answers) == 3)

    assert [type(each) for each in answers] == [NotSent, NoAnswer, bytes]
    await channels.close()
    await tasks.stop()


async def test_given_too_many_questions_then_those_above_the_limit_are_refused_and_the_others_answered(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.net.rounds.MAX_WAITING", 3)
    tasks, channels = TaskGroup(), Channels(lambda: TWO)
    rounds, answers = echoing(peer, channels, tasks), list[bytes | BrokerError]()

    for number in range(5):
        rounds.ask(BrokerId(1), b"%d" % number, answers.append)
    assert [type(each) for each in answers] == [NotSent, NotSent]
    await until(lambda: len(answers) == 5)

    assert answers[2:] == [b"0", b"1", b"2"]
    await channels.close()
    await tasks.stop()
