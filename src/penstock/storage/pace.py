"""How fast background work may go: it says what it has done and is held back when that was too much.

Two things hold it back: a number of bytes a second, and that it rests for as long as it computed. Without rests those
who serve requests wait for a core, whatever the priorities (measured: 2 to 7 times the p99 of a producer on two cores).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A pause is no longer than this at a time, so that a changed rate counts soon.
_MAX_WAIT_S = 0.25


class Pace:
    """Shared by threads. `bytes_per_s` may be changed at any time."""

    __slots__ = ("_computed_s", "_done_ms", "_lock", "_monotonic_ms", "_rested_for", "_stop", "bytes_per_s")

    def __init__(
        self,
        monotonic_ms: Callable[[], int],
        stop: threading.Event,
        bytes_per_s: float = float("inf"),
        *,
        computed_s: Callable[[], float] = time.thread_time,
    ) -> None:
        """`computed_s`: CPU time of the thread that asks."""
        self.bytes_per_s = bytes_per_s
        self._monotonic_ms = monotonic_ms
        self._stop = stop
        self._computed_s = computed_s
        # To each thread how much of its CPU time it has rested for.
        self._rested_for = threading.local()
        self._lock = threading.Lock()
        # When, at the rate allowed, everything so far would have been done.
        self._done_ms = 0.0

    def passed(self, size: int, is_wanted: Callable[[], bool]) -> bool:
        """Blocking. True when that much more was due; False, soon, when it is not wanted or everything is to stop."""
        self._rest()
        with self._lock:
            begun_ms = max(self._done_ms, float(self._monotonic_ms()))
            self._done_ms = done_ms = begun_ms + 1000 * size / max(self.bytes_per_s, 1.0)
        while is_wanted() and not self._stop.is_set():
            wait_ms = min(done_ms, self._done_ms) - self._monotonic_ms()
            if wait_ms <= 0:
                return True
            self._stop.wait(min(wait_ms / 1000, _MAX_WAIT_S))
        return False

    def _rest(self) -> None:
        computed_s = self._computed_s()
        unrested_s = computed_s - getattr(self._rested_for, "seconds", 0.0)
        self._rested_for.seconds = computed_s
        self._stop.wait(min(unrested_s, _MAX_WAIT_S))
