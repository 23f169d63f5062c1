"""Streams that Spark writes with `format("penstock")`, and what becomes of them when they are run again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from penstock.spark.markers import PARTITIONS
from penstock.spark.pipelines.settings import settings
from tests.spark.sinking import create, records, values_of
from tests.testkit import BrokerProcess, free_port

_FIRST_FILE_S = 1_700_000_000


class Stream:
    """Files of numbers, a line each, to a topic: a batch for every file."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, home: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.topic = topic
        self.files = home / "files"
        self.checkpoint = home / "checkpoint"
        self.files.mkdir()

    def add(self, *numbers: int) -> None:
        count = len(list(self.files.iterdir()))
        hidden = self.files / f".{count}"
        hidden.write_text("".join(f"{number}\n" for number in numbers))
        os.utime(hidden, (_FIRST_FILE_S + count, _FIRST_FILE_S + count))  # Spark takes the oldest one first
        hidden.rename(self.files / f"{count:03}")

    def rows(self) -> DataFrame:
        """In two tasks: odd ones and even ones."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        by_number = lines.repartitionByRange(2, lines.value.cast("int") % 2)
        return by_number.selectExpr("value", "0 as partition")

    def run(self, rows: DataFrame | None = None, mode: str = "append", /, **options: Any) -> list[dict[str, Any]]:
        """Until everything that is there has been written. Gives the progress of each batch."""
        writer = (self.rows() if rows is None else rows).writeStream.format("penstock").outputMode(mode)
        writer = writer.options(
            **{"kafka.bootstrap.servers": self.broker.bootstrap, "topic": self.topic, **options},
            checkpointLocation=str(self.checkpoint),
        )
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [dict(progress) for progress in query.recentProgress]

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died between the commit of the tasks and its own."""
        for path in (self.checkpoint / "commits").glob(f"*{batch_id}*"):
            path.unlink()

    def written(self) -> list[int]:
        return [int(value or b"") for value in values_of(self.broker.bootstrap, self.topic)]


@pytest.fixture
def stream(spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Stream:
    create(broker.address, topic_name)
    return Stream(spark, broker, topic_name, tmp_path)


def test_given_a_driver_that_dies_before_its_own_commit_when_the_query_goes_on_then_nothing_is_written_twice(
    stream: Stream,
) -> None:
    stream.add(1, 2, 3)
    stream.add(4, 5, 6)
    stream.run()
    assert sorted(stream.written()) == [1, 2, 3, 4, 5, 6]
    stream.forget_commit(1)

    stream.add(7, 8)
    batches = stream.run()

    assert sorted(stream.written()) == list(range(1, 9))
    assert [batch["batchId"] for batch in batches] == [1, 2]


def test_given_a_batch_that_one_task_has_written_when_it_is_run_again_then_only_the_rest_is_written(
    stream: Stream,
) -> None:
    stream.add(1, 2, 3, 4)
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        stream.run(breaking(stream, stream.rows(), remainder=1))
    assert stream.written() == [2, 4]

    stream.run()

    assert sorted(stream.written()) == [1, 2, 3, 4]


def test_given_a_batch_that_one_task_has_written_when_it_is_run_again_with_fewer_tasks_then_it_fails_and_says_so(
    stream: Stream,
) -> None:
    """The one that is left has not been there before, and what the other has left is nobody's any more."""
    stream.add(1, 2, 3, 4)
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        stream.run(breaking(stream, stream.rows(), remainder=0))
    assert stream.written() == [1, 3]

    for _ in range(2):
        with pytest.raises(StreamingQueryException) as refused:
            stream.run(stream.rows().coalesce(1))

        assert "batch 0 was written before, by other tasks: 2 rows of task 1 are there" in str(refused.value)
        assert "spark.sql.adaptive.streaming.stateless.enabled=false" in str(refused.value)


def breaking(stream: Stream, rows: DataFrame, remainder: int) -> DataFrame:
    """Odd ones or even ones fail as soon as the task of the others is done."""
    bootstrap, topic = stream.broker.bootstrap, stream.topic

    @udf("string")
    def broken(value: str) -> str:
        import time
        from contextlib import closing

        from penstock.core.ids import TopicPartition
        from penstock.wire.cluster import Cluster
        from penstock.wire.offsets import latest
        from penstock.wire.settings import ClientSettings

        if int(value) % 2 != remainder:
            return value
        with closing(Cluster(ClientSettings.parse({"bootstrap.servers": bootstrap}))) as cluster:
            deadline = time.monotonic() + 60
            while not latest(cluster, [TopicPartition(topic, 0)])[TopicPartition(topic, 0)]:
                assert time.monotonic() < deadline
        raise ZeroDivisionError(value)

    return rows.withColumn("value", broken("value"))


def test_given_a_session_of_ours_when_a_stream_has_a_shuffle_then_its_tasks_do_not_follow_from_the_cores(
    stream: Stream, spark: SparkSession
) -> None:
    """Spark would put small ones together, as many as there are cores for."""
    stream.add(*range(20))

    with settings(spark, {"spark.sql.shuffle.partitions": "5"}):
        stream.run(stream.rows().repartition("value"), markerTopic=f"markers-of-{stream.topic}")

    keys = [
        record.key
        for partition in range(PARTITIONS)
        for record in records(stream.broker.bootstrap, f"markers-of-{stream.topic}", partition)
    ]
    assert len(keys) == 5


def test_given_a_query_that_gives_other_rows_each_time_when_a_batch_is_run_again_then_it_fails_and_says_so(
    stream: Stream,
) -> None:
    stream.add(1, 2)
    rows = stream.rows().selectExpr("value", "partition", "uuid() as key")
    stream.run(rows)
    stream.forget_commit(0)

    with pytest.raises(StreamingQueryException) as refused:
        stream.run(rows)

    assert "of batch 0 was written before, with other rows" in str(refused.value)
    assert "exactlyOnce=false" in str(refused.value)
    assert sorted(stream.written()) == [1, 2]
    stream.run(rows, exactlyOnce="false")
    assert sorted(stream.written()) == [1, 1, 2, 2]


def test_given_a_checkpoint_older_than_the_output_when_the_query_goes_on_then_it_fails_and_says_so(
    stream: Stream, tmp_path: Path
) -> None:
    stream.add(1)
    stream.run()
    shutil.copytree(stream.checkpoint, tmp_path / "backup")
    stream.add(3)
    stream.add(5)
    stream.run()

    shutil.rmtree(stream.checkpoint)
    (tmp_path / "backup").rename(stream.checkpoint)
    with pytest.raises(StreamingQueryException, match="of batch 1 comes before batch 2"):
        stream.run()

    assert stream.written() == [1, 3, 5]


def test_given_an_aggregate_when_it_is_written_in_complete_mode_then_every_batch_adds_what_it_says(
    stream: Stream,
) -> None:
    stream.add(1, 2)
    stream.add(3)
    counts = stream.rows().groupBy().count().selectExpr("cast(count as string) as value")

    stream.run(counts, "complete")

    assert stream.written() == [2, 3]


def test_given_at_least_once_when_a_batch_is_run_again_then_its_rows_come_again_and_no_marker_is_written(
    stream: Stream,
) -> None:
    stream.add(1, 2)
    markers = f"markers-of-{stream.topic}"
    stream.run(exactlyOnce="false", markerTopic=markers)
    stream.forget_commit(0)

    stream.run(exactlyOnce="false", markerTopic=markers)

    assert sorted(stream.written()) == [1, 1, 2, 2]
    with pytest.raises(Exception, match="no topic"):
        records(stream.broker.bootstrap, markers)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exactlyOnec": "true"}, "did you mean exactlyOnce?"),
        ({"writeId": "x"}, "a stream is known by its checkpoint"),
        ({"topic": "there-is-no-such"}, 'no topic "there-is-no-such"'),
    ],
)
def test_given_options_that_cannot_be_when_a_stream_begins_then_one_sentence_says_why(
    stream: Stream, options: dict[str, str], words: str
) -> None:
    stream.add(1)

    with pytest.raises(StreamingQueryException) as refused:
        stream.run(**options)

    assert words in str(refused.value)
    assert stream.written() == []


def test_given_an_address_where_nobody_answers_when_a_stream_begins_then_it_is_named(stream: Stream) -> None:
    stream.add(1)
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(StreamingQueryException, match=address):
        stream.run(**{"kafka.bootstrap.servers": address, "kafka.default.api.timeout.ms": "500"})
