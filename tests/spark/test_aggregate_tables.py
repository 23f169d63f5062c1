"""The table that windows are added to, batch by batch: each once, and none is taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines import table_home
from penstock.spark.pipelines.checkpoints import Batch
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.result_table import ResultTable, check_reached, open_result_table

SCHEMA = "window_start TIMESTAMP, service STRING, average DOUBLE"


def a_table(spark: SparkSession, directory: Path) -> ResultTable:
    """As a run opens it that goes on with what is there."""
    files = Files(spark)
    home = table_home.made(files, table_home.planned(files, str(directory), "aggregate", "windows"))
    return open_result_table(spark, home, windows(spark).schema, ("window_start", "service"), {})


def windows(spark: SparkSession, *rows: tuple[int, float]) -> DataFrame:
    """Of these minutes."""
    given = spark.createDataFrame([*rows], "minute INT, average DOUBLE")
    return given.selectExpr("timestamp_seconds(60 * minute) AS window_start", "'web' AS service", "average")


def minutes_in(table: ResultTable) -> list[int]:
    paths = [task.file.file_path for task in table.table.refresh().scan().plan_files()]
    found = table.spark.read.parquet(*paths).selectExpr("int(unix_seconds(window_start) / 60)").collect()
    return sorted(row[0] for row in found)


def test_given_a_checkpoint_older_than_the_table_when_a_batch_has_an_earlier_number_then_it_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches are numbered by the checkpoint: its next one has a number that other windows were given."""
    table = a_table(spark, tmp_path)
    table.add(windows(spark, (1, 0.5)), "query", 3)
    table.add(windows(spark, (2, 0.5)), "query", 5)

    with pytest.raises(PipelineError, match=r"checkpoint is older than the table .* batch 4 is to be added, .* 5 is"):
        a_table(spark, tmp_path).add(windows(spark, (3, 0.5)), "query", 4)

    assert minutes_in(table) == [1, 2]


def test_given_the_last_batch_when_it_is_done_again_then_it_is_there_unless_it_has_other_windows(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = a_table(spark, tmp_path)
    assert table.add(windows(spark, (1, 0.30000000000000004), (2, 1.0)), "query", 3) == 2

    assert a_table(spark, tmp_path).add(windows(spark, (2, 1.0), (1, 0.3)), "query", 3) == 0
    for others in ([(1, 0.3)], [(1, 0.3), (3, 1.0)], []):
        with pytest.raises(PipelineError, match=r"checkpoint is older than the table .* batch 3 is there with other"):
            a_table(spark, tmp_path).add(windows(spark, *others), "query", 3)

    assert minutes_in(table) == [1, 2]


def test_given_a_table_older_than_its_checkpoint_when_it_is_looked_at_then_it_is_refused_and_batches_without_rows_count(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, none = a_table(spark, tmp_path), windows(spark)
    behind = r"is behind its checkpoint /ck, as one from a backup is: {}, and batch {} is done"
    check_reached(None, Batch("query", -1), "/ck")
    check_reached(table.table, Batch("query", -1), "/ck")
    for missing in (None, table.table):
        with pytest.raises(PipelineError, match=behind.format("no batch is in it", 0)):
            check_reached(missing, Batch("query", 0), "/ck")

    table.add(none, "query", 0)
    check_reached(table.table, None, "/ck")  # a new query may begin: there is nothing yet
    table.add(windows(spark, (1, 0.5)), "query", 1)
    table.add(none, "query", 2)

    there = a_table(spark, tmp_path).table
    check_reached(there, Batch("query", 2), "/ck")
    with pytest.raises(PipelineError, match=behind.format("batch 2 is the last one in it", 3)):
        check_reached(there, Batch("query", 3), "/ck")
    for other in (None, Batch("another", 2)):
        with pytest.raises(PipelineError, match="was written with another checkpoint"):
            check_reached(there, other, "/ck")
