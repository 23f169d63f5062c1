"""What tests of archives share: records of several days, an archive of them, and what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.archive_home import ArchiveHome, existing
from penstock.spark.pipelines.archive_reading import read_archive
from penstock.spark.pipelines.files import Files
from tests.spark.piping import Given

FORMATS = ("iceberg", "parquet")
DAY_MS = 86_400_000
FIRST_DAY_MS = 20_000 * DAY_MS
PARTITIONS = 2


class Row(NamedTuple):
    """A record of an archive."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def some_records(count: int, first: int = 0, days: int = 3) -> list[Given]:
    """In all partitions, over some days; some without a key, a value or headers."""
    return [
        Given(
            value=None if at % 7 == 3 else f"value {at}",
            key=None if at % 5 == 2 else f"key {at % 10}",
            partition=at % PARTITIONS,
            headers=(("number", str(at).encode()), ("empty", b"")) if at % 3 == 0 else (),
            timestamp_ms=FIRST_DAY_MS + at * days * DAY_MS // count,
        )
        for at in range(first, first + count)
    ]


def archived_to(spark: SparkSession, bootstrap: str, topic: str, to: Path | str, **options: Any) -> Any:
    return archive(spark, bootstrap=bootstrap, topics=[topic], to=str(to), **options)


def rows_of(records: DataFrame) -> list[Row]:
    """By partition and offset; a row that is there twice is there twice."""
    wanted = records.selectExpr("partition", "offset", "key", "value", "headers", "unix_millis(timestamp) AS ms")
    return sorted(
        Row(
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            tuple((each["key"], None if each["value"] is None else bytes(each["value"])) for each in row["headers"]),
            row["ms"],
        )
        for row in wanted.collect()
    )


def rows_in(spark: SparkSession, archive_path: Path | str) -> list[Row]:
    return rows_of(read_archive(spark, str(archive_path)))


def as_rows(records: Iterable[Given]) -> list[Row]:
    """As an archive has them: offsets count up from 0 in each partition."""
    ends: dict[int, int] = {}
    found = []
    for record in records:
        offset = ends.get(record.partition, 0)
        ends[record.partition] = offset + 1
        found.append(
            Row(
                record.partition,
                offset,
                _bytes(record.key),
                _bytes(record.value),
                tuple(record.headers),
                record.timestamp_ms,
            )
        )
    return sorted(found)


def home_of(spark: SparkSession, archive_path: Path) -> ArchiveHome:
    return existing(Files(spark), str(archive_path))


def visible_files(directory: Path) -> Sequence[Path]:
    """For somebody who knows nothing of us."""
    return sorted(path for path in directory.rglob("*.parquet") if "_penstock" not in path.parts)


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
