"""Keeps this broker's cluster image up to date with the metadata store, and tells those who react to changes.

A watch brings changes as they happen, but is never trusted alone: when it breaks it is resumed, when its history is
gone everything is read again, and every so often the whole store is compared with the image anyway. Listeners see each
step once, in order, on the event loop; the image they are told of is already the current one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from penstock.core.errors import BrokerError
from penstock.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta, difference
from penstock.metadata.store import Changes, Compacted, MetadataStore, Snapshot
from penstock.runtime.tasks import TaskGroup

log = logging.getLogger(__name__)

RESYNC_INTERVAL_MS = 30_000
RETRY_MS = 500

ImageListener = Callable[[ClusterImage, ClusterImage, ImageDelta], None]


class Follower:
    def __init__(
        self, store: MetadataStore, tasks: TaskGroup | None = None, *, resync_interval_ms: int = RESYNC_INTERVAL_MS
    ) -> None:
        self._store = store
        self._tasks = TaskGroup() if tasks is None else tasks
        self._running: list[asyncio.Task[None]] = []
        self._resync_interval_ms = resync_interval_ms
        self._listeners: list[ImageListener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.image = EMPTY_IMAGE

    def add_listener(self, listener: ImageListener) -> None:
        """A listener added before `start` is told of everything that is there as one first change."""
        self._listeners.append(listener)

    async def start(self) -> None:
        await self._read_everything()
        self._running = [
            self._tasks.spawn(self._follow(), name="metadata-follower"),
            self._tasks.spawn(self._resync(), name="metadata-resync"),
        ]

    async def stop(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        for _, waiting in self._waiting:
            waiting.cancel()

    async def reached(self, revision: int) -> None:
        """Wait until the image is at least as new as this revision of the store."""
        if self.image.revision < revision:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, waiting))
            await waiting

    async def refresh(self) -> ClusterImage:
        """An image that has everything committed before this call, whatever the watch has brought so far."""
        await self._read_everything()
        return self.image

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._store.watch("", self.image.revision):
                    self._fold(changes)
                return  # the store was closed
            except Compacted:
                log.info("metadata history is gone, reading everything", extra={"revision": self.image.revision})
            except BrokerError as error:
                log.warning("metadata watch broke", extra={"reason": error.message})
                await asyncio.sleep(RETRY_MS / 1000)
            with suppress(BrokerError):  # the next turn finds out again, after a pause
                await self._read_everything()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._resync_interval_ms / 1000)
            try:
                await self._read_everything()
            except BrokerError as error:
                log.warning("metadata not read", extra={"reason": error.message})

    async def _read_everything(self) -> None:
        """Replace the image by the store's content."""
        snapshot = await self._store.read("")
        known = self.image
        # Decoding thousands of values takes a while: images are immutable, so another thread can do it.
        fresh, delta = await asyncio.to_thread(_compared, known, snapshot)
        if fresh.revision < self.image.revision:
            return  # the watch was faster
        if self.image is not known:
            delta = difference(self.image, fresh)
        if delta and fresh.revision == self.image.revision:
            log.warning("metadata watch had missed changes", extra={"revision": fresh.revision})
        self._become(fresh, delta)

    def _fold(self, changes: Changes) -> None:
        # A full read may have been faster. Where it has brought only some of these changes, folding all of them in
        # ends in the same image, since their last values are the newest.
        if changes.revision > self.image.revision:
            self._become(*self.image.apply(changes))

    def _become(self, image: ClusterImage, delta: ImageDelta) -> None:
        old, self.image = self.image, image
        if delta:
            for listener in self._listeners:
                listener(old, image, delta)
        still_waiting = []
        for revision, waiting in self._waiting:
            if revision > image.revision:
                still_waiting.append((revision, waiting))
            elif not waiting.done():
                waiting.set_result(None)
        self._waiting = still_waiting


def _compared(known: ClusterImage, snapshot: Snapshot) -> tuple[ClusterImage, ImageDelta]:
    fresh = ClusterImage.of(snapshot)
    return fresh, difference(known, fresh)
