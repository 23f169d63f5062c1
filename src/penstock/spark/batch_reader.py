"""Batch queries: ranges that are fixed when the query is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.spark.errors import BadOption, plainly
from penstock.spark.filters import Pruning
from penstock.spark.ranges import OffsetRange
from penstock.spark.reading_task import read_range, tasks
from penstock.spark.resolving import ending_offsets, starting_offsets
from penstock.spark.source_options import SourceOptions
from penstock.spark.topics import SubscribedTopics

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with plainly(), closing(SubscribedTopics(options)) as topics:
            found = topics.find()
            if not found.partitions:
                raise BadOption("subscribePattern", f"matches no topic: {options.subscription}")
            start = starting_offsets(options, topics, found)
            end = ending_offsets(options, topics, found)
            ranges = [OffsetRange(each, start[each], end[each]) for each in found.partitions]
            return tasks(options, self._pruned(ranges, topics), found.topic_ids)

    def _pruned(self, ranges: Iterable[OffsetRange], topics: SubscribedTopics) -> list[OffsetRange]:
        wanted = [each for each in ranges if each.size > 0 and self._pruning.wants(each.partition)]
        if self._pruning.from_ms is None:
            return [self._pruning.cut(each) for each in wanted]
        firsts = topics.at_times({each.partition: self._pruning.from_ms for each in wanted})
        found = []
        for each in wanted:
            first = firsts[each.partition]
            if first is not None:  # else no record is that late
                found.append(self._pruning.cut(each, first))
        return found

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(self._options, partition)


class PruningBatchReader(BatchReader):
    """Fetches only what the conditions of the query leave.

    Spark 4.3 keeps what such a reader has planned with the DataFrame that was loaded, and takes it for every other
    query on that DataFrame as well, with other conditions or none, or for another part of the same query. So this is
    only for who asks for it (filterPushdown).
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """All of them are left to Spark as well."""
        self._pruning = Pruning.by(filters)
        return filters
