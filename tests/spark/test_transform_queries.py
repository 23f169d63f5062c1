"""What may be asked of a topic's records, and what is kept when the question does not say it. No broker is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.plan_checks import check_order, check_repeatable
from penstock.spark.pipelines.queries import FunctionQuery, Query, SqlQuery
from penstock.spark.pipelines.topic_target import TopicTarget
from penstock.spark.pipelines.topics import Brokers

KEPT = ("key", "value", "partition", "headers", "timestamp")


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    return (
        spark.readStream.format("rate")
        .load()
        .selectExpr(
            "CAST(value AS STRING) AS key",
            "CAST(value AS STRING) AS value",
            "1 AS partition",
            "value AS offset",
            "timestamp",
            "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
            "named_struct('n', value) AS json",
        )
    )


def planned(query: Query, records: DataFrame, to: str | None = "target") -> list[str]:
    """The columns that would be written."""
    answer = query.result(records, KEPT)
    check_order(answer, str(query))
    check_repeatable(answer, str(query))
    return TopicTarget(Brokers("nowhere:1"), to, True).rows(answer, str(query)).columns


@pytest.mark.parametrize(
    "text",
    [
        "SELECT upper(value) AS value FROM input",
        "select value\nfrom input\nwhere offset > 3 -- and a comment, with key",
        "SELECT 'a \U0001f71a, FROM x' AS value FROM input i WHERE i.key IS NOT NULL",
        "SELECT * FROM input",
        "SELECT * EXCEPT (value), upper(value) AS value FROM input",
        "SELECT explode(split(value, ' ')) AS value FROM input",
        "SELECT word AS value FROM input LATERAL VIEW explode(split(value, ' ')) AS word",
        "WITH some AS (SELECT * FROM input WHERE offset % 2 = 0) SELECT concat(key, value) AS value FROM some",
        "SELECT value FROM (SELECT * EXCEPT (value), lower(value) AS value FROM input)",
        "FROM input |> SELECT value",
        "FROM input |> WHERE offset > 3 |> SET value = upper(value)",
        "SELECT to_json(json) AS value, CAST(current_timestamp() AS STRING) AS key FROM input",
        "SELECT CAST(localtimestamp() AS STRING) AS value, CAST(current_date() AS STRING) AS key FROM input",
    ],
)
def test_given_sql_when_it_leaves_columns_out_then_they_are_kept(records: DataFrame, text: str) -> None:
    assert sorted(planned(SqlQuery(text), records)) == sorted([*KEPT, "topic"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEC value", "the SQL is not understood: .*[Ss]yntax error at or near 'SELEC'"),
        ("", "the SQL is not understood"),
        ("SELECT nothing FROM input", "the SQL is not understood: .*`nothing`"),
        ("SELECT value FROM other", "the SQL is not understood: .*`other` cannot be found"),
        ("SELECT json.m AS value FROM input", "the SQL is not understood: .*`m`"),
        ("SELECT 'x' AS value", "the SQL reads nothing of the topic"),
        ("SELECT value FROM (SELECT value FROM input)", "does not hand on key, partition, headers, timestamp"),
        ("SELECT value AS v FROM input", 'the SQL: a record has no column "v"'),
        ("SELECT *, upper(value) AS value FROM input", r"gives value 2 times: SELECT \* EXCEPT"),
        ("SELECT offset AS value FROM input", 'column "value" is bigint, and must be string or binary'),
        ("SELECT value, 'x' AS topic FROM input", "gives a topic, and --to does"),
        ("SELECT CAST(count(*) AS STRING) AS value FROM input GROUP BY key", "the SQL groups rows: a transform keeps"),
        ("SELECT value FROM input ORDER BY value", "the SQL sorts: a transform keeps the order"),
        ("FROM input |> SELECT value |> WHERE value > 'x'", "no plain SELECT, and has no key"),
        ("SELECT key, value, partition, headers, timestamp FROM input GROUP BY ALL", "groups rows: a transform keeps"),
        ("SELECT * FROM input ORDER BY key", "the SQL sorts: a transform keeps the order"),
        ("SELECT DISTINCT * FROM input", "drops duplicates"),
        ("SELECT * FROM input LIMIT 5", "counts rows"),
        ("SELECT a.* FROM input a JOIN input b ON a.key = b.key", "joins"),
        ("SELECT * FROM input UNION ALL SELECT * FROM input", "reads its input several times"),
        ("SELECT *, lag(value) OVER (ORDER BY offset) AS v FROM input", "compares rows with others"),
        ("SELECT * FROM input WHERE key IN (SELECT 'a' AS key)", "has a subquery"),
        ("SELECT /*+ REPARTITION(3) */ * FROM input", "moves rows to other partitions"),
        ("SELECT key, value, partition, headers, timestamp FROM range(3), VALUES ('a', 'b') AS (key, value)", "."),
        ("SELECT concat(value, uuid()) AS value FROM input", r"not repeatable: uuid\(\) gives another result"),
        ("SELECT * FROM input WHERE rand() < 0.5", r"not repeatable: rand\(\)"),
        ("SELECT CAST(now() AS STRING) AS value FROM input", r"not repeatable: now\(\) .*current_timestamp\(\)"),
        ("SELECT CAST(current_time() AS STRING) AS value FROM input", r"not repeatable: current_time"),
        ("SELECT CAST(monotonically_increasing_id() AS STRING) AS value FROM input", "not repeatable: monotonically"),
        ("DROP VIEW input", "the SQL is an order, not a SELECT"),
        ("CREATE TABLE t AS SELECT 1", "the SQL is an order"),
        ("INSERT INTO t SELECT 1", "the SQL is an order"),
        ("SET a = b", "the SQL is an order"),
        ("BEGIN SELECT * FROM input; END", "the SQL is an order"),
    ],
)
def test_given_sql_that_cannot_be_when_it_is_planned_then_one_sentence_says_why(
    records: DataFrame, text: str, said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        planned(SqlQuery(text), records)


def test_given_no_target_when_sql_names_no_topic_then_it_is_refused(records: DataFrame) -> None:
    with pytest.raises(PipelineError, match="gives no topic"):
        planned(SqlQuery("SELECT * FROM input"), records, to=None)

    assert "topic" in planned(SqlQuery("SELECT *, concat('to-', key) AS topic FROM input"), records, to=None)


def test_given_a_view_called_input_when_sql_is_asked_then_it_is_left_alone(
    spark: SparkSession, records: DataFrame
) -> None:
    spark.range(3).createTempView("input")
    try:
        with pytest.raises(PipelineError, match="has a view input already"):
            planned(SqlQuery("SELECT * FROM input"), records)
        assert spark.table("input").count() == 3
    finally:
        spark.catalog.dropTempView("input")
    planned(SqlQuery("SELECT * FROM input"), records)
    assert not spark.catalog.listTables()


def noted(records: DataFrame) -> DataFrame:
    return records.withColumn("value", F.concat("value", F.lit("!")))


def test_given_a_function_by_name_when_it_is_planned_then_it_is_found(records: DataFrame) -> None:
    query = FunctionQuery.named(f"{__name__}:noted")

    assert str(query) == f"the function {__name__}:noted"
    assert "topic" in planned(query, records)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_function", 'takes MODULE:FUNCTION, not "no_function"'),
        (":f", "takes MODULE:FUNCTION"),
        ("no_such_module:f", "no_such_module cannot be imported: ModuleNotFoundError"),
        (f"{json.__name__}:nothing", "the module json has no function nothing"),
    ],
)
def test_given_a_name_of_no_function_when_it_is_looked_up_then_one_sentence_says_why(name: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        FunctionQuery.named(name)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda records: records.select("value"), "drops key, partition, headers, timestamp of the records"),
        (lambda records: records.select("nothing"), "not understood by Spark: .*`nothing`"),
        (lambda records: 1 / 0, "fails: ZeroDivisionError: division by zero"),
        (lambda records: SimpleNamespace(), "gives SimpleNamespace, not a DataFrame"),
        (lambda records: records.dropDuplicates(["key"]), "drops duplicates"),
        (lambda records: records.repartition(3), "moves rows to other partitions"),
        (lambda records: records.withColumn("value", F.uuid()), "not repeatable: uuid"),
        (
            lambda records: records.withColumn("value", F.udf(str.upper).asNondeterministic()("value")),
            "not repeatable: upper",
        ),
        (lambda records: records.sparkSession.range(3), "drops key"),
    ],
)
def test_given_a_function_that_cannot_be_when_it_is_planned_then_one_sentence_says_why(
    records: DataFrame, function: Callable[[DataFrame], Any], said: str
) -> None:
    with pytest.raises(PipelineError, match=said):
        planned(FunctionQuery(function, "shout"), records)
