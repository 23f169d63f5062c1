"""A table does not rest on the checkpoint that its changelog is read with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.materialize import materialize, plan_materialize, read_table
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess


def test_given_a_checkpoint_older_than_the_table_when_it_goes_on_in_many_batches_then_nothing_is_applied_again(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)

    def rows(checkpoint: str) -> int:
        return materialize(
            spark,
            bootstrap=broker.bootstrap,
            topic=topic_name,
            to=str(tmp_path / "table"),
            buckets=1,
            checkpoint=str(tmp_path / checkpoint),
            max_per_batch=2,
        ).rows

    fill(broker.bootstrap, topic_name, [Given("1", "a"), Given("1", "b")])
    assert rows("old") == 2
    fill(broker.bootstrap, topic_name, [Given("2", "c"), Given("2", "a"), Given(None, "c"), Given(None, "b")])
    assert rows("new") == 4

    assert rows("old") == 0  # a deleted key, for one, would be back until the batch that deletes it
    assert [row["_key"] for row in read_table(spark, str(tmp_path / "table")).collect()] == ["a"]


def test_given_a_table_from_a_backup_when_its_checkpoint_is_newer_then_it_is_refused_if_changes_are_between(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    """A message of Debezium's is read and changes nothing: a table that ends before it has everything."""
    create(broker.bootstrap, topic_name)
    table, backup = tmp_path / "table", tmp_path / "backup"
    how: dict[str, Any] = {"bootstrap": broker.bootstrap, "topic": topic_name, "to": str(table)}
    how |= {"buckets": 1, "envelope": "debezium", "checkpoint": str(tmp_path / "checkpoint")}
    fill(broker.bootstrap, topic_name, [Given('{"op": "c", "after": "1"}', "a"), Given('{"op": "m"}', "a")])
    materialize(spark, **how)
    (table / "_penstock" / "read.json").unlink()
    shutil.copytree(table, backup)
    plan_materialize(spark, **how)

    fill(broker.bootstrap, topic_name, [Given('{"op": "u", "after": "2"}', "a")])
    materialize(spark, **how)
    shutil.rmtree(table)
    backup.rename(table)

    with pytest.raises(PipelineError, match=r"the table in .* is behind its checkpoint .* up to offset 3 .* up to 1,"):
        plan_materialize(spark, **how)
