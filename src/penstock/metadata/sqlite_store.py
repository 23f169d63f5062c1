"""The embedded metadata store: a SQLite file that any number of brokers on one machine may share.

All database work happens on one thread of its own, so the event loop never waits for the disk. Watches read the log of
changes in the database; they are woken at once by commits of this process and by nudges of others, and within the poll
interval anyway, when `PRAGMA data_version` shows that someone else has written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.sqlite_database import HISTORY_CHANGES, SqliteDatabase
from penstock.metadata.sqlite_leases import SqliteLeases
from penstock.metadata.sqlite_nudges import Nudges
from penstock.metadata.store import Changes, Committed, LeaseId, Snapshot, Transaction
from penstock.runtime.files import Files
from penstock.runtime.tasks import spawn

log = logging.getLogger(__name__)

POLL_INTERVAL_MS = 100

Result = TypeVar("Result")


class SqliteStore:
    """Keeps the contract of MetadataStore. Made by `open`."""

    def __init__(self, thread: Files, database: SqliteDatabase, leases: SqliteLeases) -> None:
        self._thread = thread
        # Renewing a lease must not wait while the store's own thread waits for another process to commit.
        self._lease_thread = Files(threads=1, name="metadata-lease")
        self._database = database
        self._leases = leases
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._nudges = Nudges(database.path, self._wake)
        self._closed = False
        self._poller = spawn(self._poll(), name="metadata-poll")

    @classmethod
    async def open(cls, path: Path, *, history_changes: int = HISTORY_CHANGES) -> SqliteStore:
        thread = Files(threads=1, name="metadata-store")

        def opened() -> tuple[SqliteDatabase, SqliteLeases]:
            database = SqliteDatabase(path, history_changes=history_changes)
            return database, SqliteLeases(database)

        try:
            return cls(thread, *await thread.run(opened))
        except BaseException:
            thread.close()
            raise

    @property
    def trouble(self) -> str | None:
        return self._database.failed_fsync

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake()
        self._poller.cancel()
        await asyncio.wait([self._poller])
        await self._thread.run(self._database.close)
        self._thread.close()
        self._lease_thread.close()
        self._leases.close()
        self._nudges.close()

    async def commit(self, transaction: Transaction) -> Committed:
        return await self._write(lambda: self._database.commit(transaction))

    async def read(self, prefix: str) -> Snapshot:
        return await self._run(self._database.read, prefix)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
        seen = after_revision
        while not self._closed:
            # Taken before the look at the database: a commit after that look sets it.
            woken = self._woken
            changes = await self._run(self._database.changes_after, prefix, seen)
            if changes.revision == seen:
                await woken.wait()
                continue
            seen = changes.revision
            if changes.changes:
                yield changes

    async def grant_lease(self, ttl_ms: int) -> LeaseId:
        return await self._run(self._leases.grant, ttl_ms)

    async def keep_alive(self, lease_id: LeaseId) -> None:
        try:
            await self._lease_thread.run(self._leases.keep_alive, lease_id)
        except OSError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"the lease was not renewed: {error}") from error

    async def revoke_lease(self, lease_id: LeaseId) -> None:
        await self._write(lambda: self._leases.revoke(lease_id))

    async def _write(self, work: Callable[[], Result]) -> Result:
        """Do work on the thread and wake the watches, also when the caller has been cancelled meanwhile."""

        def write() -> Result:
            try:
                return work()
            finally:
                self._loop.call_soon_threadsafe(self._wake)
                self._nudges.send()

        return await self._run(write)

    async def _run(self, work: Callable[..., Result], *args: object) -> Result:
        if self._closed:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata store is closed")
        return await self._thread.run(work, *args)

    def _wake(self) -> None:
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    async def _poll(self) -> None:
        seen = await self._run(self._database.data_version)
        while True:
            await asyncio.sleep(POLL_INTERVAL_MS / 1000)
            try:
                version, ended_leases = await self._run(self._look_around)
            except BrokerError as error:
                log.warning("metadata store not readable", extra={"reason": error.message})
                continue
            if version != seen or ended_leases:
                seen = version
                self._wake()
                if ended_leases:
                    self._nudges.send()

    def _look_around(self) -> tuple[int, bool]:
        return self._database.data_version(), self._leases.end_overdue()
