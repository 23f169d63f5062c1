"""Streams: what is new in the topics, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.spark.errors import plainly
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.positions import starting_offsets
from penstock.spark.ranges import ranges_between, share_out, split
from penstock.spark.reading_task import RangeOfPartition, read_range
from penstock.spark.source_options import SourceOptions
from penstock.spark.topics import SubscribedTopics

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = SubscribedTopics(options)
        self._initial: StreamOffsets | None = None
        self._frozen: StreamOffsets | None = None

    def initialOffset(self) -> Json:
        """Spark asks more than once, and means the same offsets each time."""
        with plainly():
            if self._initial is None:
                found = self._topics.find()
                offsets = starting_offsets(self._options, self._topics, found)
                self._initial = StreamOffsets(offsets, found.topic_ids)
            return self._initial.to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        with plainly():
            begun = StreamOffsets.from_json(start)
            latest = self._frozen or self._latest()
            ends = latest.offsets
            if isinstance(limit, ReadMaxRows):
                ends = {**begun.offsets, **share_out(ranges_between(begun.offsets, ends), limit.max_rows)}
            return StreamOffsets(ends, latest.topic_ids).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            self._frozen = self._latest()

    def reportLatestOffset(self) -> Json | None:
        return self._latest().to_json()

    def _latest(self) -> StreamOffsets:
        found = self._topics.find()
        return StreamOffsets(self._topics.latest(found.partitions), found.topic_ids)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        with plainly():
            if start == end:
                return []
            first, last = StreamOffsets.from_json(start), StreamOffsets.from_json(end)
            options = self._options
            return [
                RangeOfPartition(each.partition, each.start, each.end, last.topic_ids.get(each.partition.topic))
                for each in split(
                    ranges_between(first.offsets, last.offsets),
                    options.min_partitions,
                    options.max_records_per_partition,
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: Json) -> None:
        """What was read is in the checkpoint; nothing is kept at the brokers."""

    def stop(self) -> None:
        self._topics.close()
