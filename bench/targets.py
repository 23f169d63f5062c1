"""What Penstock promises about speed and memory, and how a promise is carried over to another machine.

The throughput promises are shares of what a prototype reached on a machine whose loopback carried 1.3 GB/s; they grow
and shrink with the loopback of the run at hand. In pieces of which size the 1.3 GB/s were carried is not on record. It
fetched faster than that in pieces of 1 MiB, so they were small; of the small sizes 64 KiB is the one that repeats
itself: twenty runs within minutes gave 1.1 to 1.5 GB/s, where pieces of 16 KiB gave 1.2 to 3.7.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import Row, Verdict

PROTOTYPE_LOOPBACK_MB_PER_S = 1_300
SCALING_SCENARIO = "loopback-64k"


@dataclass(frozen=True, slots=True)
class Throughput:
    """At least this share of the prototype's figure, at the speed of this machine's loopback."""

    scenario: str
    figure: str
    prototype: float
    share: float

    def verdict(self, measured: float, scale: float) -> Verdict:
        target = self.prototype * self.share * scale
        return Verdict(self.scenario, self.figure, "at least", target, measured, measured >= target)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most this much, on any machine."""

    scenario: str
    figure: str
    limit: float

    def verdict(self, measured: float, scale: float) -> Verdict:
        del scale
        return Verdict(self.scenario, self.figure, "at most", self.limit, measured, measured <= self.limit)


@dataclass(frozen=True, slots=True)
class Minimum:
    """At least this much, on any machine."""

    scenario: str
    figure: str
    minimum: float

    def verdict(self, measured: float, scale: float) -> Verdict:
        del scale
        return Verdict(self.scenario, self.figure, "at least", self.minimum, measured, measured >= self.minimum)


PARTITIONS_COUNT = 10_000
OTHER_DESCRIPTORS = 100  # sockets, the metadata store, standard streams: what a broker holds without any partition

TARGETS: tuple[Throughput | Limit | Minimum, ...] = (
    Throughput("produce-1m", "mb_per_s", 1_868, 0.75),
    Throughput("fetch-1m", "mb_per_s", 2_128, 0.75),
    Throughput("produce-16k", "mb_per_s", 458, 0.60),
    Throughput("single-8c", "requests_per_s", 119_000, 0.60),
    Limit("latency-flushed", "p99_ms", 10),
    Limit("latency-flushed-8c", "p99_ms", 10),
    Limit("cold-start", "ready_s", 1),
    Limit("cold-start", "resident_mb", 80),
    Limit("partitions-10k", "ready_s", 10),
    Limit("partitions-10k", "resident_mb", 1_500),
    Limit("partitions-10k", "descriptors", PARTITIONS_COUNT + OTHER_DESCRIPTORS),
    Limit("recovery", "s_per_gib", 1),
    Minimum("compaction", "mb_per_s", 100),
    Limit("latency-while-compacting", "p99_ratio", 2),
    Limit("groups-100x10", "stable_s", 1),
    Minimum("group-commits", "commits_per_s", 10_000),
    Limit("group-200", "loop_lag_ms", 20),
    Minimum("transactions-flushed", "commits_per_s", 150),
    Minimum("transactions-flushed-v2", "commits_per_s", 150),
    Minimum("transactions-page-cache", "commits_per_s", 1_000),
    Minimum("transactions-page-cache-v2", "commits_per_s", 1_000),
    Limit("transactional-ids-1k", "grown_mb", 20),
    Minimum("fetch-committed", "uncommitted_share", 0.9),
    Minimum("replicated", "single_share", 0.25),
    Limit("handover", "handover_ms", 300),
    Limit("failover", "failover_s", 4),
    Limit("failover-1s", "failover_s", 1.5),
    Limit("cluster-3000", "failover_s", 10),
    Limit("cluster-3000", "started_s", 20),
    Limit("cluster-3000", "idle_cpu_share", 0.03),
    Minimum("spark-read-100b", "rows_per_s", 600_000),
    Minimum("spark-read-1k", "mb_per_s", 250),
    Minimum("spark-archive-100b", "rows_per_s", 250_000),
    Minimum("spark-write-100b", "rows_per_s", 150_000),
    *(Minimum(f"spark-{job}", "connector_share", 1) for job in ("read-100b", "read-1k", "archive-100b", "write-100b")),
)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The promises that the rows of Penstock speak about; unscaled when the run did not measure its loopback."""
    figures = {(row.scenario, row.system): row.figures for row in rows}
    loopback = figures.get((SCALING_SCENARIO, "machine"), {"mb_per_s": PROTOTYPE_LOOPBACK_MB_PER_S})
    scale = loopback["mb_per_s"] / PROTOTYPE_LOOPBACK_MB_PER_S
    failed = {row.scenario for row in rows if row.system == "penstock" and row.failure}
    found = []
    for target in TARGETS:
        if target.scenario in failed:
            found.append(target.verdict(math.nan, scale))  # no comparison with it holds
        measured = figures.get((target.scenario, "penstock"), {})
        if target.figure in measured:
            found.append(target.verdict(measured[target.figure], scale))
    return found
