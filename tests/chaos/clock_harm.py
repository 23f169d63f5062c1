"""Wall clocks that are set, forwards and back: leases and timeouts go by clocks that nobody sets."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.harming import Harming, Kind, let_pass
from tests.testkit.clocks import NOTICED_WITHIN_S, WallClock

# Less than the retention of two weeks: what is older may go.
_STEPS_S = (-86_400, -3_600, -10, 10, 3_600, 86_400)


class ClockHarm:
    def __init__(self, harming: Harming, clocks: Mapping[int, WallClock]) -> None:
        self._harming = harming
        self._clocks = clocks

    @property
    def kinds(self) -> list[Kind]:
        return [self.set_a_clock]

    def set_a_clock(self) -> None:
        luck = self._harming.luck
        number = luck.choice(list(self._clocks))
        step_s = luck.choice(_STEPS_S)
        self._harming.say(f"  the clock of broker {number} is set by {step_s} s")
        self._clocks[number].set_by(step_s)
        let_pass(2 * NOTICED_WITHIN_S)
        self._harming.until_all_get_on("a clock was set")
        self._clocks[number].set_by(0)
