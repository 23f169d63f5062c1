"""How far an archive has come: the offset after the last record that it has, of every partition.

This stands in the archive itself and changes in the same step as its records, so it is the truth, and Spark's
checkpoint is a help: a batch that runs again, or one of a new checkpoint, leaves out what the archive has already.
Topics are known by their ids as well, since one that was deleted and created anew begins at offset 0 again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_to_text
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import EARLIEST, StreamOffsets, parse_offsets
from penstock.spark.pipelines.data_files import DataFile
from penstock.spark.pipelines.errors import PipelineError

NOTHING = StreamOffsets({})


def to_text(archived: StreamOffsets) -> str:
    return json.dumps(archived.to_json(), separators=(",", ":"))


def from_text(text: str, where: str) -> StreamOffsets:
    try:
        return parse_offsets(text, where)
    except BadOffsets as error:
        raise PipelineError(f"{where} is damaged: {error}") from None


def with_topics(archived: StreamOffsets, topic_ids: Mapping[str, TopicId]) -> StreamOffsets:
    """Raises PipelineError when a topic is not the one that the archive has records of."""
    for topic, topic_id in topic_ids.items():
        known = archived.topic_ids.get(topic, NO_TOPIC_ID)
        if NO_TOPIC_ID not in (known, topic_id) and known != topic_id:
            raise PipelineError(
                f'topic "{topic}" was deleted and created anew since it was archived: its id is '
                f"{topic_id_to_text(topic_id)} and was {topic_id_to_text(known)}; an archive has one of them, --to "
                "takes another directory for the new one"
            )
    ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic_id != NO_TOPIC_ID}
    return StreamOffsets(archived.offsets, {**archived.topic_ids, **ids})


def has_any_of(archived: StreamOffsets, files: Iterable[DataFile]) -> bool:
    """Whether some of the files' records are archived already."""
    return any(
        first < archived.offsets.get(partition, 0) for file in files for partition, (first, _) in file.offsets.items()
    )


def is_ahead(archived: StreamOffsets, other: StreamOffsets) -> bool:
    """Whether it has come further than the other in some partition."""
    return any(end > other.offsets.get(partition, 0) for partition, end in archived.offsets.items())


def after(archived: StreamOffsets, files: Iterable[DataFile]) -> StreamOffsets:
    return _reached(archived, ((each, last + 1) for file in files for each, (_, last) in file.offsets.items()))


def ends_of(records: DataFrame) -> StreamOffsets:
    last = records.groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    return StreamOffsets({TopicPartition(row["topic"], row["partition"]): row["last"] + 1 for row in last})


def furthest(archived: StreamOffsets, other: StreamOffsets) -> StreamOffsets:
    return _reached(archived, other.offsets.items())


def _reached(archived: StreamOffsets, ends: Iterable[tuple[TopicPartition, int]]) -> StreamOffsets:
    offsets = dict(archived.offsets)
    for partition, end in ends:
        offsets[partition] = max(offsets.get(partition, 0), end)
    return StreamOffsets(offsets, archived.topic_ids)


def starting_offsets(archived: StreamOffsets, partitions: Mapping[str, int]) -> str:
    """For a query without a checkpoint: where the archive ends, and the first record of what it does not have."""
    wanted = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    begun = {partition: archived.offsets.get(partition, EARLIEST) for partition in wanted}
    ids = {topic: topic_id for topic, topic_id in archived.topic_ids.items() if topic in partitions}
    return to_text(StreamOffsets(begun, ids))


def without_archived(records: DataFrame, archived: StreamOffsets) -> DataFrame:
    """The records that the archive does not have, in their order."""
    rows = [(partition.topic, partition.partition, offset) for partition, offset in archived.offsets.items()]
    if not rows:
        return records
    ends = records.sparkSession.createDataFrame(rows, "topic string, partition int, archived_end bigint")
    joined = records.join(F.broadcast(ends), ["topic", "partition"], "left")
    return joined.where("archived_end is null or offset >= archived_end").select(records.columns)
