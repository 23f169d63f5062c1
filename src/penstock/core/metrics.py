"""What the broker counts, as plain numbers: incrementing one costs nanoseconds on the data path.

Rendering them for Prometheus is `server/http.py`'s work, and happens only when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

LATENCY_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class Histogram:
    """Counts per bucket (the last one is everything above), and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class ApiMetrics:
    """One API's requests: how many, how long from parsed to answered, and which error codes went out."""

    requests: int = 0
    # With bytes after the last field: accepted, as Kafka does, and counted.
    requests_with_trailing_bytes: int = 0
    latency: Histogram = field(default_factory=Histogram)
    errors: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class TopicMetrics:
    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0
    produce_errors: int = 0
    fetch_errors: int = 0


@dataclass(slots=True)
class CoordinatorMetrics:
    """Of all partitions of a coordinator's topic together."""

    records_loaded: int = 0
    # Not understood: somebody else wrote into the topic, or the disk did.
    records_skipped: int = 0


@dataclass(slots=True)
class TransactionMetrics:
    """Of all transactional ids together, and of what partitions were asked to take. Only what had begun is counted."""

    commits: int = 0
    aborts: int = 0
    # Of the aborts: their producers took longer than they had asked for.
    timeouts: int = 0
    # Writes that belong to no open transaction: delayed ones, and those of fenced producers.
    verification_failures: int = 0


@dataclass(slots=True)
class CleanerMetrics:
    """Compaction, of all logs together."""

    runs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    # Times it died of a bug and began anew.
    restarts: int = 0
    uncleanable_partitions: int = 0
    # Of the dirtiest log when it last looked.
    max_dirty_ratio: float = 0.0
    # On the monotonic clock; None: it never looked.
    last_run_ms: int | None = None
