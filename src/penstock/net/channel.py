"""This broker's connection to another: requests out, answers in, everything with a deadline.

- Nothing is sent before both ends have proven that they know the cluster's key.
- Requests are pipelined and answered in their order, as on every connection: what may wait for long at the other end (a
  fetch) has a channel of its own.
- An answer is a view of a buffer that belongs to whoever asked, for as long as they keep it.
- A deadline that passes ends the channel, as the answers behind the missing one are late, too. Whoever waits learns of
  its end by a BrokerError: NotSent when nothing can have happened, NoAnswer when nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from penstock.core.errors import BrokerError, ErrorCode, MalformedRequest, error_code_of
from penstock.net.cluster_key import MECHANISM, ClientProof, Credentials
from penstock.protocol.codec import Request
from penstock.protocol.frames import has_flexible_response_header, read_response_header, request_header
from penstock.protocol.messages.authentication import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from penstock.runtime.tasks import spawn

log = logging.getLogger(__name__)

Address = tuple[str, int]

CONNECT_TIMEOUT_MS = 2_000
HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
# What is read at once. An answer that is larger gets a buffer of its own, which the rest of it is received into.
READ_BYTES = 64 * 1024
# Such a buffer is used again when nobody has a view of it any more: fresh memory costs half as much as filling it.
MAX_KEPT_BYTES = 4 * 1024 * 1024
# From somebody who has not proven anything yet, and from a broker: more than the largest answer to a fetch.
MAX_UNPROVEN_ANSWER_BYTES = 16 * 1024
MAX_ANSWER_BYTES = 1 << 30
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 50, 1_000
FORGET_AFTER_S = 60
STOPPING = "this broker is stopping"

_SIZE = struct.Struct(">i")
_CORRELATION_IDS = 2**31


class NotSent(BrokerError):
    """The request has not left this broker."""


class NoAnswer(BrokerError):
    """The request was sent, and what became of it is not known."""


class Channel:
    """Made by `open_channel`."""

    def __init__(self, address: Address, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 0
        self.closed_because: str | None = None

    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    @property
    def is_open(self) -> bool:
        return self.closed_because is None

    async def request(self, request: Request, version: int, *, timeout_ms: int) -> memoryview:
        """The body of the answer, to be decoded by the response's class in the same version."""
        if self._transport is None or self.closed_because is not None:
            raise NotSent(ErrorCode.NETWORK_EXCEPTION, f"{self} is not connected: {self.closed_because}")
        body = request.encode(version)
        flexible = version >= request.FLEXIBLE_SINCE
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) % _CORRELATION_IDS
        header = request_header(request.API_KEY, version, correlation_id, self._client_id, flexible=flexible)
        answer_is_flexible = has_flexible_response_header(request.API_KEY, version, request.FLEXIBLE_SINCE)
        waiting = _Waiting(self._loop.create_future(), flexible=answer_is_flexible)
        # The deadline outlasts whoever waits: an answer that nobody wants any more must still come.
        waiting.timer = self._loop.call_later(timeout_ms / 1000, self._overdue, request.NAME, timeout_ms)
        self._waiting[correlation_id] = waiting
        self._transport.write(_SIZE.pack(len(header) + len(body)) + header + body)
        return await waiting.answer

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def answered(self, frame: memoryview) -> None:
        """Raises MalformedRequest for what is no answer to anything."""
        waiting = self._waiting.pop(int.from_bytes(frame[:4], "big"), None)
        if waiting is None:
            raise MalformedRequest("an answer to nothing that was asked")
        waiting.timer.cancel()
        if not waiting.answer.done():
            try:
                _, at = read_response_header(frame, flexible=waiting.flexible)
            except MalformedRequest as error:
                waiting.answer.set_exception(NoAnswer(ErrorCode.NETWORK_EXCEPTION, f"{self}: {error}"))
                raise
            waiting.answer.set_result(frame[at:])

    def _overdue(self, name: str, timeout_ms: int) -> None:
        self.close(f"{name} was not answered within {timeout_ms} ms", ErrorCode.REQUEST_TIMED_OUT)

    def close(self, reason: str, code: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        if self.closed_because is not None:
            return
        self.closed_because = reason
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.timer.cancel()
            if not each.answer.done():
                each.answer.set_exception(NoAnswer(code, f"no answer from {self}: {reason}"))
                # Whoever was cancelled does not look at it, which is no reason for a line in the log.
                each.answer.exception()


class _Waiting:
    __slots__ = ("answer", "flexible", "timer")

    timer: asyncio.TimerHandle

    def __init__(self, answer: asyncio.Future[memoryview], *, flexible: bool) -> None:
        self.answer = answer
        self.flexible = flexible


class _Receiving(asyncio.BufferedProtocol):
    """Cuts what arrives into answers. What is small is copied out of the one buffer, what is large is never copied."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._large: memoryview | None = None  # the answer that is being received into a buffer of its own
        self._large_end = 0
        self._kept = bytearray()
        self.max_answer_bytes = MAX_UNPROVEN_ANSWER_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channel.connected(cast(asyncio.Transport, transport))

    def connection_lost(self, error: Exception | None) -> None:
        self._channel.close("connection closed by the other end" if error is None else f"connection lost: {error}")

    def get_buffer(self, size_hint: int) -> memoryview:
        return self._view[self._end :] if self._large is None else self._large[self._large_end :]

    def buffer_updated(self, count: int) -> None:
        try:
            if self._large is None:
                self._end += count
                self._cut()
            else:
                self._large_end += count
                if self._large_end == len(self._large):
                    large, self._large = self._large, None
                    self._channel.answered(large)
        except MalformedRequest as error:
            self._channel.close(f"not the protocol: {error}")

    def _cut(self) -> None:
        view, start, end = self._view, 0, self._end
        while end - start >= _SIZE.size and self._channel.is_open:
            (size,) = _SIZE.unpack_from(view, start)
            if not _SIZE.size <= size <= self.max_answer_bytes:
                raise MalformedRequest(f"an answer of {size} bytes, at most {self.max_answer_bytes} are taken")
            start += _SIZE.size
            if end - start < size:
                if start + size <= READ_BYTES:
                    start -= _SIZE.size
                    break
                self._large = self._room_for(size)
                self._large_end = end - start
                self._large[: self._large_end] = view[start:end]
                start = end
                break
            self._channel.answered(memoryview(bytes(view[start : start + size])))
            start += size
        self._end = end - start
        if start and self._end:
            view[: self._end] = view[start:end]

    def _room_for(self, size: int) -> memoryview:
        if len(self._kept) >= size and not _is_seen(self._kept):
            return memoryview(self._kept)[:size]
        room = bytearray(size)
        if size <= MAX_KEPT_BYTES:
            self._kept = room
        return memoryview(room)


def _is_seen(buffer: bytearray) -> bool:
    """Whether there are views of it: then its length cannot be changed."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


async def open_channel(address: Address, credentials: Credentials, *, timeout_ms: int = CONNECT_TIMEOUT_MS) -> Channel:
    """Connected and proven by both ends within the time, or NotSent."""
    channel = Channel(address, f"broker-{credentials.broker_id}")
    receiving = _Receiving(channel)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().create_connection(lambda: receiving, *address)
            await _prove(channel, credentials, timeout_ms)
    except TimeoutError:
        reason = f"{channel} did not let this broker in within {timeout_ms} ms"
        channel.close(reason)
        raise NotSent(ErrorCode.REQUEST_TIMED_OUT, reason) from None
    except OSError as error:
        channel.close(f"cannot connect to {channel}: {error.strerror or error}")
        raise NotSent(ErrorCode.NETWORK_EXCEPTION, channel.closed_because or "") from None
    except MalformedRequest as error:
        channel.close(f"{channel} is no broker: {error}")
        raise NotSent(ErrorCode.NETWORK_EXCEPTION, channel.closed_because or "") from None
    except BrokerError as error:
        channel.close(error.message)
        raise NotSent(
            error.code, f"{channel} was not let in or is no broker of this cluster: {error.message}"
        ) from None
    except BaseException:
        channel.close("given up")
        raise
    receiving.max_answer_bytes = MAX_ANSWER_BYTES
    return channel


async def _prove(channel: Channel, credentials: Credentials, timeout_ms: int) -> None:
    shake = SaslHandshakeRequest(mechanism=MECHANISM)
    body = await channel.request(shake, HANDSHAKE_VERSION, timeout_ms=timeout_ms)
    handshake = SaslHandshakeResponse.decode(body, HANDSHAKE_VERSION)
    if handshake.error_code:
        raise BrokerError(error_code_of(handshake.error_code), f"no {MECHANISM}, only {handshake.mechanisms}")
    proof = ClientProof(credentials)
    server_first = await _say(channel, proof.first(), timeout_ms)
    proof.check(await _say(channel, proof.final(server_first), timeout_ms))


async def _say(channel: Channel, said: bytes, timeout_ms: int) -> bytes:
    body = await channel.request(SaslAuthenticateRequest(auth_bytes=said), AUTHENTICATE_VERSION, timeout_ms=timeout_ms)
    response = SaslAuthenticateResponse.decode(body, AUTHENTICATE_VERSION)
    if response.error_code:
        raise BrokerError(error_code_of(response.error_code), response.error_message or "")
    return response.auth_bytes


class Opener(Protocol):
    """Connects, and lets both ends prove who they are, within the time. Raises NotSent."""

    async def __call__(self, address: Address, credentials: Credentials, *, timeout_ms: int) -> Channel: ...


class Channels:
    """One channel to each broker, opened when it is first asked for, and again after it ended.

    After a failure nothing is tried for a short while, which grows: whoever asks meanwhile is told of the failure.
    `credentials` are asked for at each opening; it raises NotSent while there are none. A simulation opens channels
    through a network of its own.
    """

    def __init__(
        self,
        credentials: Callable[[], Credentials],
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        opener: Opener = open_channel,
    ) -> None:
        self._credentials = credentials
        self._connect_timeout_ms = connect_timeout_ms
        self._opener = opener
        self._open: dict[Address, Channel] = {}
        self._opening: dict[Address, asyncio.Task[Channel | NotSent]] = {}
        self._failed: dict[Address, _Failure] = {}
        self._closed = False

    async def to(self, address: Address) -> Channel:
        """Raises NotSent."""
        channel = self._open.get(address)
        if channel is not None and channel.is_open:
            return channel
        opening = self._opening.get(address)
        if opening is None:
            self._refuse_haste(address)
            opening = self._opening[address] = spawn(self._try(address), name=f"channel-to-{address[0]}:{address[1]}")
        await asyncio.wait((opening,))  # who gives up waiting does not end it for the others
        outcome = NotSent(ErrorCode.NETWORK_EXCEPTION, STOPPING) if opening.cancelled() else opening.result()
        if isinstance(outcome, NotSent):
            raise NotSent(outcome.code, outcome.message)
        return outcome

    def _refuse_haste(self, address: Address) -> None:
        if self._closed:
            raise NotSent(ErrorCode.NETWORK_EXCEPTION, STOPPING)
        failure = self._failed.get(address)
        if failure is not None and asyncio.get_running_loop().time() < failure.try_again_at:
            raise NotSent(failure.error.code, f"{failure.error.message} (not tried again yet)")

    async def _try(self, address: Address) -> Channel | NotSent:
        try:
            channel = await self._opener(address, self._credentials(), timeout_ms=self._connect_timeout_ms)
        except NotSent as error:
            self._remember(address, error)
            return error
        finally:
            del self._opening[address]
        self._failed.pop(address, None)
        # Brokers come back at other ports: what has ended is not kept.
        self._open = {each: known for each, known in self._open.items() if known.is_open}
        self._open[address] = channel
        return channel

    def _remember(self, address: Address, error: NotSent) -> None:
        now = asyncio.get_running_loop().time()
        before = self._failed.get(address)
        pause_ms = FIRST_PAUSE_MS if before is None else min(2 * before.pause_ms, LONGEST_PAUSE_MS)
        if before is None or before.error.code is not error.code:
            log.warning(
                "no way to another broker", extra={"address": "{}:{}".format(*address), "reason": error.message}
            )
        self._failed = {
            each: known for each, known in self._failed.items() if now < known.try_again_at + FORGET_AFTER_S
        }
        self._failed[address] = _Failure(error, pause_ms, now + pause_ms / 1000)

    async def close(self) -> None:
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)
        for channel in self._open.values():
            channel.close(STOPPING)


@dataclass(frozen=True, slots=True)
class _Failure:
    error: NotSent
    pause_ms: int
    try_again_at: float
