"""An archive that is older than its checkpoint, as one from a backup is: what lies between would never come to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from penstock.spark.pipelines.archive import plan_archive
from penstock.spark.pipelines.data_files import read_footer
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from tests.spark.archiving import archived_to, rows_in
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess


class Backed:
    """An archive, its checkpoint in another place, and a backup of the archive alone."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.topic = spark, bootstrap, topic
        self.home, self.backup, self.checkpoint = (directory / name for name in ("archive", "backup", "checkpoint"))

    def run(self, checkpoint: Path | None = None) -> int:
        return int(archived_to(self.spark, self.bootstrap, self.topic, self.home, **self.how(checkpoint)).rows)

    def plan(self, **others: Any) -> None:
        plan_archive(
            self.spark, bootstrap=self.bootstrap, topics=[self.topic], to=str(self.home), **self.how(), **others
        )

    def how(self, checkpoint: Path | None = None) -> dict[str, Any]:
        return {"format": "parquet", "checkpoint": str(checkpoint or self.checkpoint)}

    def back_up(self) -> None:
        shutil.copytree(self.home, self.backup)

    def restore(self) -> None:
        shutil.rmtree(self.home)
        self.backup.rename(self.home)

    def lose(self, before: int) -> None:
        """As retention does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for deleted in admin.delete_records([TopicPartition(self.topic, 0, before)]).values():
            deleted.result(20)


@pytest.fixture
def backed(spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Backed:
    create(broker.bootstrap, topic_name)
    return Backed(spark, broker.bootstrap, topic_name, tmp_path)


def test_given_an_archive_from_a_backup_when_its_checkpoint_is_newer_then_it_is_refused_until_it_has_another_one(
    backed: Backed, tmp_path: Path
) -> None:
    fill(backed.bootstrap, backed.topic, [Given("0"), Given("1")])
    backed.run()
    backed.back_up()
    fill(backed.bootstrap, backed.topic, [Given("2"), Given("3"), Given("4")])
    backed.run()
    backed.restore()
    fill(backed.bootstrap, backed.topic, [Given("5")])

    with pytest.raises(
        PipelineError, match=r"is behind its checkpoint .*-0 is read up to offset 5 and is there up to 2"
    ):
        backed.plan()
    assert backed.run(tmp_path / "another") == 4
    assert [row.offset for row in rows_in(backed.spark, backed.home)] == list(range(6))

    shutil.copytree(backed.home, tmp_path / "kept")
    shutil.rmtree(backed.home / "records" / "_penstock")  # the table is gone, what it is is there
    with pytest.raises(PipelineError, match=r"is there up to 0"):
        backed.plan()


def test_given_offsets_without_records_when_the_checkpoint_is_ahead_of_the_last_record_then_nothing_is_wrong(
    backed: Backed,
) -> None:
    """The marker of a transaction is read and is no record, and some day it is not there any more."""
    producer = Producer({"bootstrap.servers": backed.bootstrap, "transactional.id": backed.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(backed.topic, b"0", partition=0)
    producer.commit_transaction(20)
    assert backed.run() == 1
    note = backed.home / "_penstock" / "read.json"

    backed.plan()
    note.rename(note.with_suffix(".away"))  # of a run that was killed
    backed.plan()
    backed.lose(before=2)
    backed.plan()  # nobody can tell any more
    note.with_suffix(".away").rename(note)
    backed.plan()


def test_given_an_archive_from_a_backup_when_the_records_between_are_gone_then_skip_lost_passes_over_them(
    backed: Backed,
) -> None:
    fill(backed.bootstrap, backed.topic, [Given("0")])
    backed.run()
    backed.back_up()
    fill(backed.bootstrap, backed.topic, [Given("1"), Given("2")])
    backed.run()
    backed.restore()
    backed.lose(before=3)

    with pytest.raises(PipelineError, match=r"is read up to offset 3 .* up to 1, .*--skip-lost passes over"):
        backed.plan()
    backed.plan(skip_lost=True)


@pytest.mark.parametrize(("partitions", "statistics"), [([0, 1], True), ([0, 0], False)])
def test_given_a_file_that_does_not_tell_its_offsets_when_its_footer_is_read_then_it_is_refused(
    spark: SparkSession, tmp_path: Path, partitions: list[int], statistics: bool
) -> None:
    """Passed over, its records would count as not archived, and come again."""
    path = tmp_path / "0.parquet"
    table = pa.table({"topic": ["orders"] * 2, "partition": pa.array(partitions, pa.int32()), "offset": [7, 8]})
    parquet.write_table(table, path, write_statistics=statistics)

    with pytest.raises(PipelineError, match=r"does not tell which offsets it has"):
        read_footer(Files(spark), str(path), "2024-10-04")
