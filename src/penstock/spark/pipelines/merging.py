"""Small files become large ones: which of them, and how.

Merging changes nothing of what an archive says: the same records, in the order of topic, partition and offset. Whoever
puts the new files in place of the old ones does so in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.spark.pipelines.data_files import DAY, DataFile, day_of, rows_of, write_by_day, written_files
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files

_ORDER = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class FileSizes:
    """A file below a quarter of `target_bytes` is small; so many of a day and of about one size are merged. In plain
    Parquet, what is fresh is merged and made visible when it has `target_bytes`, or after `visible_after_s`.

    Merging writes everything once more: files that are read well as they are, are not worth that.
    """

    target_bytes: int = 128 << 20
    small_files: int = 8
    visible_after_s: float = 600

    def is_small(self, size_bytes: int) -> bool:
        return size_bytes < self.target_bytes // 4

    def parts(self, size_bytes: int) -> int:
        return max(1, round(size_bytes / self.target_bytes))


@dataclass(frozen=True, slots=True)
class SizedFile:
    """What merging looks at."""

    path: str
    day: str
    size_bytes: int
    rows: int


def due(files: Iterable[SizedFile], sizes: FileSizes) -> list[SizedFile]:
    """The small files of the days that have enough of them.

    Only files of about one size are merged: what was merged already would be written over and over otherwise, with
    every few records that come.
    """
    groups: dict[tuple[str, int], list[SizedFile]] = {}
    for file in files:
        if sizes.is_small(file.size_bytes):
            groups.setdefault((file.day, _tier(file.size_bytes)), []).append(file)
    return [file for _, group in sorted(groups.items()) if len(group) >= max(2, sizes.small_files) for file in group]


def _tier(size_bytes: int) -> int:
    """Sizes that differ by less than sixteen times, from 256 KiB on, are one."""
    return max(0, (size_bytes >> 18).bit_length() + 3) // 4


def merge(
    spark: SparkSession, files: Files, small: Sequence[SizedFile], schema: StructType, directory: str, sizes: FileSizes
) -> list[DataFile]:
    """As fewer files, in a new directory. Raises PipelineError when they do not have as many rows of each day."""
    records = rows_of(spark, [file.path for file in small], schema).withColumn(DAY, day_of("timestamp"))
    parts = sizes.parts(sum(file.size_bytes for file in small))
    spread = records.coalesce(1) if parts == 1 else records.repartitionByRange(parts, DAY, *_ORDER)
    write_by_day(spread.sortWithinPartitions(DAY, *_ORDER), directory)
    merged = written_files(files, directory, of_one_partition=False)
    before, after = _rows_by_day(small), _rows_by_day(merged)
    if before != after:
        raise PipelineError(f"merging {len(small)} files made {after} rows of {before}: they are left as they are")
    return merged


def _rows_by_day(files: Iterable[SizedFile | DataFile]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for file in files:
        rows[file.day] = rows.get(file.day, 0) + file.rows
    return rows
