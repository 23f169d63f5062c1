"""The frame of all pipelines: a query that is run, watched and stopped; files on Hadoop's file systems; checkpoints."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines import checkpoints
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.running import Running, run

ROWS = 40


def test_given_a_query_of_what_is_there_when_it_runs_then_rows_and_batches_are_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = a_stream_of_files(spark, tmp_path, files=4)

    ended = run(
        stream.writeStream.format("noop").outputMode("append"), Running("counting", str(tmp_path / "checkpoint"))
    )

    assert (ended.rows, ended.batches, ended.was_stopped) == (4 * ROWS, 4, False)


def test_given_a_query_that_follows_when_it_is_told_to_stop_then_the_batch_that_runs_is_finished(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = a_stream_of_files(spark, tmp_path, files=3)
    finished: list[int] = []

    def slow(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            told.wait(60)
        finished.append(batch.count())

    told = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(0.5, told.set).start()  # the batch goes on while the request is seen
    ended = run(stream.writeStream.foreachBatch(slow), Running("stopping", str(tmp_path / "checkpoint"), follow=True))

    assert ended.was_stopped
    assert ended.batches == 2 and finished[:2] == [ROWS, ROWS]
    assert signal.getsignal(signal.SIGTERM) is before


def test_given_a_query_that_fails_when_it_runs_then_the_error_is_the_one_sentence_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    def failing(batch: DataFrame, batch_id: int) -> None:
        raise PipelineError("the table has another schema")

    stream = a_stream_of_files(spark, tmp_path, files=1)
    with pytest.raises(PipelineError, match=r"^failing: the table has another schema$"):
        run(stream.writeStream.foreachBatch(failing), Running("failing", str(tmp_path / "checkpoint")))


def test_given_a_file_that_is_there_when_it_is_created_again_then_the_first_one_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, path = Files(spark), f"file://{tmp_path}/a directory/marker.json"

    outcomes = [files.create(path, "first"), files.create(path, "second")]

    assert outcomes == [True, False]
    assert files.read(path) == "first"
    files.write(path, "third")
    assert files.read(path) == "third"
    assert [entry.name for entry in files.list(f"{tmp_path}/a directory") if not entry.name.endswith(".crc")] == [
        "marker.json"
    ]


def test_given_a_file_system_that_refuses_the_rename_when_a_file_is_created_then_nobody_is_said_to_be_first(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop's ViewFs does not rename from one of its mounts to another, which here is the file itself."""
    configuration, mounts = spark._jsc.hadoopConfiguration(), f"fs.viewfs.mounttable.{tmp_path.name}"
    (tmp_path / "directory").mkdir()
    configuration.set(f"{mounts}.linkFallback", f"file://{tmp_path}/directory")
    configuration.set(f"{mounts}.link./marker.json", f"file://{tmp_path}/elsewhere/marker.json")
    files, root = Files(spark), f"viewfs://{tmp_path.name}"

    with pytest.raises(
        PipelineError, match=r"marker\.json cannot be made: .*Renames across Mount points not supported$"
    ):
        files.create(f"{root}/marker.json", "lost")

    assert not list((tmp_path / "directory").iterdir())
    assert [files.create(f"{root}/other.json", text) for text in ("first", "second")] == [True, False]
    assert files.read(f"{root}/other.json") == "first"


class Swept(Files):
    """Somebody empties the directory as soon as a file is made."""

    def create(self, path: str, text: str) -> bool:
        created = super().create(path, text)
        self.delete(path)
        return created


def test_given_a_marker_that_vanishes_when_a_checkpoint_is_claimed_then_it_is_not_ours(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=r"checkpoint cannot be claimed: .* is gone"):
        checkpoints.claim(Swept(spark), str(tmp_path / "checkpoint"), {"pipeline": "archive"})


def test_given_a_checkpoint_of_one_query_when_another_claims_it_then_it_is_refused_by_what_differs(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, checkpoint = Files(spark), str(tmp_path / "checkpoint")
    checkpoints.claim(files, checkpoint, {"pipeline": "archive", "to": "/a"})

    checkpoints.claim(files, checkpoint, {"pipeline": "archive", "to": "/a"})
    with pytest.raises(PipelineError, match=r"of another query: its to is /a, not /b"):
        checkpoints.claim(files, checkpoint, {"pipeline": "archive", "to": "/b"})
    with pytest.raises(PipelineError, match=r"of another query: its where is None, not true"):
        checkpoints.check(files, checkpoint, {"pipeline": "archive", "where": "true"})
    assert checkpoints.check(files, checkpoint, {"pipeline": "archive", "where": "true"}, newer=["where"])
    with pytest.raises(PipelineError, match=r"of another query: its to is /a, not /b"):
        checkpoints.check(files, checkpoint, {"to": "/b"}, newer=["to"])


def test_given_a_directory_with_other_files_when_it_is_to_be_a_checkpoint_then_it_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("Dear")

    with pytest.raises(PipelineError, match="is not a checkpoint of a pipeline"):
        checkpoints.check(Files(spark), str(tmp_path / "letters"), {"pipeline": "archive"})


def a_stream_of_files(spark: SparkSession, home: Path, files: int) -> DataFrame:
    """Each file is a batch."""
    source = str(home / "source")
    for _ in range(files):
        spark.range(ROWS).coalesce(1).write.mode("append").parquet(source)
    return spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(source)
