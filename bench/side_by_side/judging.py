"""From the repetitions of a scenario to the rows of the result: medians, ratios, and whether a goal is met.

The ratio is always ours divided by Kafka's. A library client that is busy itself, or gets as much from us as from a
server that only acknowledges, measures itself: its row is bound by the client, and its goal is a share of the stub.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.side_by_side.rows import (
    CLIENT_BOUND_SHARE,
    CLIENT_CPU_SHARE,
    KAFKA,
    PENSTOCK,
    SHARE_OF_STUB,
    STUB,
    Figures,
    Goal,
    Row,
)

# Peers of which every row says something, if only why it has no figure.
OTHER_PEERS = ("nats", "rabbitmq")
FAILED = "it failed"
NOT_MEASURED = "this row is about the Kafka protocol or not measured for this broker"


@dataclass(slots=True)
class Samples:
    """What a scenario's repetitions gave, by system, and why a system gave nothing."""

    figures: dict[str, list[Figures]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    thrown_away: int = 0
    stolen_share: float = 0.0

    def of(self, system: str, figure: str) -> list[float]:
        return [each[figure] for each in self.figures.get(system, ()) if figure in each]


def judged(row: Row, samples: Samples) -> dict[str, Any]:
    """The row as the result file has it."""
    values = {system: samples.of(system, row.figure) for system in samples.figures}
    medians = {system: statistics.median(found) for system, found in values.items() if found}
    bound = _bound(row, samples, medians)
    goal = SHARE_OF_STUB if bound else row.goal
    ours, theirs = medians.get(PENSTOCK), medians.get(KAFKA)
    return {
        "row": row.name,
        "durability": row.durability,
        **dict.fromkeys((PENSTOCK, KAFKA, *OTHER_PEERS)),
        **{system: _rounded(value) for system, value in medians.items()},
        "unit": row.unit,
        "ratio": _rounded(ours / theirs) if ours is not None and theirs else None,
        "goal": goal.as_json() if goal else None,
        "met": _is_met(goal, medians),
        "bound": bound,
        "higher_is_better": row.higher_is_better,
        "spread": {system: [_rounded(min(found)), _rounded(max(found))] for system, found in values.items() if found},
        "repeats": {system: [_rounded(each) for each in found] for system, found in values.items() if found},
        "reasons": _reasons(samples.reasons, medians),
        "thrown_away": samples.thrown_away,
        "stolen_share": _rounded(samples.stolen_share),
    }


def _bound(row: Row, samples: Samples, medians: Mapping[str, float]) -> str | None:
    if not row.is_library_client or PENSTOCK not in medians:
        return None
    busy = samples.of(PENSTOCK, f"{row.figure}.{CLIENT_CPU_SHARE}") or samples.of(PENSTOCK, CLIENT_CPU_SHARE)
    if busy and statistics.median(busy) >= CLIENT_BOUND_SHARE:
        return "client"
    as_fast_as_stub = STUB in medians and medians[PENSTOCK] >= CLIENT_BOUND_SHARE * medians[STUB]
    return "client" if as_fast_as_stub else None


def _is_met(goal: Goal | None, medians: Mapping[str, float]) -> bool:
    """A row without a goal misses nothing; a goal without the figures for it is missed."""
    if goal is None:
        return True
    ours, theirs = medians.get(PENSTOCK), medians.get(goal.of)
    return ours is not None and bool(theirs) and goal.is_met(ours, medians[goal.of])


def _reasons(given: Mapping[str, str], medians: Mapping[str, float]) -> dict[str, str]:
    """Nobody is left out silently."""
    missing = [system for system in (PENSTOCK, KAFKA, *OTHER_PEERS) if system not in medians]
    return {system: given.get(system, NOT_MEASURED) for system in missing}


def _rounded(value: float) -> float:
    """Four digits are more than any of these figures repeats itself to."""
    return float(f"{value:.4g}")


def goals(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Of the rows that have a goal, those that meet it and those that do not."""
    with_goal = [row for row in rows if row["goal"]]
    return [row for row in with_goal if row["met"]], [row for row in with_goal if not row["met"]]
