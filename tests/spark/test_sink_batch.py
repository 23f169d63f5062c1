"""Batches that Spark writes with `format("penstock")`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.sink_options import DEFAULT_MARKER_TOPIC, Kind
from tests.spark.sinking import create, records, sink_options, values, values_of, written
from tests.testkit import BrokerProcess, free_port


@pytest.fixture
def topic(broker: BrokerProcess, topic_name: str) -> str:
    create(broker.address, topic_name, partitions=2, retention_ms=-1)
    return topic_name


def write(rows: DataFrame, broker: BrokerProcess, mode: str = "append", **options: Any) -> None:
    writer = rows.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.options(**options).mode(mode).save()


def numbers(spark: SparkSession, count: int = 20) -> DataFrame:
    """Two tasks, and every row for the first partition."""
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) as value", "0 as partition")


def sorted_values(broker: BrokerProcess, topic: str) -> list[int]:
    return sorted(int(value or b"") for value in values_of(broker.bootstrap, topic))


def test_given_all_columns_when_a_batch_is_written_then_records_have_them(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    rows = spark.sql(
        f"""
        select '{topic}' as topic, 1 as partition, 'k' as key, cast('v' as binary) as value,
               array(struct('h' as key, cast('x' as binary) as value)) as headers,
               timestamp '2024-05-06 07:08:09.123456 UTC' as timestamp
        union all
        select '{topic}', 1, null, null, null, timestamp '2024-05-06 07:08:10 UTC'
        """
    )

    write(rows, broker)

    found = sorted(records(broker.bootstrap, topic, 1), key=lambda record: record.timestamp)
    assert [tuple(record[1:]) for record in found] == [
        (1714979289123, b"k", b"v", [("h", b"x")]),
        (1714979290000, None, None, []),
    ]


@pytest.mark.parametrize("exactly_once", ["true", "false"])
def test_given_a_batch_of_several_tasks_when_it_is_written_then_every_row_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topic: str, exactly_once: str
) -> None:
    write(numbers(spark), broker, topic=topic, exactlyOnce=exactly_once)

    assert sorted_values(broker, topic) == list(range(20))


def test_given_a_batch_without_a_name_when_an_attempt_of_a_task_comes_after_its_end_then_nothing_is_written_twice(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    """A speculative one, for example. That is what its markers are left for: the driver does not take them away."""
    markers = f"markers-of-{topic}"
    write(numbers(spark), broker, topic=topic, exactlyOnce="true", markerTopic=markers)
    keys = [record.key for partition in range(16) for record in records(broker.bootstrap, markers, partition)]
    (writer,) = {json.loads(key or b"")["query"] for key in keys}
    sink = sink_options(broker.bootstrap, Kind.BATCH, topic=topic, exactlyOnce=True, markerTopic=markers)

    late = written(sink, writer, 0, 0, values(*(b"%d" % number for number in range(10))))

    assert late.was_there
    assert sorted_values(broker, topic) == list(range(20))


def test_given_a_batch_with_a_name_when_it_is_written_again_then_nothing_is_added_unless_it_has_another_name(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    write(numbers(spark), broker, topic=topic, writeId=f"{topic}-1")
    write(numbers(spark), broker, topic=topic, writeId=f"{topic}-1")
    assert sorted_values(broker, topic) == list(range(20))

    write(numbers(spark), broker, topic=topic, writeId=f"{topic}-2")

    assert sorted_values(broker, topic) == sorted([*range(20), *range(20)])


def test_given_a_batch_with_a_name_when_its_rows_have_changed_then_it_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    write(numbers(spark), broker, topic=topic, writeId=topic)

    with pytest.raises(PySparkException, match=r"same rows twice.*another writeId"):
        write(numbers(spark, 22), broker, topic=topic, writeId=topic)

    assert sorted_values(broker, topic) == list(range(20))


@pytest.mark.parametrize(
    ("options", "columns", "mode", "words"),
    [
        ({"topik": "x"}, "value", "append", "BadOption: option topik is not one of a sink: did you mean topic?"),
        ({"topic": "there-is-no-such"}, "value", "append", 'UnknownTopic: no topic "there-is-no-such"'),
        ({"topic": "not a name"}, "value", "append", '"not a name": INVALID_TOPIC_EXCEPTION'),
        ({}, "value", "append", "BadColumns: no topic: give option topic, or a column topic"),
        ({"topic": "x"}, "value, 1 as offset", "append", 'BadColumns: a record has no column "offset"'),
        ({"topic": "x"}, "value", "overwrite", "a topic cannot be overwritten"),
        ({"topic": "x", "kafka.compression.type": "rar"}, "value", "append", "option kafka.compression.type"),
    ],
)
def test_given_what_cannot_be_written_when_it_is_tried_then_one_sentence_comes_before_any_row_moves(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], columns: str, mode: str, words: str
) -> None:
    rows = spark.sql("select cast(raise_error('moved') as string) as value").selectExpr(*columns.split(", "))

    with pytest.raises(AnalysisException) as refused:
        write(rows, broker, mode, **options)

    assert words in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_given_an_address_where_nobody_answers_when_a_batch_is_written_then_it_is_named(
    spark: SparkSession, topic_name: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    writer = numbers(spark).write.format("penstock").option("kafka.bootstrap.servers", address)

    with pytest.raises(AnalysisException, match=rf"Unreachable: .*{address}"):
        writer.option("topic", topic_name).mode("append").save()


def test_given_a_row_without_a_topic_when_it_is_written_then_the_task_says_so(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    rows = spark.sql(f"select '{topic}' as topic, '1' as value union all select null, '2'")

    with pytest.raises(PySparkException, match="BadRow: a row has no topic"):
        write(rows, broker, exactlyOnce="true")


def test_given_the_topic_of_markers_when_nothing_was_said_then_it_has_its_name(
    spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    write(numbers(spark), broker, topic=topic, writeId=topic)

    keys = [
        record.key for partition in range(16) for record in records(broker.bootstrap, DEFAULT_MARKER_TOPIC, partition)
    ]
    assert f'{{"query":"{topic}","task":1}}'.encode() in keys
