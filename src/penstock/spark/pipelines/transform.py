"""Topic to topic: SQL or a function on every record, in order, exactly once.

    from penstock.spark import session
    from penstock.spark.pipelines.transform import transform

    transform(
        session("shout"), bootstrap="localhost:9092", topic="said", to="shouted", checkpoint="file:///checkpoints/shout",
        sql="SELECT upper(value) AS value FROM input WHERE value IS NOT NULL",
    )

The view `input` has key and value as text, partition, offset, timestamp and headers of each record and, with a schema,
the value's fields in a column `json`. The result's columns are those of the records to be written: key, value,
partition, headers and timestamp, and topic where `to` is not given. Whichever the query does not name stays as it was.

What must stay true: a partition of the input is one task, and its records stay in their order; what a batch writes is
the same however often it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.spark.pipelines import checkpoints, json_values, plan_checks
from penstock.spark.pipelines.bad_values import REASON, BadValues
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.planning import Lines, carried_out
from penstock.spark.pipelines.queries import FunctionQuery, Query, SqlQuery
from penstock.spark.pipelines.running import DEFAULT_INTERVAL_S, Ended, Running, run
from penstock.spark.pipelines.settings import STREAMS, settings
from penstock.spark.pipelines.topic_target import TopicTarget, opened
from penstock.spark.pipelines.topics import Brokers, TopicSource, read_options

_KEPT = ("key", "value", "partition", "headers", "timestamp")
_JSON = "json"


def plan_transform(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    checkpoint: str,
    to: str | None = None,
    sql: str | None = None,
    function: str | Callable[[DataFrame], DataFrame] | None = None,
    schema: str | None = None,
    quarantine: str | None = None,
    skip_bad: bool = False,
    skip_lost: bool = False,
    exactly_once: bool = True,
    starting_offsets: str = "earliest",
    max_per_batch: int | None = None,
    follow: bool = False,
    interval_s: float = DEFAULT_INTERVAL_S,
    kafka: Mapping[str, str] | None = None,
) -> TransformPlan:
    """Up to what is there now or, with `follow`, on and on. Raises PipelineError, WireError.

    `function` is a function, or the name of one as `module:function`. `schema` is DDL of JSON values; those that are
    not of it go to the topic `quarantine`, are left out with `skip_bad`, or else end the pipeline.
    """
    brokers = Brokers(bootstrap, kafka or {})
    options = read_options(max_per_batch, skip_lost) | {"startingOffsets": starting_offsets}
    wanted = _Wanted(
        source=TopicSource(brokers, (topic,), options),
        target=TopicTarget(brokers, to, exactly_once),
        query=_query(sql, function),
        schema=None if schema is None else json_values.parse_schema(schema),
        bad_values=BadValues(quarantine, skip_bad),
    )
    result = wanted.checked(spark)
    running = Running(f"transform {topic}", checkpoint, follow, interval_s)
    checkpoints.check(Files(spark), checkpoint, wanted.purpose)
    return TransformPlan(spark, wanted, result, running)


transform = carried_out("transform", plan_transform)


@dataclass(frozen=True, slots=True)
class _Wanted:
    source: TopicSource
    target: TopicTarget
    query: Query
    schema: StructType | None
    bad_values: BadValues

    @property
    def topic(self) -> str:
        return self.source.topics[0]

    @property
    def purpose(self) -> dict[str, str]:
        return {"pipeline": "transform", "from": self.topic, "to": self.target.topic or "the topics of the rows"}

    def checked(self, spark: SparkSession) -> DataFrame:
        """The rows to be written. Raises PipelineError, WireError."""
        if self.schema is None and (self.bad_values.quarantine or self.bad_values.skip):
            raise PipelineError("without --schema no value is bad: --quarantine and --skip-bad need one")
        if self.topic == self.target.topic:
            raise PipelineError(f"topic {self.topic} would be read and written, over and over: --to takes another one")
        partitions = self.source.check()[self.topic]
        there = self.target.check(others=[self.bad_values.quarantine] if self.bad_values.quarantine else [])
        records = _decoded(opened(self.source, spark), self.schema)
        given = self.bad_values.good(records).drop("topic", REASON)
        answer = self.query.result(given, _KEPT)
        self._check_plan(answer)
        rows = self.target.rows(answer, str(self.query))
        if there is not None and there < partitions and _keeps_partitions(given, answer):
            raise PipelineError(
                f"topic {self.target.topic} has {there} partitions, {self.topic} has {partitions}: records stay in "
                "their partitions; add partitions, or select CAST(NULL AS INT) AS partition to place them by key"
            )
        return rows.unionByName(self.bad_values.quarantined(records))

    def _check_plan(self, answer: DataFrame) -> None:
        plan_checks.check_order(answer, str(self.query))
        if self.target.exactly_once:
            plan_checks.check_repeatable(answer, str(self.query))


@dataclass(frozen=True, slots=True)
class TransformPlan:
    spark: SparkSession
    wanted: _Wanted
    result: DataFrame
    running: Running

    def lines(self) -> Lines:
        columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in self.result.schema.fields)
        lines = [("from", f"topic {self.wanted.topic}"), ("to", str(self.wanted.target)), ("columns", columns)]
        if self.wanted.schema is not None:
            lines.append(("bad values", str(self.wanted.bad_values)))
        until = "until it is stopped" if self.running.follow else "up to what is there now"
        return [*lines, ("checkpoint", self.running.checkpoint), ("runs", until)]

    def run(self) -> Ended:
        checkpoints.claim(Files(self.spark), self.running.checkpoint, self.wanted.purpose)
        with settings(self.spark, STREAMS):
            return run(self.wanted.target.writer(self.result), self.running)


def _keeps_partitions(given: DataFrame, answer: DataFrame) -> bool:
    ids = plan_checks.attribute_ids
    return ids(given)["partition"] == ids(answer).get("partition")


def _query(sql: str | None, function: str | Callable[[DataFrame], DataFrame] | None) -> Query:
    if (sql is None) == (function is None):
        raise PipelineError("a transform takes --sql or --function, one of them")
    if sql is not None:
        return SqlQuery(sql)
    if isinstance(function, str):
        return FunctionQuery.named(function)
    assert function is not None
    return FunctionQuery(function, getattr(function, "__name__", repr(function)))


def _decoded(records: DataFrame, schema: StructType | None) -> DataFrame:
    """Text is the bytes as they are, also where they are no UTF-8: what is not touched comes out as it went in."""
    texts = {name: F.col(name).cast("string") for name in ("key", "value")}
    decoded = records.withColumns(texts).drop("timestampType")
    if schema is None:
        return decoded.withColumn(REASON, F.lit(None).cast("string"))
    value, struct = F.col("value"), F.col("_parsed")
    fields = F.when(value.isNotNull(), F.struct(*json_values.fields(struct, schema)))
    return (
        decoded.withColumn("_parsed", json_values.parsed(value, schema))
        .withColumns({_JSON: fields, REASON: json_values.reason_not(value, struct, schema)})
        .drop("_parsed")
    )
