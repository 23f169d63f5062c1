"""What Spark tells of a streaming query's batches, as far as anybody looks at it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

# What a query may observe of itself, and its columns.
COUNTED, READ, BAD = "counted", "read", "bad"


@dataclass(frozen=True, slots=True)
class Batch:
    """One that is done. `begun` is Spark's time of it, which no two of a query share. `bad` rows were set aside."""

    id: int
    begun: str
    rows: int
    milliseconds: int
    lag: int | None
    bad: int = 0

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1_000 / max(1, self.milliseconds)


@dataclass(frozen=True, slots=True)
class Totals:
    """`lag` is how many offsets lie between what was read and the ends of the partitions, when the last batch knew."""

    batches: int = 0
    rows: int = 0
    milliseconds: int = 0
    lag: int | None = None

    def and_then(self, batch: Batch) -> Totals:
        return Totals(self.batches + 1, self.rows + batch.rows, self.milliseconds + batch.milliseconds, batch.lag)

    @property
    def rows_per_second(self) -> float:
        return self.rows * 1_000 / max(1, self.milliseconds)


def finished_batches(query: StreamingQuery, seen: str) -> Iterator[Batch]:
    """Those that began after the time `seen`, in their order. Triggers that found nothing to do are no batches."""
    last = query.lastProgress
    if last is None or str(last["timestamp"]) <= seen:
        return
    for progress in query.recentProgress:
        batch = batch_of(progress)
        if batch is not None and batch.begun > seen:
            yield batch


def batch_of(progress: Mapping[str, Any]) -> Batch | None:
    durations = progress["durationMs"]
    if "addBatch" not in durations:
        return None
    sources = progress["sources"]
    lags = [lag_of(source) for source in sources]
    # A query that goes through its source twice counts for itself.
    counted = progress.get("observedMetrics", {}).get(COUNTED)
    return Batch(
        id=progress["batchId"],
        begun=str(progress["timestamp"]),
        rows=progress["numInputRows"] if counted is None else counted[READ],
        milliseconds=durations.get("triggerExecution", 0),
        lag=None if None in lags or not lags else sum(lag for lag in lags if lag is not None),
        bad=0 if counted is None else counted[BAD],
    )


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Offsets from what was read to the ends of the partitions; None where the source does not say."""
    read, there = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if read is None or there is None:
        return None
    return sum(max(0, end - read.get(partition, 0)) for partition, end in there.items())


def _offsets(text: Any) -> dict[tuple[str, str], int] | None:
    """Of `{"topic": {"0": 23}}`, which the progress has as text or as an object."""
    try:
        topics = json.loads(text) if isinstance(text, str) else text
        return {
            (topic, partition): int(offset)
            for topic, partitions in topics.items()
            if not topic.startswith("#")  # facts about topics, in a name that no topic can have
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        return None
