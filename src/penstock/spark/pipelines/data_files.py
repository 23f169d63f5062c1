"""Parquet files as they are written and found: each has records of one day, and its footer says which.

What a footer tells (rows, and the offsets of each partition) is what a commit rests on, so a file that does not tell
it is no file of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.types import StructType

from penstock.core.ids import TopicPartition
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, joined
from penstock.spark.pipelines.hadoop_io import opened

DAY = "day"
COMPRESSION = "zstd"
_MILLISECONDS_OF_A_DAY = 86_400_000
_READERS = 8
_SETTINGS = {
    # What Iceberg asks for.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A task whose records are of few days writes them as they come; one of more days has to sort them first.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
}
_PATTERN = re.compile(r"[][{}*?\\]")

_WRITER = {
    # A commit says that files are whole, not a file of Hadoop's.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Clicks as JSON are no smaller with the default, 3, which takes a sixth longer for all of writing.
    "parquet.compression.codec.zstd.level": "1",
    # Values hardly ever repeat: a dictionary of them is built to be thrown away, for a tenth of the time.
    "parquet.enable.dictionary#value": "false",
}

OffsetsByPartition = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """`offsets` are the first and the last of each partition that the file has records of."""

    path: str
    day: str
    size_bytes: int
    rows: int
    offsets: OffsetsByPartition


def day_of(timestamp: str) -> Column:
    """In UTC, wherever the session thinks it is."""
    return F.date_from_unix_date(F.floor(F.unix_millis(F.col(timestamp)) / _MILLISECONDS_OF_A_DAY).cast("int"))


def write_by_day(records: DataFrame, directory: str, compression: str = COMPRESSION) -> None:
    """One directory for each day, in it one file for each task."""
    by_day = records.withColumn(DAY, day_of("timestamp")).write.partitionBy(DAY)
    with _settings(records.sparkSession.conf):
        by_day.mode("errorifexists").options(**_WRITER).option("compression", compression).parquet(directory)


def rows_of(spark: SparkSession, paths: Sequence[str], schema: StructType) -> DataFrame:
    """What is in these files. Spark takes names for patterns: a directory may be called `[old]`."""
    if not paths:
        return spark.createDataFrame([], schema)
    # Its option against that, __globPaths__, reads every file as often as there are names that look like patterns.
    return spark.read.schema(schema).parquet(*(_PATTERN.sub(r"\\\g<0>", path) for path in paths))


@contextmanager
def _settings(conf: RuntimeConfig) -> Iterator[None]:
    """For as long as it is needed: the session may be somebody else's."""
    before = {key: conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            if known is None:
                conf.unset(key)
            else:
                conf.set(key, known)


def written_files(files: Files, directory: str, *, of_one_partition: bool = True) -> list[DataFile]:
    """What `write_by_day` has left in a directory. Merged files have several partitions, and their offsets are known.

    Raises PipelineError when offsets that are to be told are not.
    """
    found = [
        (entry.path, unquote(day.name.partition("=")[2]))
        for day in files.list(directory)
        if day.is_directory and day.name.startswith(f"{DAY}=")
        for entry in files.list(day.path)
        if entry.name.endswith(".parquet")
    ]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(lambda each: read_footer(files, *each, of_one_partition=of_one_partition), found))


def read_footer(files: Files, path: str, day: str, *, of_one_partition: bool = True) -> DataFile:
    with opened(files, path) as stream:
        footer = parquet.read_metadata(stream)
    columns = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
    offsets: dict[TopicPartition, tuple[int, int]] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)] if of_one_partition else []
    for group in groups:
        if group.num_rows:
            partition, first, last = _offsets_of(group, columns, path)
            known = offsets.get(partition, (first, last))
            offsets[partition] = (min(known[0], first), max(known[1], last))
    return DataFile(path, day, files.size(path), footer.num_rows, offsets)


def _offsets_of(group: Any, columns: Mapping[str, int], path: str) -> tuple[TopicPartition, int, int]:
    """Of a part of a file, which one task has written with records of one partition. Left out, they would not count as
    archived, and come again.
    """
    try:
        topic, partition, offset = (group.column(columns[name]).statistics for name in ("topic", "partition", "offset"))
    except KeyError as missing:
        raise PipelineError(f"{path} is not a file of an archive: it has no column {missing}") from None
    if not all(each is not None and each.has_min_max for each in (topic, partition, offset)):
        raise PipelineError(f"{path} does not tell which offsets it has: its columns have no statistics")
    if topic.min != topic.max or partition.min != partition.max:
        raise PipelineError(
            f"{path} has records of several partitions in one part, {topic.min}-{partition.min} to "
            f"{topic.max}-{partition.max}: it does not tell which offsets it has of each"
        )
    return TopicPartition(str(topic.min), int(partition.min)), int(offset.min), int(offset.max)


def inside(directory: str, path: str) -> str:
    """A path below a directory, as it is written down: archives can be moved."""
    prefix = joined(directory, "")
    return path.removeprefix(prefix)
