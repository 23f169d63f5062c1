"""Deadlines of a machine, which has no clock: the shell asks when the next one is due and comes back then."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# Moved and cancelled deadlines stay in the heap until they come up; beyond this many per live one they are cleared out.
_STALE_PER_LIVE = 4
_STALE_ALLOWED = 64


class Timers(Generic[Key]):
    """At most one deadline per key. Setting it again moves it, which is what every heartbeat does, so it is cheap."""

    __slots__ = ("_deadlines", "_heap", "_serial")

    def __init__(self) -> None:
        # To each key its deadline, and the serial of its one place in the heap, which may be earlier.
        self._deadlines: dict[Key, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._serial = 0

    def set(self, key: Key, deadline_ms: int) -> None:
        before = self._deadlines.get(key)
        if before is None or deadline_ms < before[0]:
            self._push(key, deadline_ms)
        else:  # that it moved is found out when its place comes up
            self._deadlines[key] = deadline_ms, before[1]

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)
        if len(self._heap) > _STALE_PER_LIVE * len(self._deadlines) + _STALE_ALLOWED:
            live = self._deadlines
            self._heap = [place for place in self._heap if place[2] in live and live[place[2]][1] == place[1]]
            heapify(self._heap)

    def deadline_ms(self, key: Key) -> int | None:
        found = self._deadlines.get(key)
        return None if found is None else found[0]

    def next_ms(self) -> int | None:
        """When to come back; now and then a little earlier than needed, never later."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Key | None:
        """The earliest of the keys whose time has come, if any; its deadline is gone then."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, serial, key = heappop(self._heap)
            deadline_ms, place = self._deadlines.get(key, (0, 0))
            if place != serial:
                continue
            if deadline_ms > now_ms:
                self._push(key, deadline_ms)
                continue
            del self._deadlines[key]
            return key
        return None

    def due(self, now_ms: int) -> Iterator[Key]:
        while (key := self.pop_due(now_ms)) is not None:
            yield key

    def _push(self, key: Key, deadline_ms: int) -> None:
        self._serial += 1
        self._deadlines[key] = deadline_ms, self._serial
        heappush(self._heap, (deadline_ms, self._serial, key))
