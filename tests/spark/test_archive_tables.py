"""Tables of an archive, without brokers: commits, merges, crashes between any two steps, and two who write at once."""

from __future__ import annotations

import json
import random
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines import archive_home, archived, iceberg_table
from penstock.spark.pipelines.archive_home import ArchiveHome
from penstock.spark.pipelines.archive_table import ArchiveTable, open_table, read_table
from penstock.spark.pipelines.data_files import write_by_day, written_files
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.merging import FileSizes
from penstock.spark.pipelines.parquet_table import open_parquet_table
from penstock.spark.pipelines.table_schema import REASON, RECORD, with_fields
from penstock.spark.pipelines.values import taken_apart, value_format
from tests.chaos.conftest import FULL, luck
from tests.spark.archiving import DAY_MS, FIRST_DAY_MS, FORMATS, visible_files

__all__ = ["luck"]  # a fixture

ROWS = 10
SIZES = FileSizes(small_files=2)
# By name: the type, what JSON has, and what the table has.
EVERY_TYPE: dict[str, tuple[str, object, object]] = {
    "flag": ("BOOLEAN", True, True),
    "tiny": ("TINYINT", -1, -1),
    "small": ("SMALLINT", 300, 300),
    "whole": ("INT", 1 << 30, 1 << 30),
    "long": ("BIGINT", 1 << 60, 1 << 60),
    "single": ("FLOAT", 1.5, 1.5),
    "double": ("DOUBLE", 0.1, 0.1),
    "price": ("DECIMAL(38, 10)", 1.5, Decimal("1.5000000000")),
    "text": ("STRING", "x", "x"),
    "bytes": ("BINARY", "aGk=", b"hi"),
    "on": ("DATE", "2026-01-31", date(2026, 1, 31)),
    "local": ("TIMESTAMP_NTZ", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
    "rest": ("ARRAY<MAP<STRING, STRUCT<`a.b`: INT>>>", [{"k": {"a.b": 1}}], [{"k": {"a.b": 1}}]),
}


@pytest.mark.parametrize("format", FORMATS)
def test_given_batches_that_are_committed_when_small_files_are_merged_then_the_table_says_the_same_in_fewer_files(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    table = a_table(spark, a_home(spark, tmp_path, format))
    for number in range(3):
        archive_batch(spark, table, number)
    files_before = len(table.files())

    table.tidy(SIZES, is_last=True)

    again = a_table(spark, a_home(spark, tmp_path, format))
    assert files_before == 6 and len(again.files()) == 2
    assert offsets_in(read_table(spark, again)) == list(range(3 * ROWS))
    assert again.archived.offsets == {TopicPartition("orders", 0): 3 * ROWS}


def test_given_an_archive_in_iceberg_when_somebody_reads_it_with_pyiceberg_then_it_is_a_table_by_day(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = a_table(spark, a_home(spark, tmp_path, "iceberg"))
    archive_batch(spark, table, 0)
    archive_batch(spark, table, 1)
    table.tidy(SIZES, is_last=True)

    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{tmp_path}/archive/catalog.db")
    theirs = catalog.load_table("penstock.records")

    assert sorted(theirs.scan().to_arrow()["offset"].to_pylist()) == list(range(2 * ROWS))
    assert [field.name for field in theirs.spec().fields] == ["day"]
    assert theirs.scan(row_filter="timestamp < '1970-01-01T00:00:00+00:00'").to_arrow().num_rows == 0


@pytest.mark.parametrize("format", FORMATS)
def test_given_every_type_that_a_schema_may_have_when_values_are_archived_then_the_table_has_them(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    files, home = Files(spark), a_home(spark, tmp_path, format)
    value = value_format(files, "json", [", ".join(f"{name} {type}" for name, (type, _, _) in EVERY_TYPE.items())])
    table = open_table(spark, home, home.table, with_fields(value.fields), {})
    assert table is not None
    written = json.dumps({name: text for name, (_, text, _) in EVERY_TYPE.items()})
    records = a_batch(spark, 0).limit(1).withColumn("value", F.lit(written.encode()))

    directory = table.attempt("0")
    write_by_day(taken_apart(records, value).drop(REASON), directory)
    found = written_files(files, directory)
    table.commit(directory, found, archived.after(table.archived, found))

    (row,) = read_table(spark, a_table(spark, home)).collect()
    assert row["fields"].asDict(recursive=True) == {name: read for name, (_, _, read) in EVERY_TYPE.items()}


@pytest.mark.parametrize("format", FORMATS)
def test_given_two_that_write_one_table_when_both_commit_then_the_second_is_refused_and_nothing_is_doubled(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    home = a_home(spark, tmp_path, format)
    one, other = a_table(spark, home), a_table(spark, home)
    other.begin()
    archive_batch(spark, other, 0)

    with pytest.raises(PipelineError, match="another query writes to the table"):
        archive_batch(spark, one, 0)

    assert offsets_in(read_table(spark, a_table(spark, home))) == list(range(ROWS))


def test_given_an_archive_on_another_file_system_when_written_then_its_metadata_is_there_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    """viewfs is one that neither Python nor Arrow knows: all goes through Hadoop's own."""
    hadoop = spark._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.store.link./data", f"file://{tmp_path}/store")
    (tmp_path / "store").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db"}
    files = Files(spark)
    home = archive_home.made(files, archive_home.planned(files, "viewfs://store/data/archive", "iceberg", "records"))
    table = open_table(spark, home, "records", RECORD, catalog)
    assert table is not None

    archive_batch(spark, table, 0)
    archive_batch(spark, table, 1)
    table.tidy(SIZES, is_last=True)

    again = open_table(spark, home, "records", None, catalog)
    assert again is not None
    assert offsets_in(read_table(spark, again)) == list(range(2 * ROWS))
    assert all(path.startswith("viewfs://store/data/archive/records/data/merged-") for path in again.files())
    with pytest.raises(PipelineError, match="name a catalog"):
        open_table(spark, home, "records", RECORD, {})


@pytest.mark.timeout(1800)
def test_given_a_parquet_table_when_its_writer_dies_between_any_two_steps_then_nothing_is_ever_seen_twice_or_lost(
    spark: SparkSession, tmp_path: Path, luck: random.Random
) -> None:
    steps = Crashing(spark, at=None)
    archived_whole(spark, steps, tmp_path / "whole")
    points = list(range(steps.count)) if FULL else sorted(luck.sample(range(steps.count), 4))

    for point in points:
        location = tmp_path / f"dies-at-{point}"
        with pytest.raises(Died):
            archived_whole(spark, Crashing(spark, at=point), location)
        seen = visible_offsets(spark, location)
        known = open_parquet_table(spark, Files(spark), f"file://{location}", None)
        kept = [] if known is None else offsets_in(read_table(spark, known))
        assert len(seen) == len(set(seen)), f"seen twice, after dying at step {point}"
        assert kept == list(range(len(kept))), f"not whole, after dying at step {point}"

        archived_whole(spark, Files(spark), location)

        assert visible_offsets(spark, location) == list(range(2 * ROWS)), f"after dying at step {point}"


def test_given_an_iceberg_table_whose_writer_died_when_the_next_one_commits_then_what_was_left_is_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    home = a_home(spark, tmp_path, "iceberg")
    died = a_table(spark, home)
    archive_batch(spark, died, 0)
    write_by_day(a_batch(spark, 1), died.attempt("1"))
    data = tmp_path / "archive" / "records" / "data"
    assert len(list(data.iterdir())) == 2

    table = a_table(spark, home)
    table.begin()
    archive_batch(spark, table, 1)

    assert len(list(data.iterdir())) == 2
    assert offsets_in(read_table(spark, table)) == list(range(2 * ROWS))


def test_given_files_that_a_merge_has_replaced_when_their_time_is_over_then_they_and_their_snapshots_are_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(spark, a_home(spark, tmp_path, "iceberg"))
    for number in range(3):
        archive_batch(spark, table, number)
    table.tidy(SIZES, is_last=True)
    kept = len(visible_files(tmp_path))

    monkeypatch.setattr(iceberg_table, "_KEEP_REPLACED_MS", -1_000)
    table.tidy(SIZES, is_last=True)

    assert kept == 8 and len(visible_files(tmp_path)) == 2
    assert offsets_in(read_table(spark, a_table(spark, a_home(spark, tmp_path, "iceberg")))) == list(range(3 * ROWS))


# Builders


def a_home(spark: SparkSession, tmp_path: Path, format: str) -> ArchiveHome:
    files = Files(spark)
    return archive_home.made(files, archive_home.planned(files, str(tmp_path / "archive"), format, "records"))


def a_table(spark: SparkSession, home: ArchiveHome) -> ArchiveTable:
    table = open_table(spark, home, home.table, RECORD, {})
    assert table is not None
    return table


def a_batch(spark: SparkSession, number: int) -> DataFrame:
    """Ten records of two days, in the order of their offsets."""
    first_ms = FIRST_DAY_MS + DAY_MS - ROWS // 2
    return spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1).selectExpr(
        "'orders' AS topic",
        "0 AS partition",
        "id AS offset",
        "CAST(NULL AS binary) AS key",
        "CAST(CAST(id AS string) AS binary) AS value",
        "CAST(array() AS array<struct<key:string,value:binary>>) AS headers",
        f"timestamp_millis({first_ms} + id % {ROWS}) AS timestamp",
        "0 AS timestamp_type",
    )


def archive_batch(spark: SparkSession, table: ArchiveTable, number: int) -> None:
    directory = table.attempt(str(number))
    write_by_day(archived.without_archived(a_batch(spark, number), table.archived), directory)
    files = written_files(Files(spark), directory)
    if files:
        table.commit(directory, files, archived.after(table.archived, files))
    else:
        table.give_up(directory)


def archived_whole(spark: SparkSession, files: Files, location: Path) -> None:
    """All that a run does: what it finds is finished, what is missing is archived, and in the end all is visible."""
    table = open_parquet_table(spark, files, f"file://{location}", RECORD)
    assert table is not None
    table.begin()
    for number in range(2):
        archive_batch(spark, table, number)
    table.tidy(SIZES, is_last=True)


def offsets_in(records: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in records.select("offset").collect())


def visible_offsets(spark: SparkSession, location: Path) -> list[int]:
    """For somebody who knows nothing of us and reads the directory."""
    return offsets_in(spark.read.parquet(str(location))) if visible_files(location) else []


class Died(Exception):
    pass


class Crashing(Files):
    """Counts what it changes; dies before it changes something for the time `at`, and from then on."""

    def __init__(self, spark: SparkSession, at: int | None) -> None:
        super().__init__(spark)
        self.count = 0
        self._dies_at = at

    def _step(self) -> None:
        if self._dies_at is not None and self.count >= self._dies_at:
            raise Died
        self.count += 1

    def create(self, path: str, text: str) -> bool:
        self._step()
        return super().create(path, text)

    def make_directory(self, path: str) -> None:
        self._step()
        super().make_directory(path)

    def rename(self, path: str, new_path: str) -> None:
        self._step()
        super().rename(path, new_path)

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)
