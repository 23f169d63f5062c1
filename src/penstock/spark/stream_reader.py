"""Streams: what is new in the topics, batch by batch.

Spark writes down where a batch ends before it runs it, and runs it again from there after a crash. So what a batch has
follows from its two ends alone. Where a query began Spark does not write down, but asks again: `startingOffsets=latest`
would be another place then, and the records between the two would be lost. So the end of the first batch has it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.spark.data_loss import report
from penstock.spark.errors import plainly
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.progress import check_same_query, continued, held, left_of_batch, ranges_of_batch
from penstock.spark.ranges import ranges_between, share_out
from penstock.spark.reading_task import read_range, tasks
from penstock.spark.resolving import starting_offsets
from penstock.spark.source_options import SourceOptions
from penstock.spark.topics import SubscribedTopics
from penstock.wire.offsets import Isolation

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from penstock.wire.errors import UnknownTopic

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver has one for a query; each task has one of its own, of which it only uses `read`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._topics = SubscribedTopics(options)
        self._initial: Json | None = None
        self._latest: StreamOffsets | None = None
        self._is_frozen = False
        self._missing: UnknownTopic | None = None

    def initialOffset(self) -> Json:
        """Spark asks more than once, and means the same offsets each time."""
        if self._initial is None:
            with plainly():
                found = self._topics.find()
                offsets = starting_offsets(self._options, self._topics, found)
            self._initial = StreamOffsets(offsets, found.topic_ids).to_json()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:
        with plainly():
            self._look()
        self._is_frozen = True

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def reportLatestOffset(self) -> Json | None:
        """What the last batch was planned with: asking again would tell no more."""
        return None if self._latest is None else self._latest.to_json()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        with plainly():
            begun = StreamOffsets.from_json(start)
            check_same_query(begun, self._options.subscription)
            if not self._is_frozen or self._latest is None:
                self._look(begun)
            end = self._next_end(begun, limit, is_first=start == self._initial)
        return start if end.is_where(begun) else end.to_json()

    def _look(self, begun: StreamOffsets | None = None) -> None:
        found = self._topics.find_again({each.topic for each in begun.offsets} if begun else ())
        self._missing = found.missing
        self._latest = StreamOffsets(self._topics.latest(found.partitions), found.topic_ids)

    def _next_end(self, begun: StreamOffsets, limit: ReadLimit, *, is_first: bool) -> StreamOffsets:
        latest, fails = self._latest, self._options.fails_on_data_loss
        assert latest is not None
        start = continued(begun, latest, self._options.subscription)
        report(start.losses, fails=fails)
        if self._missing is not None and not start.losses:
            raise self._missing  # it has never been there
        behind = [each for each, position in start.positions.items() if latest.offsets[each] < position]
        high_watermarks = self._topics.latest(behind, Isolation.READ_UNCOMMITTED) if behind else {}
        end = held(start.positions, latest.offsets, high_watermarks)
        report(end.losses, fails=fails)
        ends = end.positions
        if isinstance(limit, ReadMaxRows):
            ends = {**start.positions, **share_out(ranges_between(start.positions, ends), limit.max_rows)}
        return StreamOffsets(ends, latest.topic_ids, start.positions if is_first else None)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        if start == end:  # Spark asks this too
            return []
        with plainly():
            last = StreamOffsets.from_json(end)
            check_same_query(last, self._options.subscription)
            ranges = ranges_of_batch(StreamOffsets.from_json(start), last)
            found = self._topics.find_again({each.partition.topic for each in ranges})
            there = found.partitions.intersection(each.partition for each in ranges)
            extents = self._topics.extents(there, Isolation.READ_UNCOMMITTED)
            left, losses = left_of_batch(ranges, last, found, extents)
            report(losses, fails=self._options.fails_on_data_loss)
        return tasks(self._options, ranges, last.topic_ids, left)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_range(self._options, partition)

    def commit(self, end: Json) -> None:
        """What was read is in the checkpoint; nothing is kept at the brokers."""

    def stop(self) -> None:
        self._topics.close()
