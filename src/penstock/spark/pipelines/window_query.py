"""Records to windows: which columns a record has, which window it is in, and what is computed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType, TimestampType

from penstock.spark.pipelines import json_values
from penstock.spark.pipelines.aggregates import Aggregate
from penstock.spark.pipelines.bad_values import REASON, BadValues
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.expressions import Expression, check_name, expression_of, first_words
from penstock.spark.pipelines.windows import Windows, interval

START, END = "window_start", "window_end"
_TIME, _RECORD, _PARSED, _WINDOW = "_penstock_time", "_penstock_record", "_penstock_parsed", "_penstock_window"
_OURS = ("_key", "_value", "_timestamp", "_headers", "_topic", "_partition", "_offset")
_ORIGINAL = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


class Answer(NamedTuple):
    """Streams: of windows, with the groups that they are of, and of records that cannot be in one, if they are kept."""

    windows: DataFrame
    groups: tuple[str, ...]
    quarantined: DataFrame
    quarantine: str | None


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """`time`, `group_by` and `where` are expressions of SQL."""

    windows: Windows
    time: str
    group_by: tuple[str, ...]
    where: str | None
    aggregates: tuple[Aggregate, ...]
    schema: StructType | None
    bad_values: BadValues

    def answer(self, source: DataFrame) -> Answer:
        """Raises PipelineError."""
        records = _columns(source, self.schema)
        time = self._time(records)
        groups = [expression_of(records, text, "--group-by") for text in self.group_by]
        self._check_names(groups)
        computed = [each.column(records) for each in self.aggregates]
        placed = self._placed(self._wanted(records), time)
        timed = self.bad_values.good(placed, f"{_RECORD}.").withWatermark(_TIME, interval(self.windows.watermark_ms))
        size, slide = interval(self.windows.size_ms), interval(self.windows.slide_ms)
        by = [F.window(_TIME, size, slide).alias(_WINDOW), *(group.column.alias(group.name) for group in groups)]
        names = tuple(group.name for group in groups)
        try:
            windows = timed.groupBy(*by).agg(*computed)
        except PySparkException as error:
            raise PipelineError(f"these windows cannot be computed: {first_words(error)}") from None
        ends = [F.col(_WINDOW)["start"].alias(START), F.col(_WINDOW)["end"].alias(END)]
        return Answer(
            windows.select(*ends, *names, *(each.name for each in self.aggregates)),
            names,
            self.bad_values.quarantined(placed.select(f"{_RECORD}.*", REASON)),
            self.bad_values.quarantine,
        )

    def _time(self, records: DataFrame) -> Expression:
        time = expression_of(records, self.time, "--time")
        if not isinstance(time.type, TimestampType):
            raise PipelineError(
                f"--time {self.time} is {time.type.simpleString()}, not a timestamp: say so in --schema, or turn it "
                "into one, for example with timestamp_millis(...) or to_timestamp(...)"
            )
        return time

    def _check_names(self, groups: Sequence[Expression]) -> None:
        for group, text in zip(groups, self.group_by, strict=True):
            check_name(group.name, "--group-by", text)
        names = [START, END, *(group.name for group in groups), *(each.name for each in self.aggregates)]
        for name in names:
            if names.count(name) > 1:
                raise PipelineError(f"the result has {name} {names.count(name)} times: give one another name, with AS")

    def _wanted(self, records: DataFrame) -> DataFrame:
        if self.where is None:
            return records
        condition = expression_of(records, self.where, "--where")
        if not isinstance(condition.type, BooleanType):
            raise PipelineError(f"--where {self.where} is {condition.type.simpleString()}, not true or false")
        return records.where(F.col(REASON).isNotNull() | condition.column)

    def _placed(self, records: DataFrame, time: Expression) -> DataFrame:
        timed = records.withColumn(_TIME, time.column)
        no_time = F.when(F.col(_TIME).isNull(), F.lit(f"it has no time: {self.time} is null"))
        return timed.withColumn(REASON, F.coalesce(F.col(REASON), no_time))


def _columns(source: DataFrame, schema: StructType | None) -> DataFrame:
    """The record as it is, its fields by their names, and what else is known of it with an underscore."""
    for name in schema.fieldNames() if schema is not None else ():
        if name.lower() in _OURS or name.startswith("_penstock"):
            raise PipelineError(f'--schema: a field cannot be called "{name}": the record has one of its own')
    value = F.col("value").cast("string")
    known = [
        F.struct(*_ORIGINAL).alias(_RECORD),
        F.col("key").cast("string").alias("_key"),
        value.alias("_value"),
        F.col("timestamp").alias("_timestamp"),
        _headers(F.col("headers")).alias("_headers"),
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    ]
    if schema is None:
        return source.select(*known, F.lit(None).cast("string").alias(REASON))
    parsed = source.select(*known, json_values.parsed(value, schema).alias(_PARSED))
    struct, text = F.col(_PARSED), F.col("_value")
    reason = F.when(text.isNull(), F.lit("it has no value")).otherwise(json_values.reason_not(text, struct, schema))
    fields = json_values.fields(struct, schema)
    return parsed.select(*(column for column in parsed.columns if column != _PARSED), *fields, reason.alias(REASON))


def _headers(headers: Column) -> Column:
    """As a map of texts; of several headers of one name, the last."""
    names = F.array_distinct(F.transform(headers, lambda header: header["key"]))
    last = F.transform(
        names,
        lambda name: F.element_at(F.filter(headers, lambda header: header["key"] == name), -1)["value"].cast("string"),
    )
    return F.map_from_arrays(names, last)
