"""Records of times that nobody meant, which producers write all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from tests.spark.archiving import archived_to, rows_in
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess

NOW_MS = 1_767_225_600_000
LAST_DAY_MS = 253_402_300_799_000
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


def test_given_microseconds_in_place_of_milliseconds_when_archived_then_parquet_has_them_and_iceberg_says_which(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, config=ANY_TIME)
    fill(broker.bootstrap, topic_name, [Given("a", timestamp_ms=NOW_MS), Given("b", timestamp_ms=LAST_DAY_MS)])

    for format in ("iceberg", "parquet"):
        archived_to(spark, broker.bootstrap, topic_name, tmp_path / format, format=format)
    fill(broker.bootstrap, topic_name, [Given("c", timestamp_ms=NOW_MS * 1_000)])
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "parquet", format="parquet")
    with pytest.raises(PipelineError, match=rf"\+57971.* cannot be in an Iceberg table.*{topic_name}-0 offsets 2 to 2"):
        archived_to(spark, broker.bootstrap, topic_name, tmp_path / "iceberg", format="iceberg")

    assert [row.timestamp_ms for row in rows_in(spark, tmp_path / "parquet")] == [NOW_MS, LAST_DAY_MS, NOW_MS * 1_000]
    assert [row.timestamp_ms for row in rows_in(spark, tmp_path / "iceberg")] == [NOW_MS, LAST_DAY_MS]
