"""Fetches that wait for data: parked here, woken by the append that makes it visible, never polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class ParkedFetch:
    """Ends once: when `missing_bytes` have become visible, when something changed, or when its time is up."""

    __slots__ = ("_missing_bytes", "_parked", "_resume", "_timer", "_waiting_with", "stable_only")

    def __init__(
        self,
        waiting_with: Iterable[set[ParkedFetch]],
        missing_bytes: int,
        max_wait_ms: int,
        resume: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        *,
        stable_only: bool = False,
    ) -> None:
        """It is in each of these sets while it waits.

        `stable_only`: it is to be woken by what the last stable offset has passed, not the high watermark.
        """
        self.stable_only = stable_only
        self._missing_bytes = missing_bytes
        self._resume = resume
        self._parked = True
        self._waiting_with = list(waiting_with)
        for waiters in self._waiting_with:
            waiters.add(self)
        self._timer = loop.call_later(max_wait_ms / 1000, self.wake)

    def arrived(self, visible_bytes: int) -> None:
        self._missing_bytes -= visible_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def wake(self) -> None:
        if self.cancel():
            self._resume()

    def cancel(self) -> bool:
        """True if it was still parked."""
        if not self._parked:
            return False
        self._parked = False
        self._timer.cancel()
        for waiters in self._waiting_with:
            waiters.discard(self)
        return True
