"""The only statistics the suite reports: medians, and latencies that so many percent of the requests did not exceed."""

import statistics
from collections.abc import Mapping, Sequence

LATENCY_PERCENTS = (50, 99, 99.9)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def latency_figures(latencies_ms: Sequence[float]) -> dict[str, float]:
    figures = {f"p{percent:g}_ms": percentile(latencies_ms, percent) for percent in LATENCY_PERCENTS}
    return {**figures, "max_ms": max(latencies_ms)}


def median_figures(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each figure its median over the rounds: a machine that stands still for a moment spoils one of them."""
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
