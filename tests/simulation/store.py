"""A metadata store in memory that keeps the contract, and what lies between it and a broker.

A call takes its time to the store and back. What was sent is done, whether or not whoever sent it is still there. A
call that is lost on its way, or whose answer is, fails after a while with the error that leaves open what happened.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.store import (
    Change,
    Changes,
    Committed,
    Compacted,
    Conflict,
    Entry,
    LeaseExpired,
    LeaseId,
    Snapshot,
    Transaction,
)

HISTORY_CHANGES = 10_000
GIVEN_UP_AFTER_S = 1.0

_T = TypeVar("_T")
_NOBODY = Context()


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_s: float
    keys: set[str] = field(default_factory=set)


class StoreServer:
    """The store itself, which outlives all brokers."""

    def __init__(self, history_changes: int = HISTORY_CHANGES) -> None:
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self._history_changes = history_changes
        self._history: list[Change] = []
        self._forgotten_revision = 0
        self._leases: dict[LeaseId, _Lease] = {}
        self._lease_of: dict[str, LeaseId] = {}
        self._last_lease = 0
        self.woken: dict[asyncio.Event, None] = {}

    def read(self, prefix: str) -> Snapshot:
        entries = sorted((each for each in self.entries.values() if each.key.startswith(prefix)), key=lambda e: e.key)
        return Snapshot(self.revision, tuple(entries))

    def commit(self, transaction: Transaction) -> Committed:
        differing = [
            expect.key
            for expect in transaction.expected
            if (self.entries[expect.key].mod_revision if expect.key in self.entries else 0) != expect.mod_revision
        ]
        if differing:
            raise Conflict(tuple(differing))
        for put in transaction.puts:
            if put.lease_id is not None:
                self._lease(put.lease_id)
        deletes = [key for key in transaction.deletes if key in self.entries]
        if transaction.puts or deletes:
            self.revision += 1
            for put in transaction.puts:
                self._attach(put.key, put.lease_id)
                self.entries[put.key] = Entry(put.key, put.value, self.revision)
                self._history.append(Change(put.key, put.value, self.revision))
            for key in deletes:
                self._delete(key)
            self._wake()
        return Committed(self.revision)

    def _attach(self, key: str, lease_id: LeaseId | None) -> None:
        before = self._lease_of.pop(key, None)
        if before is not None and before in self._leases:
            self._leases[before].keys.discard(key)
        if lease_id is not None:
            self._lease_of[key] = lease_id
            self._leases[lease_id].keys.add(key)

    def _delete(self, key: str) -> None:
        self._attach(key, None)
        del self.entries[key]
        self._history.append(Change(key, None, self.revision))

    def _wake(self) -> None:
        while len(self._history) > self._history_changes:
            self._forgotten_revision = self._history[0].mod_revision
            del self._history[0]
        for event in list(self.woken):
            event.set()

    def changes_after(self, prefix: str, revision: int) -> Changes:
        if revision < self._forgotten_revision:
            raise Compacted
        at = bisect_right(self._history, revision, key=lambda change: change.mod_revision)
        changes = tuple(change for change in self._history[at:] if change.key.startswith(prefix))
        return Changes(self.revision, changes)

    # Leases

    def _lease(self, lease_id: LeaseId) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseExpired(f"lease {lease_id} has ended")
        return lease

    def grant(self, ttl_ms: int) -> LeaseId:
        loop = asyncio.get_running_loop()
        self._last_lease += 1
        lease_id = LeaseId(self._last_lease)
        self._leases[lease_id] = _Lease(ttl_ms / 1000, loop.time() + ttl_ms / 1000)
        loop.call_later(ttl_ms / 1000, self._look_at, lease_id, context=_NOBODY)
        return lease_id

    def keep_alive(self, lease_id: LeaseId) -> None:
        lease = self._lease(lease_id)
        lease.ends_s = asyncio.get_running_loop().time() + lease.ttl_s

    def _look_at(self, lease_id: LeaseId) -> None:
        lease, loop = self._leases.get(lease_id), asyncio.get_running_loop()
        if lease is None:
            return
        if lease.ends_s <= loop.time():
            self.revoke(lease_id)
        else:
            loop.call_at(lease.ends_s, self._look_at, lease_id, context=_NOBODY)

    def revoke(self, lease_id: LeaseId) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is not None and lease.keys:
            self.revision += 1
            for key in sorted(lease.keys):
                self._delete(key)
            self._wake()


class StoreLink:
    """The way between one broker and the store; without luck there is none."""

    def __init__(self, luck: random.Random | None = None) -> None:
        self._luck = luck
        self.slow_share = 0.02
        self.is_cut_there = False
        self.is_cut_back = False
        self.mended = asyncio.Event()

    def latency(self) -> float:
        if self._luck is None:
            return 0.0
        if self._luck.random() < self.slow_share:
            return self._luck.uniform(0.01, 0.5)
        return self._luck.uniform(0.0002, 0.003)

    @property
    def is_cut(self) -> bool:
        return self.is_cut_there or self.is_cut_back

    def mend(self) -> None:
        self.is_cut_there = self.is_cut_back = False
        self.mended.set()
        self.mended = asyncio.Event()

    async def is_open_again(self) -> None:
        while self.is_cut_back:
            await self.mended.wait()


class SimulatedStore:
    """Keeps the contract of MetadataStore, for one broker."""

    def __init__(self, server: StoreServer, link: StoreLink) -> None:
        self._server = server
        self._link = link
        self._closed = False
        self._woken = asyncio.Event()
        server.woken[self._woken] = None
        self.calls = 0

    @property
    def trouble(self) -> str | None:
        return "it is out of reach" if self._link.is_cut else None

    async def commit(self, transaction: Transaction) -> Committed:
        return await self._call(lambda: self._server.commit(transaction))

    async def read(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self._server.read(prefix))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
        seen = after_revision
        while not self._closed:
            self._woken.clear()
            await self._link.is_open_again()
            changes = self._server.changes_after(prefix, seen)
            if changes.revision == seen:
                await self._woken.wait()
                continue
            seen = changes.revision
            if changes.changes:
                await asyncio.sleep(self._link.latency())
                await self._link.is_open_again()
                yield changes

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        return await self._call(lambda: self._server.grant(ttl_ms))

    async def keep_alive(self, lease_id: LeaseId) -> None:
        await self._call(lambda: self._server.keep_alive(lease_id))

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        await self._call(lambda: self._server.revoke(lease_id))

    async def close(self) -> None:
        self._closed = True
        self.forget()
        self._woken.set()

    def forget(self) -> None:
        """Whoever watched through it is gone."""
        self._server.woken.pop(self._woken, None)

    async def _call(self, work: Callable[[], _T]) -> _T:
        if self._closed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata store is closed")
        self.calls += 1
        loop, link = asyncio.get_running_loop(), self._link
        answer: asyncio.Future[_T] = loop.create_future()
        back_s = link.latency()

        def arrives() -> None:
            if link.is_cut_there:
                return
            try:
                result = work()
            except Exception as error:
                loop.call_later(back_s, answered, error, None, context=_NOBODY)
            else:
                loop.call_later(back_s, answered, None, result, context=_NOBODY)

        def answered(error: Exception | None, result: _T | None) -> None:
            if link.is_cut_back or answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        loop.call_later(link.latency(), arrives, context=_NOBODY)
        try:
            async with asyncio.timeout(GIVEN_UP_AFTER_S):
                return await answer
        except TimeoutError:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata store did not answer") from None
