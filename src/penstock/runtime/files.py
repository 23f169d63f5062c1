"""The only door to blocking disk calls: threads that do them, so that the event loop never waits for a disk.

Threads start when there is first something for them to do. Work is handed over with everything it needs; what comes
back is looked at on the loop, so that state has one owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class Files:
    """One pool. Flushes have their own, so that they never queue behind cold reads."""

    __slots__ = ("_executor", "_name", "_threads")

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._executor: ThreadPoolExecutor | None = None

    def _pool(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        return self._executor

    async def run(self, function: Callable[..., _T], *args: object) -> _T:
        """What `function(*args)` returns or raises, from a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool(), lambda: function(*args))

    async def run_among(self, busy: set[object], function: Callable[..., _T], *args: object) -> _T:
        """As `run`. There is one more in `busy` until the thread has ended, also if nobody waits for it any more."""
        one = object()
        busy.add(one)
        running = self._pool().submit(function, *args)
        running.add_done_callback(lambda _: busy.discard(one))
        return await asyncio.wrap_future(running)

    def start(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Runs `work` in a thread, then `done` on the loop, with what was raised. Cheaper than a task."""
        loop = asyncio.get_running_loop()

        def job() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            loop.call_soon_threadsafe(done, error)

        self._pool().submit(job)

    async def drain(self) -> None:
        """Returns when nothing is under way any more, nor what nobody waits for since they were cancelled."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown)

    def close(self) -> None:
        """Waits for what is under way. Blocking, and short if nothing is."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
