"""The only statistics the suite reports: medians, and latencies that so many percent of the requests did not exceed."""

from collections.abc import Sequence

LATENCY_PERCENTS = (50, 99, 99.9)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def latency_figures(latencies_ms: Sequence[float]) -> dict[str, float]:
    figures = {f"p{percent:g}_ms": percentile(latencies_ms, percent) for percent in LATENCY_PERCENTS}
    return {**figures, "max_ms": max(latencies_ms)}
