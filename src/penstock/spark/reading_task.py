"""What one task of a source does: a range of one partition, from its leader, as record batches.

All it is told is in the range and in the options: it may run on another machine, again, or twice at once, and has the
same rows each time. Its memory is that of a part, however long the range is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from penstock.core.ids import TopicId, TopicPartition
from penstock.protocol.records.columns import Columns, Taken
from penstock.spark.data_loss import report
from penstock.spark.errors import plainly
from penstock.spark.ranges import OffsetRange, split
from penstock.spark.source_options import SourceOptions
from penstock.wire.cluster import Cluster
from penstock.wire.errors import OffsetsLost, TopicRecreated, UnknownTopic
from penstock.wire.patience import PASSING, Patience
from penstock.wire.reading import PartitionReader
from penstock.wire.settings import ClientSettings

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Of a record batch, but for the batch of the log that fills it: small enough to stay in the caches of a core.
_MAX_ROWS = 1 << 16
_MAX_BYTES = 4 << 20
_GONE = (TopicRecreated, UnknownTopic)
_LOSSES = (OffsetsLost, *_GONE)


@dataclass(frozen=True)
class RangeOfPartition(InputPartition):
    """`topic_id` is that of the topic which the offsets are of, where it is known."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: TopicId | None


def tasks(
    options: SourceOptions,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, TopicId],
    left: Iterable[OffsetRange] | None = None,
) -> list[InputPartition]:
    """One for each part of the ranges, of which only what is `left` is read, at most one range of a partition.

    A task of which nothing is left stays, with nothing to do: when a batch is run again, a sink knows what its tasks
    have written by their numbers.
    """
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    if left is not None:
        by_partition = {each.partition: each for each in left}
        parts = [each.within(by_partition.get(each.partition)) for each in parts]
    return [
        RangeOfPartition(each.partition, each.start, each.end, topic_ids.get(each.partition.topic)) for each in parts
    ]


def read_range(options: SourceOptions, wanted: InputPartition) -> Iterator[RecordBatch]:
    """Raises WireError, DataLost."""
    if not isinstance(wanted, RangeOfPartition) or wanted.start == wanted.end:
        return  # what Spark makes up where there is nothing to read, or all of it is lost
    with plainly(), closing(_connected(options.settings)) as cluster:
        start = wanted.start
        while start < wanted.end:
            try:
                yield from _batches(cluster, options, wanted, start)
                return
            except OffsetsLost as lost:
                report([str(lost)], fails=options.fails_on_data_loss)
                start = lost.first if lost.wanted < lost.first else wanted.end
            except _GONE as gone:
                what = f"offsets {start} to {wanted.end - 1} of {wanted.partition}: {gone}"
                report([what], fails=options.fails_on_data_loss)
                return


def _connected(settings: ClientSettings) -> Cluster:
    """The driver has reached a broker a moment ago: if there is none now, one will come back."""
    patience = Patience(settings)
    while True:
        try:
            return Cluster(settings)
        except PASSING as error:
            patience.after("connecting", error)


def _batches(cluster: Cluster, options: SourceOptions, wanted: RangeOfPartition, start: int) -> Iterator[RecordBatch]:
    # Plans are made in processes of their own, one for every stream, which have no use for Arrow's functions.
    from penstock.spark.arrow_batches import record_batch

    reader = PartitionReader(cluster, wanted.partition, start, wanted.end, options.isolation, wanted.topic_id)
    with closing(reader):
        for timestamp_type, taken in _parts(reader, options.includes_headers):
            yield record_batch(taken, wanted.partition, timestamp_type)


def _parts(reader: PartitionReader, with_headers: bool) -> Iterator[tuple[int, Taken]]:
    """Each with one type of timestamps, which a topic's configuration may change between two batches."""
    columns = Columns(with_headers=with_headers)
    timestamp_type = 0
    try:
        for part in reader.parts():
            for batch in reader.visible(part):
                if batch.header.is_log_append_time != timestamp_type:
                    if columns.rows:
                        yield timestamp_type, columns.take()
                    timestamp_type = int(batch.header.is_log_append_time)
                reader.add_to(columns, part, batch)
                if columns.rows >= _MAX_ROWS or columns.size >= _MAX_BYTES:
                    yield timestamp_type, columns.take()
    except _LOSSES:
        if columns.rows:  # what was read before something was lost is not lost
            yield timestamp_type, columns.take()
        raise
    if columns.rows:
        yield timestamp_type, columns.take()
