"""Calls to a cluster of etcd: one member is asked until it does not answer, then the next.

Three kinds of calls, by what a lost answer means:

- `ask`: what does no harm when it is done twice. Tried with one member after the other until one answers.
- `commit`: sent once, since it may have happened when its answer is lost, or may still happen (`Unsettled`). So that
  members that are down or paused are met before that, a read finds a member with a quorum first, unless one has just
  answered. Whether it may be sent again is for the store to say.
- `watch`: one stream, until it breaks. It also breaks when its member did not answer another call: a process that is
  stopped keeps its connections, and only silence tells.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metadata_address import EtcdAddress
from penstock.metadata import etcd_pb2 as pb

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # lines of its own on standard error, in no format of ours
import grpc
import grpc.aio

log = logging.getLogger(__name__)

ATTEMPT_S = 1.0
# An election of etcd's takes up to two seconds: within this time no one has to notice one.
PATIENCE_S = 5.0
COMMIT_S = 3.0
# A password takes etcd a tenth of a second of computing by design, and more where it has company.
AUTHENTICATE_S = 3.0
RETRY_PAUSE_S = 0.05
# A member that answered this recently is taken for one that takes a commit.
CONFIRMED_FOR_S = 1.0
TROUBLE_AFTER_S = 3.0

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),  # how long a connection may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # etcd sends a watch whole transactions, however large. Reads are in pages.
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # stores in one process have connections of their own
)
_REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
# In etcd's words, because its codes do not tell these from others.
_AUTHENTICATION_IS_OFF = "authentication is not enabled"
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Metadata = tuple[tuple[str, str], ...]
Attempt = Callable[[Any, Metadata], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    path: str
    request_type: type[Request]
    response_type: type[Response]


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class EtcdRefused(BrokerError):
    """etcd understood and will not do it, so nothing has happened; another member would say the same."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"etcd refused: {reason.removeprefix('etcdserver: ')}")


class Unsettled(BrokerError):
    """Nobody knows whether a commit has happened, or is yet to happen."""


class _Unanswered(Exception):
    """Nobody knows what became of it."""


class EtcdClient:
    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._channels = [_channel(endpoint, address) for endpoint in address.endpoints]
        self._current = 0
        self._token: str | None = None
        self._confirmed_s = -math.inf
        self._failing_since_s: float | None = None
        self._failures: dict[str, str] = {}
        self._watches: dict[Any, int] = {}
        self._closing = asyncio.Event()
        # Why nobody answers, once that has lasted.
        self.trouble: str | None = None

    @property
    def is_closed(self) -> bool:
        return self._closing.is_set()

    async def close(self) -> None:
        self._closing.set()
        self._end_watches(self._watches)
        for channel in self._channels:
            await channel.close()

    async def ask(self, method: Method[Request, Response], request: Request) -> Response:
        return await self._until_answered(_unary(method, request, ATTEMPT_S))

    async def keep_alive(self, request: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        """etcd has this as a stream; one request and its answer are enough here."""

        async def attempt(channel: Any, metadata: Metadata) -> pb.LeaseKeepAliveResponse:
            call = _stream(channel, LEASE_KEEP_ALIVE)(iter([request]), timeout=ATTEMPT_S, metadata=metadata)
            try:
                return _received(await call.read(), LEASE_KEEP_ALIVE)
            finally:
                call.cancel()

        return await self._until_answered(attempt)

    async def commit(self, request: pb.TxnRequest) -> pb.TxnResponse:
        if not self._is_confirmed():
            # A key that is never there, within what the user may read.
            await self.ask(RANGE, pb.RangeRequest(key=f"{self._address.prefix}/".encode()))
        try:
            return await self._once(_unary(TXN, request, COMMIT_S))
        except _Unanswered as error:
            raise Unsettled(
                ErrorCode.KAFKA_STORAGE_ERROR, f"etcd did not say whether it committed the change: {error}"
            ) from None

    async def watch(self, create: pb.WatchCreateRequest) -> AsyncGenerator[pb.WatchResponse, None]:
        """What a stream brings after the word that it stands. Ends when it breaks, after a pause: then open another."""
        member = self._current
        call: Any = None
        try:
            metadata = await self._metadata(self._channels[member])
            async with asyncio.timeout(ATTEMPT_S):
                call = _stream(self._channels[member], WATCH)(metadata=metadata)
                self._watches[call] = member
                await call.write(pb.WatchRequest(create_request=create))
                created = self._not_cancelled(_received(await call.read(), WATCH))
            self._answered()
            if not created.created:
                yield created
            while True:
                yield self._not_cancelled(_received(await call.read(), WATCH))
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError, _Unanswered) as error:
            self._raise_refusal(error)
            self._failed(member, error)
            await asyncio.sleep(RETRY_PAUSE_S)
        except asyncio.CancelledError:
            if call is None or call in self._watches or _is_task_cancelled():
                raise
        finally:
            self._watches.pop(call, None)
            if call is not None:
                call.cancel()

    def _not_cancelled(self, response: pb.WatchResponse) -> pb.WatchResponse:
        if response.canceled and not response.compact_revision:
            self._token = None  # in case that it was the reason, which old versions do not tell
            if _is_about_token(response.cancel_reason):
                raise _Unanswered(response.cancel_reason)
            raise EtcdRefused(response.cancel_reason)
        return response

    async def _until_answered(self, attempt: Attempt[Response]) -> Response:
        loop = asyncio.get_running_loop()
        give_up_at_s = loop.time() + (ATTEMPT_S if self.trouble else PATIENCE_S)
        while True:
            try:
                return await self._once(attempt)
            except _Unanswered:
                if loop.time() >= give_up_at_s:
                    raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self._nobody_answers()) from None
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _once(self, attempt: Attempt[Response]) -> Response:
        if self._closing.is_set():
            raise _closed()
        member = self._current
        try:
            answer = await self._authenticated(self._channels[member], attempt)
        except (grpc.aio.AioRpcError, TimeoutError, _Unanswered) as error:
            self._raise_refusal(error)
            self._failed(member, error)
            raise _Unanswered(f"{self._address.endpoints[member]}: {_reason(error)}") from None
        except asyncio.CancelledError:
            if self._closing.is_set() and not _is_task_cancelled():
                raise _closed() from None
            raise
        self._answered()
        self._confirmed_s = asyncio.get_running_loop().time()
        return answer

    async def _authenticated(self, channel: Any, attempt: Attempt[Response]) -> Response:
        """With a token, where there is a user. Who comes with one that has expired was refused before anything else."""
        try:
            return await attempt(channel, await self._metadata(channel))
        except grpc.aio.AioRpcError as error:
            if self._token is None or not _is_about_token(error.details() or ""):
                raise
            self._token = None
        return await attempt(channel, await self._metadata(channel))

    async def _metadata(self, channel: Any) -> Metadata:
        # A member without a leader refuses at once, and ends watches, rather than wait for one.
        has_leader = ("hasleader", "true")
        if self._address.user is None:
            return (has_leader,)
        if self._token is None:
            request = pb.AuthenticateRequest(name=self._address.user, password=self._address.password)
            try:
                self._token = (await _unary(AUTHENTICATE, request, AUTHENTICATE_S)(channel, (has_leader,))).token
            except grpc.aio.AioRpcError as error:
                if _AUTHENTICATION_IS_OFF not in (error.details() or ""):
                    raise
                log.warning("etcd does not ask for passwords, the one given is not used")
                self._token = ""
        return (has_leader, ("token", self._token)) if self._token else (has_leader,)

    # Who answers, and who does not

    def _is_confirmed(self) -> bool:
        state = self._channels[self._current].get_state()
        recently = asyncio.get_running_loop().time() - self._confirmed_s < CONFIRMED_FOR_S
        return recently and state is grpc.ChannelConnectivity.READY

    def _answered(self) -> None:
        self._failing_since_s = None
        self._failures.clear()
        if self.trouble is not None:
            self.trouble = None
            log.info("etcd answers again")

    def _failed(self, member: int, error: BaseException) -> None:
        self._failures[self._address.endpoints[member]] = _reason(error)
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if self.trouble is not None:
            self.trouble = self._nobody_answers()
        elif now_s - self._failing_since_s >= TROUBLE_AFTER_S and not self.is_closed:
            self.trouble = self._nobody_answers()
            log.warning("etcd does not answer, metadata cannot change", extra={"reason": self.trouble})
        if member == self._current:
            self._confirmed_s = -math.inf
        if member == self._current and len(self._channels) > 1:
            self._current = (member + 1) % len(self._channels)
            self._end_watches([call for call, of_member in self._watches.items() if of_member == member])

    def _end_watches(self, calls: Iterable[Any]) -> None:
        for call in list(calls):
            del self._watches[call]  # which tells the watch that this was not its owner's wish
            call.cancel()

    def _nobody_answers(self) -> str:
        tried = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in self._failures.items())
        return f"no answer from etcd ({tried})"

    def _raise_refusal(self, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AioRpcError) and error.code() in _REFUSALS:
            raise EtcdRefused(error.details() or error.code().name) from None


def _unary(method: Method[Request, Response], request: Request, timeout_s: float) -> Attempt[Response]:
    async def attempt(channel: Any, metadata: Metadata) -> Response:
        call = channel.unary_unary(
            method.path,
            request_serializer=method.request_type.SerializeToString,
            response_deserializer=method.response_type.FromString,
        )
        answer: Response = await call(request, timeout=timeout_s, metadata=metadata)
        return answer

    return attempt


def _stream(channel: Any, method: Method[Request, Response]) -> Any:
    return channel.stream_stream(
        method.path,
        request_serializer=method.request_type.SerializeToString,
        response_deserializer=method.response_type.FromString,
    )


def _received(message: object, method: Method[Request, Response]) -> Response:
    if not isinstance(message, method.response_type):
        raise _Unanswered("the stream ended")
    return message


def _channel(endpoint: str, address: EtcdAddress) -> Any:
    if not address.tls:
        return grpc.aio.insecure_channel(endpoint, _OPTIONS)
    files = {"ca": address.ca_file, "key": address.key_file, "cert": address.cert_file}
    ca, key, certificate = (_content_of(option, file) for option, file in files.items())
    return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(ca, key, certificate), _OPTIONS)


def _content_of(option: str, file: str | None) -> bytes | None:
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError as error:
        reason = f"cannot read {file}, the {option} of the metadata address: {error.strerror}"
        raise BrokerError(ErrorCode.INVALID_CONFIG, reason) from None


def _is_about_token(reason: str) -> bool:
    return any(text in reason for text in _STALE_TOKEN)


def _reason(error: BaseException) -> str:
    """gRPC tells the whole story of a connection; its last words are the ones that help."""
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return "silent"
        words: str = error.details() or error.code().name
        return words.rpartition("remote host: ")[2].removeprefix("etcdserver: ")
    return "silent" if isinstance(error, TimeoutError) else str(error)


def _is_task_cancelled() -> bool:
    """Whether the task itself is to end; gRPC raises the same error when only the call was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _closed() -> BrokerError:
    return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata store is closed")
