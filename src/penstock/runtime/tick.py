"""Work that is worth doing once per turn of the event loop instead of once per request.

Requests that arrive in one turn stage their appends and answers; at the start of the next turn, before any socket is
read again, the tick writes each partition once (`writev`) and then sends on each connection once. That order lets a
connection reuse its receive buffer: nothing staged still points into it when it is read again.

What a write or a send stages in turn, as a transaction's outcome does its markers, is done right after it: a turn of
the loop costs more than a small write. But not without end, so that sockets are read in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROUNDS = 4


class Tick:
    __slots__ = ("_loop", "_scheduled", "_sends", "_writes")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._writes: list[Callable[[], None]] = []
        self._sends: list[Callable[[], None]] = []
        self._scheduled = False

    def write(self, work: Callable[[], None]) -> None:
        """Run `work` in the tick's first phase: staged appends go to disk, which completes answers."""
        self._writes.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def send(self, work: Callable[[], None]) -> None:
        """Run `work` in the tick's second phase: completed answers go to their sockets."""
        self._sends.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        try:
            for _ in range(ROUNDS):
                writes, self._writes = self._writes, []
                for work in writes:
                    work()
                sends, self._sends = self._sends, []
                for work in sends:
                    work()
                if not self._writes and not self._sends:
                    return
        finally:
            self._scheduled = False
            if self._writes or self._sends:
                self._scheduled = True
                self._loop.call_soon(self._run)
