"""The topic that a pipeline writes, or the topics that its rows name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark.pipelines.errors import PipelineError, why
from penstock.spark.pipelines.topics import Brokers, TopicSource
from penstock.spark.sink_errors import BadColumns
from penstock.spark.sink_schema import check_schema

# Of the client that reads, which the sink does not know.
_READERS_SETTINGS = ("fetch.max.wait.ms", "max.partition.fetch.bytes")


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """`topic` is None where every row has its own. Rows are compared when a batch is done again, or only counted."""

    brokers: Brokers
    topic: str | None
    exactly_once: bool
    compares_rows: bool = True

    def __str__(self) -> str:
        promise = "exactly once" if self.exactly_once else "at least once"
        return f"topic {self.topic}, {promise}" if self.topic else f"the topics that the rows name, {promise}"

    def check(self, others: Sequence[str] = ()) -> int | None:
        """How many partitions it has; None where rows name it. Raises WireError when one is missing."""
        named = [*([self.topic] if self.topic else []), *others]
        found = self.brokers.partitions_of(named) if named else {}
        return found[self.topic] if self.topic else None

    def rows(self, answer: DataFrame, what: str) -> DataFrame:
        """What a query gave, with a column topic, and nothing else than a record has. Raises PipelineError."""
        names = [name.lower() for name in answer.columns]
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(
                    f"{what} gives {name} {names.count(name)} times: SELECT * EXCEPT ({name}), ... AS {name}"
                )
        if self.topic is None and "topic" not in names:
            raise PipelineError(f"{what} gives no topic: --to says it for all records, a column topic for each")
        if self.topic is not None and "topic" in names:
            raise PipelineError(f"{what} gives a topic, and --to does: leave one of them out")
        # `SELECT *` hands on what only the input has.
        rows = answer.drop("offset", "json")
        try:
            check_schema(rows.schema, self.topic)
        except BadColumns as error:
            raise PipelineError(f"{what}: {error}") from None
        rows = rows.withColumns({name: F.col(name).cast("binary") for name in ("key", "value") if name in names})
        return rows if self.topic is None else rows.withColumn("topic", F.lit(self.topic))

    def writer(self, rows: DataFrame, output_mode: str = "append") -> DataStreamWriter:
        return rows.writeStream.format("penstock").options(**self._options()).outputMode(output_mode)

    def append(self, rows: DataFrame, name: str | None = None) -> None:
        """A batch; what was written under the same name is not written again."""
        named = {} if name is None else {"writeId": name}
        rows.write.format("penstock").options(**self._options(), **named).mode("append").save()

    def _options(self) -> dict[str, str]:
        options = {
            name: value
            for name, value in self.brokers.options().items()
            if name.removeprefix("kafka.") not in _READERS_SETTINGS
        }
        promises = {"exactlyOnce": self.exactly_once, "compareRows": self.compares_rows}
        return options | {name: str(value).lower() for name, value in promises.items()}


def opened(source: TopicSource, spark: SparkSession) -> DataFrame:
    """The source as a stream. Raises PipelineError, in place of Spark's, for options that cannot be."""
    try:
        return source.stream(spark)
    except PySparkException as error:
        raise PipelineError(why(error)) from None
