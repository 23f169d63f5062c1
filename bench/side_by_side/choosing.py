"""Which rows a run measures: whole scenarios, since the rows of one come together."""

import fnmatch
from collections.abc import Sequence

from bench.side_by_side.rows import Scenario

QUICK = (
    *("limit-*", "bulk-fetch", "*-raw-1kb-1p-none", "single-record-8c", "latency-*-1000-acks-1", "ack-*-fsync"),
    *("transactions", "cold-start", "memory-idle"),
)


def wanted(everything: Sequence[Scenario], patterns: Sequence[str]) -> list[Scenario]:
    """Those with a row of such a name; a pattern that fits none is an error."""
    names = [row.name for scenario in everything for row in scenario.rows]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"no row is called {pattern}; --list names them all")
    return [
        scenario
        for scenario in everything
        if any(fnmatch.fnmatchcase(row.name, pattern) for row in scenario.rows for pattern in patterns)
    ]
