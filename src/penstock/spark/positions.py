"""Where a query begins and, if it is a batch, where it ends: what the options say, as offsets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.core.ids import TopicId, TopicPartition, topic_id_to_text
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import EARLIEST, LATEST
from penstock.spark.source_options import AtEdge, AtTime, AtTimes, Position, SourceOptions
from penstock.spark.topics import Found, SubscribedTopics
from penstock.wire.offsets import Offsets


def starting_offsets(options: SourceOptions, topics: SubscribedTopics, found: Found) -> Offsets:
    """Raises BadOffsets."""
    assert options.starting is not None
    offsets = _resolved(options.starting, topics, found)
    late = [partition for partition, offset in offsets.items() if offset is None]
    if late and not options.none_that_late_is_latest:
        raise BadOffsets(
            f"{_option(options.starting)}: {_listed(late)} has no record that late; "
            "startingOffsetsByTimestampStrategy=latest begins at the end then"
        )
    ends = topics.latest(late) if late else {}
    return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}


def ending_offsets(options: SourceOptions, topics: SubscribedTopics, found: Found) -> Offsets:
    """Where no record is that late, it is the end. Raises BadOffsets."""
    assert options.ending is not None
    offsets = _resolved(options.ending, topics, found)
    late = [partition for partition, offset in offsets.items() if offset is None]
    ends = topics.latest(late) if late else {}
    return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}


def _resolved(position: Position, topics: SubscribedTopics, found: Found) -> Mapping[TopicPartition, int | None]:
    """None is for a time after that of every record."""
    if isinstance(position, AtEdge):
        return _edges(dict.fromkeys(found.partitions, position.edge), topics)
    if isinstance(position, AtTime):
        return topics.at_times(dict.fromkeys(found.partitions, position.time_ms))
    if isinstance(position, AtTimes):
        _check_partitions(position.option, position.times_ms, found)
        return _at_times(position.times_ms, topics)
    _check_partitions(position.option, position.offsets, found)
    _check_topic_ids(position.option, position.topic_ids, found)
    return _edges(position.offsets, topics)


def _edges(wanted: Mapping[TopicPartition, int], topics: SubscribedTopics) -> Offsets:
    first = [partition for partition, offset in wanted.items() if offset == EARLIEST]
    last = [partition for partition, offset in wanted.items() if offset == LATEST]
    return {
        **wanted,
        **(topics.earliest(first) if first else {}),
        **(topics.latest(last) if last else {}),
    }


def _at_times(times_ms: Mapping[TopicPartition, int], topics: SubscribedTopics) -> dict[TopicPartition, int | None]:
    """A time may be EARLIEST or LATEST as well."""
    edges = {partition: time for partition, time in times_ms.items() if time < 0}
    times = {partition: time for partition, time in times_ms.items() if time >= 0}
    return {**_edges(edges, topics), **topics.at_times(times)}


def _check_partitions(option: str, given: Collection[TopicPartition], found: Found) -> None:
    """As in Spark, all are named: one that is forgotten would be read from an end that nobody chose."""
    unknown, forgotten = set(given) - found.partitions, found.partitions - set(given)
    if unknown:
        raise BadOffsets(f"{option} has {_listed(unknown)}, which this query does not read")
    if forgotten:
        raise BadOffsets(
            f"{option} lacks {_listed(forgotten)}: name every partition, with -2 for the first offset "
            "and -1 for the end"
        )


def _check_topic_ids(option: str, given: Mapping[str, TopicId], found: Found) -> None:
    for topic, topic_id in given.items():
        now = found.topic_ids.get(topic, topic_id)
        if now != topic_id:
            raise BadOffsets(
                f'{option} is of a topic "{topic}" that was deleted and created anew: its id was '
                f"{topic_id_to_text(topic_id)} and is {topic_id_to_text(now)}"
            )


def _option(position: Position) -> str:
    return "startingOffsets" if isinstance(position, AtEdge) else position.option


def _listed(partitions: Iterable[TopicPartition]) -> str:
    names = [str(each) for each in sorted(partitions)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
