"""How fast background work may go: it says what it has done and is held back when that was too much.

Two things hold it back: a number of bytes a second, and rests that it owes to those who serve requests. Without rests
they wait for a core, whatever the priorities (measured: 2 to 7 times the p99 of a producer on two cores). So a thread
rests for as long as it computed, as long as others of this process have something to do; alone, it need not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# A pause is no longer than this at a time, so that a changed rate counts soon.
_MAX_WAIT_S = 0.25
# For what others compute, this many times as much rest: who serves a thousand small requests a second is busy for a
# twentieth of the time only, and each of them has to find a core free.
_REST_FOR_OTHERS = 20
# Rest that is still owed for what others did a while ago. It bridges the gaps between requests.
_MAX_OWED_S = 0.25
# A thread that has not asked for so long begins anew: what others did meanwhile is past.
_MAX_GAP_MS = 1_000


class Pace:
    """Shared by threads. `bytes_per_s` may be changed at any time."""

    __slots__ = (
        "_computed_s",
        "_done_ms",
        "_lock",
        "_monotonic_ms",
        "_of_thread",
        "_process_s",
        "_stop",
        "bytes_per_s",
    )

    def __init__(
        self,
        monotonic_ms: Callable[[], int],
        stop: threading.Event,
        bytes_per_s: float = float("inf"),
        *,
        computed_s: Callable[[], float] = time.thread_time,
        process_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`computed_s`: CPU time of the thread that asks; `process_s`: of all threads together."""
        self.bytes_per_s = bytes_per_s
        self._monotonic_ms = monotonic_ms
        self._stop = stop
        self._computed_s = computed_s
        self._process_s = process_s
        self._of_thread = _OfThread()
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
        own, now_ms = self._of_thread, self._monotonic_ms()
        computed_s, process_s = self._computed_s(), self._process_s()
        unrested_s, all_s = computed_s - own.computed_s, process_s - own.process_s
        is_new, own.asked_ms = now_ms - own.asked_ms > _MAX_GAP_MS, now_ms
        own.computed_s, own.process_s = computed_s, process_s
        if is_new:
            own.owed_s = 0.0
            return
        owed_s = min(own.owed_s + _REST_FOR_OTHERS * max(0.0, all_s - unrested_s), _MAX_OWED_S)
        rest_s = min(unrested_s, owed_s, _MAX_WAIT_S)
        own.owed_s = owed_s - rest_s
        if rest_s > 0:
            self._stop.wait(rest_s)


class _OfThread(threading.local):
    """When it asked last, up to which CPU time it has rested, and what it owes to others."""

    asked_ms = -_MAX_GAP_MS - 1
    computed_s = 0.0
    process_s = 0.0
    owed_s = 0.0
