"""How long producers waited after each fault, and what share of a week that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

WEEK_S = 7 * 24 * 3600
# One broker fails, in one of these ways.
FAILURES = (
    "kill_a_broker",
    "kill_the_controller",
    "pause_a_broker",
    "cut_a_broker_off",
    "cut_a_broker_off_one_way",
    "cut_from_the_metadata",
    "cut_the_power_of_one",
    "fail_to_write",
)


def availability(seconds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Lines to print. As if every partition had waited as long as the one that waited longest."""
    for what, each in seconds.items():
        waited = f"nothing acknowledged for {max(each):.1f} s at most, {mean(each):.1f} s on average"
        yield f"{what}: {len(each)} times, {waited}"
    failures = [wait for what in FAILURES for wait in seconds.get(what, ())]
    if failures:
        by_mean, at_worst = (100 * (1 - wait / WEEK_S) for wait in (mean(failures), max(failures)))
        yield (
            f"with one failure of a broker a week a partition is available for {by_mean:.4f} % of the time, "
            f"{at_worst:.4f} % if each took as long as the longest ({len(failures)} failures)"
        )
