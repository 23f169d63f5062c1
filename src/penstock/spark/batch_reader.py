"""Batch queries: ranges that are fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.spark.errors import plainly
from penstock.spark.positions import ending_offsets, starting_offsets
from penstock.spark.ranges import OffsetRange, split
from penstock.spark.reading_task import RangeOfPartition, read_range
from penstock.spark.source_options import SourceOptions
from penstock.spark.topics import SubscribedTopics

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with plainly(), closing(SubscribedTopics(options)) as topics:
            found = topics.find()
            start = starting_offsets(options, topics, found)
            end = ending_offsets(options, topics, found)
        whole = [OffsetRange(partition, start[partition], end[partition]) for partition in found.partitions]
        return [
            RangeOfPartition(each.partition, each.start, each.end, found.topic_ids.get(each.partition.topic))
            for each in split(whole, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(self._options, partition)
