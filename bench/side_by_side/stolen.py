"""Processor time that the host took away from this machine: a repetition that met it says nothing about a broker.

Only a virtual machine has it, and only some hosts tell. A repetition is done again a few times; if all were disturbed,
the least disturbed counts and the row says so, for a run must end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

STOLEN_SHARE_AT_MOST = 0.01
TRIES_AT_MOST = 4
_STEAL_FIELD, _GUEST_FIELD = 7, 8

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Ticks:
    """Of all cores together since the machine was started."""

    total: int
    stolen: int

    def stolen_share_until(self, later: "Ticks") -> float:
        passed = later.total - self.total
        return (later.stolen - self.stolen) / passed if passed > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Measured(Generic[Answer]):
    answer: Answer
    thrown_away: int
    """How many repetitions before it were disturbed."""
    stolen_share: float


def ticks_now() -> Ticks:
    return parse_ticks(Path("/proc/stat").read_text())


def parse_ticks(text: str) -> Ticks:
    """From the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user."""
    name, *fields = text.splitlines()[0].split()
    assert name == "cpu", f"/proc/stat begins with {name}, not with cpu"
    numbers = [int(each) for each in fields[:_GUEST_FIELD]]
    return Ticks(sum(numbers), numbers[_STEAL_FIELD])


def undisturbed(work: Callable[[], Answer], now: Callable[[], Ticks] = ticks_now) -> Measured[Answer]:
    """Repeats the work until the host left it alone, a few times at most."""
    attempts: list[Measured[Answer]] = []
    for thrown_away in range(TRIES_AT_MOST):
        before = now()
        answer = work()
        stolen_share = before.stolen_share_until(now())
        attempts.append(Measured(answer, thrown_away, stolen_share))
        if stolen_share <= STOLEN_SHARE_AT_MOST:
            return attempts[-1]
    least = min(attempts, key=lambda each: each.stolen_share)
    return Measured(least.answer, TRIES_AT_MOST - 1, least.stolen_share)
