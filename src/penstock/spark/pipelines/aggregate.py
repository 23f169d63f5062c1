"""Windows over a topic: counts, sums and percentiles of what happened in each, by group, to a topic or a table.

    from penstock.spark import session
    from penstock.spark.pipelines.aggregate import aggregate

    aggregate(
        session("logs"), bootstrap="localhost:9092", topics=["logs"], to_topic="logs-by-minute",
        checkpoint="file:///checkpoints/logs", schema="service STRING, level STRING, duration_ms DOUBLE, ts TIMESTAMP",
        time="ts", window="1m", watermark="30s", group_by=["service", "level"],
        aggregates=["count", "p99(duration_ms) AS p99"],
    )

A record's JSON fields are columns by their names; the record itself is `_key`, `_value`, `_timestamp`, `_headers` (a
map), `_topic`, `_partition` and `_offset`. A window is written once, when the watermark has passed its end: the latest
time seen, less what late records are waited for. Later ones are not counted. With emit="updates" a topic gets every
window that a batch has changed, and what a reader finds last for a key is what counts.

What must stay true: a window is written once though batches are done again. The sink compares how many rows a batch
has, not their digits, since sums of doubles come out a little different in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from penstock.spark.pipelines import checkpoints, json_values, table_home
from penstock.spark.pipelines.aggregates import parse_aggregates
from penstock.spark.pipelines.bad_values import BadValues
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.running import DEFAULT_INTERVAL_S, Ended, Running
from penstock.spark.pipelines.table_home import read_table
from penstock.spark.pipelines.topic_target import opened
from penstock.spark.pipelines.topics import Brokers, TopicSource, read_options
from penstock.spark.pipelines.window_query import Answer, WindowQuery
from penstock.spark.pipelines.window_targets import Emit, WindowTable, WindowTarget, WindowTopic, parse_emit
from penstock.spark.pipelines.windows import Windows

__all__ = ["aggregate", "plan_aggregate", "read_table"]

DEFAULT_TABLE = "windows"
_NEWER = ("where", "schema")  # what checkpoints did not say at first


def plan_aggregate(
    spark: SparkSession,
    *,
    bootstrap: str,
    topics: Sequence[str],
    aggregates: Sequence[str],
    window: str | None = None,
    watermark: str | None = None,
    slide: str | None = None,
    time: str = "_timestamp",
    group_by: Sequence[str] = (),
    where: str | None = None,
    schema: str | None = None,
    to_topic: str | None = None,
    to: str | None = None,
    table: str = DEFAULT_TABLE,
    emit: str = "final",
    quarantine: str | None = None,
    skip_bad: bool = False,
    skip_lost: bool = False,
    checkpoint: str | None = None,
    starting_offsets: str = "earliest",
    max_per_batch: int | None = None,
    follow: bool = False,
    interval_s: float = DEFAULT_INTERVAL_S,
    kafka: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
) -> AggregatePlan:
    """Up to what is there now or, with `follow`, on and on. Raises PipelineError, WireError.

    `time`, `group_by` and `where` are expressions of SQL. Results go to a topic or, with `to`, to a table in that
    directory. Windows that are not done when it ends are in the checkpoint, and go on with the next run.
    """
    files = Files(spark)
    brokers = Brokers(bootstrap, kafka or {})
    target = _target(files, brokers, to_topic, to, table, parse_emit(emit), catalog or {})
    options = read_options(max_per_batch, skip_lost) | {"startingOffsets": starting_offsets}
    query = WindowQuery(
        windows=Windows.parse(window, slide, watermark),
        time=time,
        group_by=tuple(group_by),
        where=where,
        aggregates=tuple(parse_aggregates(aggregates)),
        schema=None if schema is None else json_values.parse_schema(schema),
        bad_values=BadValues(quarantine, skip_bad),
    )
    place = checkpoint or target.checkpoint
    if place is None:
        raise PipelineError("--checkpoint is missing: a topic has no place for how far the pipeline has come")
    source = TopicSource(brokers, tuple(dict.fromkeys(topics)), options)
    if to_topic in source.topics:
        raise PipelineError(f"topic {to_topic} would be read and written, over and over: --to-topic takes another one")
    source.check()
    answer = query.answer(opened(source, spark))
    target.check(answer)
    running = Running(f"aggregate {', '.join(source.topics)}", files.qualified(place), follow, interval_s)
    plan = AggregatePlan(spark, source, query, target, answer, running)
    checkpoints.check(files, running.checkpoint, plan.purpose(target), _NEWER)
    target.check_reached(files, running.checkpoint)
    return plan


aggregate = carried_out("aggregate", plan_aggregate)


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    spark: SparkSession
    source: TopicSource
    query: WindowQuery
    target: WindowTarget
    answer: Answer
    running: Running

    def lines(self) -> Lines:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in self.answer.windows.schema.fields)
        return [
            ("from", f"topic {', '.join(self.source.topics)}"),
            ("to", str(self.target)),
            ("windows", f"{self.query.windows}, by {self.query.time}"),
            ("columns", columns),
            ("bad values", str(self.query.bad_values)),
            ("checkpoint", self.running.checkpoint),
            ("runs", "until it is stopped" if self.running.follow else "up to what is there now"),
        ]

    def run(self) -> Ended:
        files = Files(self.spark)
        target = self.target.made(files)
        checkpoints.claim(files, self.running.checkpoint, self.purpose(target), _NEWER)
        return target.run(self.spark, self.answer, self.running)

    def purpose(self, target: WindowTarget) -> dict[str, str]:
        """What it computes is part of it: the states of other windows are in the checkpoint."""
        query = self.query
        return {
            "pipeline": "aggregate",
            "from": ", ".join(sorted(self.source.topics)),
            "windows": str(query.windows),
            "time": query.time,
            "group by": "; ".join(query.group_by),
            "aggregates": "; ".join(f"{each.function}({each.of or ''}) as {each.name}" for each in query.aggregates),
            "where": query.where or "true",
            "schema": "none" if query.schema is None else query.schema.toDDL(),
            **target.purpose,
        }


def _target(
    files: Files,
    brokers: Brokers,
    to_topic: str | None,
    to: str | None,
    table: str,
    emit: Emit,
    catalog: Mapping[str, str],
) -> WindowTarget:
    if (to_topic is None) == (to is None):
        raise PipelineError(
            "windows go to a topic or to a table: --to-topic takes a topic, --to a directory for a table"
        )
    if to_topic is not None:
        return WindowTopic(brokers, to_topic, emit)
    assert to is not None
    if emit is Emit.UPDATES:
        raise PipelineError(
            "a table gets windows when they are done: --emit updates goes with --to-topic, and materialize makes a "
            "table of that topic"
        )
    return WindowTable(brokers, table_home.planned(files, to, "aggregate", table), catalog)
