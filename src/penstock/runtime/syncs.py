"""fdatasync beside the event loop, by threads that do not know Python, where a compiler was at hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

try:
    from penstock.runtime._syncs import SyncThreads
except ImportError:
    SyncThreads = None  # type: ignore[assignment, misc]

Done = Callable[[OSError | None], None]


class Syncs:
    """Runs one `fdatasync` a request, several at once, and tells on the loop how it ended."""

    __slots__ = ("_loop", "_threads")

    def __init__(self, threads: int) -> None:
        self._threads = SyncThreads(threads)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._threads.wake_descriptor, self._tell)

    @staticmethod
    def are_there() -> bool:
        return SyncThreads is not None

    def start(self, descriptor: int, done: Done) -> None:
        """The descriptor stays open until `done` is called."""
        self._threads.start(descriptor, done)

    def _tell(self) -> None:
        for done, error in self._threads.ended():
            self._loop.call_soon(done, OSError(error, os.strerror(error)) if error else None)

    def close(self) -> None:
        """Waits for what is under way, and tells nobody. Blocking, and short if nothing is."""
        self._loop.remove_reader(self._threads.wake_descriptor)
        self._threads.close()
