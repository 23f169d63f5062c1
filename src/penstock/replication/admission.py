"""A partition's slow lanes: batches that must wait for something before they can be appended.

As long as one batch waits, every later one of its producer lines up behind it, so that no producer's batches change
their order. Others pass: a transaction's first batch waits for its coordinator's disk. Producers without an id share a
lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from typing import Any

from penstock.runtime.tasks import TaskGroup, begun

Append = Coroutine[Any, Any, None]


class AdmissionLanes:
    __slots__ = ("_name", "_tasks", "waiting")

    def __init__(self, tasks: TaskGroup, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self.waiting: dict[int, deque[Append]] = {}
        """By producer id: a lane that is there has a batch under way, and maybe others behind it."""

    def submit(self, producer_id: int, append: Append) -> bool:
        """Whether it has to wait. Otherwise it is done already."""
        lane = self.waiting.get(producer_id)
        if lane is None:
            rest = begun(append)
            if rest is None:
                return False
            append = rest
            lane = self.waiting[producer_id] = deque()
            self._tasks.spawn(self._drain(producer_id, lane), name=f"admission-{self._name}")
        lane.append(append)
        return True

    async def _drain(self, producer_id: int, lane: deque[Append]) -> None:
        try:
            while lane:
                await lane.popleft()
        finally:
            del self.waiting[producer_id]
            while lane:
                lane.popleft().close()
