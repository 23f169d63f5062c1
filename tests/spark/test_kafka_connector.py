"""Spark's own Kafka connector, which nobody here wrote, against our broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.testkit import BrokerProcess
from tests.testkit.java import require_jars

ROWS = 500


@pytest.fixture(autouse=True)
def _jars() -> None:
    require_jars("spark")


def _read(spark: SparkSession, broker: BrokerProcess, topic: str, form: str = "kafka") -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    return spark.read.format(form).options(**options).load()


def _write(spark: SparkSession, broker: BrokerProcess, topic: str, form: str = "kafka") -> None:
    rows = spark.range(ROWS).selectExpr("cast(id as string) as key", "concat('value-', id) as value")
    options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
    rows.write.format(form).mode("append").options(**options).save()


def test_given_a_batch_written_by_sparks_connector_when_both_read_it_then_they_agree_on_rows_and_schema(
    spark: SparkSession, broker: BrokerProcess, topic_name: str
) -> None:
    _write(spark, broker, topic_name)

    theirs, ours = (_read(spark, broker, topic_name, form) for form in ("kafka", "penstock"))

    assert ours.schema == theirs.schema
    assert theirs.count() == ROWS
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, theirs.collect()))


def test_given_a_batch_written_by_our_sink_when_sparks_connector_reads_it_then_keys_are_where_java_puts_them(
    spark: SparkSession, broker: BrokerProcess, topic_name: str
) -> None:
    _write(spark, broker, topic_name)
    _write(spark, broker, topic_name, "penstock")

    partitions_by_key = (
        _read(spark, broker, topic_name).groupBy("key").agg({"partition": "collect_set", "offset": "count"}).collect()
    )

    assert len(partitions_by_key) == ROWS
    assert all(len(row["collect_set(partition)"]) == 1 and row["count(offset)"] == 2 for row in partitions_by_key)


def test_given_a_stream_from_topic_to_topic_by_sparks_connector_when_it_has_read_all_then_the_copy_is_whole(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    copied = f"{topic_name}-copy"
    _write(spark, broker, topic_name)
    options = {"kafka.bootstrap.servers": broker.bootstrap}

    stream = (
        spark.readStream.format("kafka").options(**options, subscribe=topic_name, startingOffsets="earliest").load()
    )
    target = stream.writeStream.format("kafka").options(**options, topic=copied, checkpointLocation=str(tmp_path))
    target.trigger(availableNow=True).start().awaitTermination()

    original, copy = (
        sorted(map(tuple, _read(spark, broker, topic).select("key", "value").collect()))
        for topic in (topic_name, copied)
    )
    assert len(copy) == ROWS
    assert copy == original
