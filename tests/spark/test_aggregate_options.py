"""Windows and what is computed of them, as they are written in options. Only the last tests need Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType, TimestampType

from penstock.spark.pipelines.aggregates import Aggregate, parse_aggregates
from penstock.spark.pipelines.bad_values import BadValues
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.window_query import WindowQuery
from penstock.spark.pipelines.windows import Windows, duration_ms, told


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("30s", 30_000),
        ("1 minute", 60_000),
        ("90 seconds", 90_000),
        ("1h 30m", 5_400_000),
        ("2 Days", 172_800_000),
        ("250ms", 250),
        ("0s", 0),
        ("1w", 604_800_000),
    ],
)
def test_given_a_time_when_it_is_parsed_then_it_is_milliseconds(text: str, milliseconds: int) -> None:
    assert duration_ms(text, "--window") == milliseconds


@given(st.integers(1, 10**10))
def test_given_any_duration_when_it_is_told_then_it_is_parsed_as_the_same(milliseconds: int) -> None:
    assert duration_ms(told(milliseconds), "--window") == milliseconds


@pytest.mark.parametrize("text", ["", "1", "m", "1 parsec", "1m and more", "-1m", "1.5h", "1 month"])
def test_given_no_time_when_it_is_parsed_then_it_is_refused_by_name(text: str) -> None:
    with pytest.raises(PipelineError, match=f'--window takes a time such as 30s, 1 minute or 1h 30m, not "{text}"'):
        duration_ms(text, "--window")


@pytest.mark.parametrize(
    ("window", "slide", "watermark", "said"),
    [
        (None, None, "1m", "--window is missing"),
        ("1m", None, None, "--watermark is missing: how long a window waits for late records"),
        ("1m", "2m", "0s", "--slide 2m is above --window 1m"),
        ("0s", None, "1m", "--window takes more than no time"),
        ("1m", "0s", "1m", "--slide takes more than no time"),
        ("1m", None, "soon", '--watermark takes a time such as .*, not "soon"'),
    ],
)
def test_given_bad_windows_when_they_are_parsed_then_one_sentence_says_why(
    window: str | None, slide: str | None, watermark: str | None, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        Windows.parse(window, slide, watermark)


def test_given_windows_when_they_are_told_then_it_is_plain() -> None:
    assert str(Windows.parse("1h", "10m", "30s")) == "of 1h, one every 10m, done 30s after their end"


def test_given_aggregates_when_they_are_parsed_then_they_have_names() -> None:
    texts = ["count", "COUNT(*) AS n", "sum(bytes)", "p99( ms * 2 ) as slow", "p99.9(ms)", "distinct(user) AS users"]

    assert parse_aggregates(texts) == [
        Aggregate("count", None, "count"),
        Aggregate("count", None, "n"),
        Aggregate("sum", "bytes", "sum_bytes"),
        Aggregate("p99", " ms * 2 ", "slow", 0.99),
        Aggregate("p99.9", "ms", "p99_9_ms", 0.9990000000000001),
        Aggregate("distinct", "user", "users"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("median(ms)", "there is no median, only count, sum, avg, min, max, distinct and percentiles such as"),
        ("p100(ms)", "there is no p100"),
        ("sum", r"sum of what\? Write sum\(field\)"),
        ("max()", "max of what"),
        ("sum(a + b)", r"--aggregate sum\(a \+ b\): name it, with AS"),
        ("sum(a", 'takes count, or a function of something such as sum\\(bytes\\), not "sum\\(a"'),
        ("", "takes count, or a function"),
    ],
)
def test_given_a_bad_aggregate_when_it_is_parsed_then_one_sentence_says_why(text: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parse_aggregates([text])


@pytest.fixture(scope="module")
def source(spark: SparkSession) -> DataFrame:
    return (
        spark.readStream.format("rate")
        .load()
        .selectExpr(
            "CAST(CAST(value AS STRING) AS BINARY) AS key",
            "CAST(CAST(value AS STRING) AS BINARY) AS value",
            "'t' AS topic",
            "1 AS partition",
            "value AS offset",
            "timestamp",
            "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
        )
    )


QUERY = WindowQuery(
    windows=Windows.parse("1m", None, "0s"),
    time="ts",
    group_by=("service",),
    where=None,
    aggregates=(Aggregate("count", None, "count"),),
    schema=StructType()
    .add("ts", TimestampType())
    .add("service", StringType())
    .add("ms", DoubleType())
    .add("deep", StructType().add("a", IntegerType())),
    bad_values=BadValues(),
)


def test_given_expressions_when_they_are_planned_then_results_have_their_names(source: DataFrame) -> None:
    query = replace(
        QUERY,
        time="coalesce(ts, _timestamp)",
        group_by=("service", "_headers['level'] AS level", "deep.a AS a", "_key"),
        where="ms > 0 AND _topic = 't'",
        aggregates=tuple(parse_aggregates(["count", "avg(ms)", "p50(deep.a) AS median", "max(ts)"])),
    )

    answer = query.answer(source)

    assert [f"{field.name} {field.dataType.simpleString()}" for field in answer.windows.schema.fields] == [
        "window_start timestamp",
        "window_end timestamp",
        "service string",
        "level string",
        "a int",
        "_key string",
        "count bigint",
        "avg_ms double",
        "median int",
        "max_ts timestamp",
    ]
    assert answer.groups == ("service", "level", "a", "_key")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (replace(QUERY, time="when"), "--time when: .*"),
        (replace(QUERY, time="ms"), "--time ms is double, not a timestamp: say so in --schema"),
        (replace(QUERY, time="missing"), "--time missing: .*`missing` cannot be resolved"),
        (replace(QUERY, group_by=("servcie",)), "--group-by servcie: .*`servcie` cannot be resolved"),
        (replace(QUERY, group_by=("lower(service)",)), r"--group-by lower\(service\): name it, with AS"),
        (replace(QUERY, group_by=("service", "lower(service) AS service")), "the result has service 2 times"),
        (replace(QUERY, group_by=("service AS count",)), "the result has count 2 times"),
        (replace(QUERY, group_by=("ms AS window_end",)), "the result has window_end 2 times"),
        (replace(QUERY, group_by=("count(*) AS n",)), r"--group-by count\(\*\) AS n groups rows: it is asked of each"),
        (replace(QUERY, group_by=("uuid() AS id",)), r"--group-by uuid\(\) AS id is not repeatable: uuid\(\)"),
        (replace(QUERY, group_by=("*",)), r"--group-by \*: this is more than one column"),
        (replace(QUERY, where="service"), "--where service is string, not true or false"),
        (replace(QUERY, where="nothing > 1"), "--where nothing > 1: .*`nothing`"),
        (replace(QUERY, aggregates=(Aggregate("sum", "service", "n"),)), "sum is of numbers, and service is string"),
        (replace(QUERY, aggregates=(Aggregate("p99", "ts", "n", 0.99),)), "p99 is of numbers, and ts is timestamp"),
        (replace(QUERY, aggregates=(Aggregate("max", "durration", "n"),)), "--aggregate durration: .*`durration`"),
        (
            replace(QUERY, schema=StructType().add("ts", TimestampType()).add("_key", StringType())),
            'a field cannot be called "_key"',
        ),
    ],
    ids=lambda value: "" if isinstance(value, WindowQuery) else str(value)[:40],
)
def test_given_a_query_that_cannot_be_when_it_is_planned_then_one_sentence_says_why(
    source: DataFrame, query: WindowQuery, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        query.answer(source)
