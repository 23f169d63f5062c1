"""The asynchronous client: the same calls, awaited.

Publishing needs no thread: librdkafka sends on its own, and a future tells how it went. Consuming blocks in librdkafka,
so it runs in threads. confluent-kafka's own AIOConsumer does the same; its AIOProducer keeps messages for up to a
second and takes no headers, so it is not used.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from penstock.sdk.client import DEFAULT_BATCH_SIZE, DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, DEFAULT_WAIT_S
from penstock.sdk.connection import Connection
from penstock.sdk.delivery import Delivery
from penstock.sdk.messages import Batch, Headers, Published
from penstock.sdk.publisher import Outgoing, Text
from penstock.sdk.session import Session

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")

_MAX_THREADS = 128  # one per group that waits for messages, and one per call that waits for the broker


class AsyncClient:
    """`Client` for asyncio: every call has the same arguments, meaning and errors, and is awaited.

    Use it with `async with`. Cancelling is safe: a batch whose `await` was cancelled (by `asyncio.timeout`, say) is
    handed out by the next `consume`; a message whose `publish` was cancelled may still be published.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_BOOTSTRAP,
        *,
        delivery: Delivery = Delivery.AT_LEAST_ONCE,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """As for `Client`. Does not connect yet: the first call does."""
        self._session = Session(Connection(bootstrap, config or {}, timeout_s), delivery)
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "penstock-sdk")
        self._one_consume: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """See `Client.create_topic`."""
        await self._in_thread(self._session.create_topic, name, partitions, replication_factor, config, exist_ok)

    async def publish(self, topic: str, key: Text, payload: Text, *, headers: Headers | None = None) -> Published:
        """See `Client.publish`. Many of these at once (`asyncio.gather`) travel together."""
        publisher = self._session.publisher()
        if publisher.would_wait(topic):
            future = await self._in_thread(publisher.submit, topic, key, payload, headers)
        else:
            future = publisher.submit(topic, key, payload, headers)
        return await asyncio.wrap_future(future)

    async def publish_many(self, topic: str, messages: Iterable[Outgoing]) -> list[Published]:
        """See `Client.publish_many`. The messages are taken in a thread."""
        return await self._in_thread(self._session.publisher().publish_many, topic, messages)

    async def consume(
        self, topic: str, group: str, max_batch_size: int = DEFAULT_BATCH_SIZE, *, wait_s: float = DEFAULT_WAIT_S
    ) -> Batch:
        """See `Client.consume`."""
        async with self._one_consume[topic, group]:
            batch = await self._in_thread(self._session.fetch, topic, group, max_batch_size, wait_s)
            batch.handed_out = True  # here, not in the thread: after a cancellation nobody has it
            return batch

    async def commit_offset(self, topic: str, group: str, partition: int, offset: int) -> None:
        """See `Client.commit_offset`."""
        await self._in_thread(self._session.commit_offset, topic, group, partition, offset)

    async def seek(self, topic: str, group: str, partition: int, offset: int) -> None:
        """See `Client.seek`."""
        await self._in_thread(self._session.consumer(topic, group).seek, partition, offset)

    async def pause(self, topic: str, group: str, partition: int | None = None) -> None:
        """See `Client.pause`."""
        await self._in_thread(self._session.consumer(topic, group).pause, partition)

    async def resume(self, topic: str, group: str, partition: int | None = None) -> None:
        """See `Client.resume`."""
        await self._in_thread(self._session.consumer(topic, group).resume, partition)

    async def close(self) -> None:
        """See `Client.close`."""
        await self._close(is_clean=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(is_clean=error is None)

    async def _close(self, *, is_clean: bool) -> None:
        try:
            await asyncio.to_thread(self._session.close, is_clean=is_clean)
        finally:
            self._threads.shutdown(wait=False)

    async def _in_thread(
        self, call: Callable[_Arguments, _Answer], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Answer:
        self._session.check_open()  # the threads are gone with it
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments, **named))
