"""The only clock. Everything that needs the time takes a Clock, so that a simulation can supply its own.

Wall-clock milliseconds stamp records and decide retention; monotonic ones measure waits and deadlines, so that a
step of the wall clock never shortens or stretches one.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Time for measuring waits: never steps, starts anywhere."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
