"""A table does not rest on the checkpoint that its changelog is read with."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.pipelines.materialize import materialize, read_table
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
