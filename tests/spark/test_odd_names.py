"""Directories whose names mean something else to Spark, to Hadoop or to pyiceberg."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.materialize import materialize
from penstock.spark.pipelines.merging import FileSizes
from penstock.spark.pipelines.table_home import read_table
from tests.spark.archiving import FORMATS, archived_to, as_rows, rows_in, some_records
from tests.spark.piping import create, fill
from tests.testkit import BrokerProcess

PATTERNS = "old [1] {2,3} *"


@pytest.mark.parametrize("format", FORMATS)
def test_given_a_directory_called_like_a_pattern_when_archived_to_and_merged_then_it_is_read(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path, format: str
) -> None:
    records = some_records(20, days=1)
    create(broker.bootstrap, topic_name, partitions=2)
    fill(broker.bootstrap, topic_name, records)

    archived_to(
        spark,
        broker.bootstrap,
        topic_name,
        tmp_path / PATTERNS,
        format=format,
        max_per_batch=5,
        sizes=FileSizes(small_files=2),
    )

    assert rows_in(spark, tmp_path / PATTERNS) == as_rows(records)


def test_given_a_directory_called_like_a_pattern_when_materialized_in_batches_then_the_table_is_read(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    records = some_records(20, days=1)
    create(broker.bootstrap, topic_name, partitions=2)
    fill(broker.bootstrap, topic_name, [record for record in records if record.key is not None])
    last = {record.key: record.value for record in records if record.key is not None}
    to = str(tmp_path / PATTERNS)

    materialize(spark, bootstrap=broker.bootstrap, topic=topic_name, to=to, max_per_batch=10, buckets=1)

    assert read_table(spark, to).count() == sum(value is not None for value in last.values())


def test_given_a_name_that_is_no_url_when_archived_to_as_iceberg_then_it_is_refused_before_anything_is_there(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)

    with pytest.raises(PipelineError, match="no Iceberg table below a name with # or"):
        archived_to(spark, broker.bootstrap, topic_name, tmp_path / "ticket #7")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["no: scheme", ":"])
def test_given_what_is_no_path_when_archived_to_then_one_sentence_says_so(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, path: str
) -> None:
    create(broker.bootstrap, topic_name)

    with pytest.raises(PipelineError, match=r"is no path: |cannot be reached: "):
        archived_to(spark, broker.bootstrap, topic_name, path, format="parquet")
