"""What a row of the result is, and what it takes to fill it: the words that all scenarios use.

A scenario is one piece of work whose repetition gives the figures of several rows: a topic that is written and read
back tells four of them. Its rows say what the figures mean and what they must be; the scenario does not know.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.side_by_side.laboratory import Laboratory

PENSTOCK, KAFKA, STUB, MACHINE = "penstock", "kafka", "stub", "machine"
# Acknowledged from memory, or from the disk. The two are never in one row.
PAGE_CACHE, FSYNC = "page-cache", "fsync"
AT_LEAST, AT_MOST = "at least", "at most"
# Of a client's core in use, or of what the client gets from the stub: beyond that the client is what was measured.
CLIENT_BOUND_SHARE = 0.95
CLIENT_CPU_SHARE = "client_cpu_share"

Figures = Mapping[str, float]
# One repetition. What it stands on is made once before, and goes after the last of them.
Once = Callable[[], Figures]
Prepare = Callable[["Laboratory", str], AbstractContextManager[Once]]


@dataclass(frozen=True, slots=True)
class Goal:
    """What our figure must be, divided by that of `of` in the same run; `under` is a limit in the row's own unit."""

    direction: str
    ratio: float
    of: str = KAFKA
    under: float | None = None

    def as_json(self) -> dict[str, object]:
        limit = {} if self.under is None else {"under": self.under}
        return {"direction": self.direction, "ratio": self.ratio, "of": self.of, **limit}

    def is_met(self, ours: float, theirs: float) -> bool:
        reached = ours / theirs
        met = reached >= self.ratio if self.direction == AT_LEAST else reached <= self.ratio
        return met and (self.under is None or ours < self.under)

    def text(self) -> str:
        limit = "" if self.under is None else f", under {self.under:g}"
        return f"{self.direction} {self.ratio:g} x {self.of}{limit}"


SHARE_OF_STUB = Goal(AT_LEAST, CLIENT_BOUND_SHARE, STUB)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result; `figure` is what the scenario calls it."""

    name: str
    figure: str
    unit: str
    goal: Goal | None = None
    higher_is_better: bool = True
    durability: str = PAGE_CACHE
    is_library_client: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One piece of work, its rows, and on whom it is done."""

    rows: tuple[Row, ...]
    prepare: Prepare
    systems: tuple[str, ...] = (PENSTOCK, KAFKA)
    warm_up: bool = True
    """Whether a first repetition does not count; a scenario that starts brokers of its own has none."""
    repeat_at_most: int | None = None
    """Where one repetition takes minutes."""
    peers: Mapping[str, Prepare] = field(default_factory=dict)
    """The same work done by brokers that do not speak Kafka's protocol, by their names."""
