"""What the broker has of the topics in an archive, and whether they are the same topics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from penstock.core.ids import NO_TOPIC_ID, TopicPartition
from penstock.spark.offsets_json import StreamOffsets
from penstock.spark.pipelines.archived import to_text
from penstock.spark.pipelines.table_schema import records_of
from penstock.spark.pipelines.topics import Brokers
from penstock.wire.cluster import Cluster
from penstock.wire.errors import UnknownTopic
from penstock.wire.offsets import earliest, latest


@dataclass(frozen=True, slots=True)
class OnBroker:
    """First offsets and ends of committed records, exclusive. `why_not` is of topics that cannot be compared."""

    bounds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    why_not: Mapping[str, str] = field(default_factory=dict)


def on_broker(brokers: Brokers, topics: Sequence[str], archived: StreamOffsets) -> OnBroker:
    """Raises WireError when the brokers cannot be asked."""
    bounds: dict[TopicPartition, tuple[int, int]] = {}
    compacted: set[str] = set()
    why_not: dict[str, str] = {}
    with closing(Cluster(brokers.settings())) as cluster:
        for name in topics:
            try:
                topic = cluster.look_up([name])[name]
            except UnknownTopic:
                why_not[name] = "the topic is not on the broker any more"
                continue
            if NO_TOPIC_ID != topic.id != archived.topic_ids.get(name, topic.id):
                why_not[name] = "the topic was deleted and created anew since it was archived"
                continue
            partitions = [TopicPartition(name, number) for number in topic.leaders]
            first, end = earliest(cluster, partitions), latest(cluster, partitions)
            bounds |= {each: (first[each], end[each]) for each in partitions}
            if "compact" in brokers.config_of(name).get("cleanup.policy", ""):
                compacted.add(name)
    return OnBroker(bounds, frozenset(compacted), why_not)


def compared_bounds(there: OnBroker, archived: StreamOffsets) -> dict[TopicPartition, tuple[int, int]]:
    """From the broker's first offset to where the archive has come, or the broker ends; exclusive."""
    return {
        each: (first, max(first, min(end, archived.offsets.get(each, 0))))
        for each, (first, end) in there.bounds.items()
    }


def read_broker(
    spark: SparkSession, brokers: Brokers, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame | None:
    """The records between the bounds; None where there are none to read."""
    wanted = {each: ends for each, ends in bounds.items() if ends[0] < ends[1]}
    if not wanted:
        return None
    partitions: dict[str, list[int]] = {}
    for each in sorted(wanted):
        partitions.setdefault(each.topic, []).append(each.partition)
    options = brokers.options() | {
        "assign": json.dumps(partitions),
        "startingOffsets": to_text(StreamOffsets({each: first for each, (first, _) in wanted.items()})),
        "endingOffsets": to_text(StreamOffsets({each: end for each, (_, end) in wanted.items()})),
        "includeHeaders": "true",
        "maxRecordsPerPartition": str(500_000),
    }
    return records_of(spark.read.format("penstock").options(**options).load())


def offsets_of(brokers: Brokers, topic: str) -> int:
    """How many a topic has now. Raises WireError."""
    with closing(Cluster(brokers.settings())) as cluster:
        partitions = [TopicPartition(topic, number) for number in cluster.look_up([topic])[topic].leaders]
        first, end = earliest(cluster, partitions), latest(cluster, partitions)
        return sum(end[each] - first[each] for each in partitions)


def read_topic(spark: SparkSession, brokers: Brokers, topic: str) -> DataFrame:
    """All that is in a topic now."""
    options = brokers.options() | {"subscribe": topic, "includeHeaders": "true", "maxRecordsPerPartition": str(500_000)}
    return records_of(spark.read.format("penstock").options(**options).load())
