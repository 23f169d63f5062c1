"""How often a process was told to stop. The second time means: at once.

`timeout`, systemd and others signal a process and then the whole group that it is in, so two signals that come
together are one.
"""

from __future__ import annotations

TOGETHER_S = 0.2


class StopSignals:
    def __init__(self) -> None:
        self._count = 0
        self._last_s = 0.0

    def received(self, now_s: float) -> int:
        """How many there have been, with this one; 0 when it only repeats the last."""
        if self._count and now_s - self._last_s < TOGETHER_S:
            return 0
        self._count, self._last_s = self._count + 1, now_s
        return self._count
