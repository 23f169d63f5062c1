"""A partition's slow lane: batches that must wait for something before they can be appended.

As long as one batch waits, every later batch of the partition lines up behind it, so that no producer's batches change
their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from typing import Any

from penstock.runtime.tasks import TaskGroup


class AdmissionLane:
    __slots__ = ("_name", "_queue", "_tasks", "is_busy")

    def __init__(self, tasks: TaskGroup, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self._queue: deque[Coroutine[Any, Any, None]] = deque()
        self.is_busy = False

    def submit(self, append: Coroutine[Any, Any, None]) -> None:
        self._queue.append(append)
        if not self.is_busy:
            self.is_busy = True
            self._tasks.spawn(self._drain(), name=f"admission-{self._name}")

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._queue.popleft()
        finally:
            self.is_busy = False
            while self._queue:
                self._queue.popleft().close()
