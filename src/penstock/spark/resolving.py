"""Where a query begins and, if it is a batch, where it ends: what its options say, as offsets of what there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.core.ids import TopicId, TopicPartition, topic_id_to_text
from penstock.spark.data_loss import nearest_in, report
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import EARLIEST, LATEST, listed
from penstock.spark.positions import AtEdge, AtOffsets, AtTime, AtTimes, Position
from penstock.spark.source_options import SourceOptions
from penstock.spark.topics import Found, SubscribedTopics
from penstock.wire.offsets import Offsets


def starting_offsets(options: SourceOptions, topics: SubscribedTopics, found: Found) -> Offsets:
    """Raises BadOffsets, DataLost."""
    position = options.starting
    assert position is not None
    offsets = _resolved(position, topics, found)
    late = {partition for partition, offset in offsets.items() if offset is None}
    if late and not options.none_that_late_is_latest:
        raise BadOffsets(
            f"option {position.option}: {listed(late)} has no record that late; "
            "startingOffsetsByTimestampStrategy=latest begins at the end there"
        )
    return _checked(position, _with_ends(offsets, topics), topics, fails=options.fails_on_data_loss)


def ending_offsets(options: SourceOptions, topics: SubscribedTopics, found: Found) -> Offsets:
    """Where no record is that late, it is the end. Raises BadOffsets, DataLost."""
    position = options.ending
    assert position is not None
    offsets = _with_ends(_resolved(position, topics, found), topics)
    return _checked(position, offsets, topics, fails=options.fails_on_data_loss)


def _resolved(position: Position, topics: SubscribedTopics, found: Found) -> Mapping[TopicPartition, int | None]:
    """None is for a time after that of every record."""
    if isinstance(position, AtEdge):
        return _edges(dict.fromkeys(found.partitions, position.edge), topics)
    if isinstance(position, AtTime):
        return topics.at_times(dict.fromkeys(found.partitions, position.time_ms))
    if isinstance(position, AtTimes):
        _check_partitions(position.option, position.times_ms, found)
        edges = {partition: time for partition, time in position.times_ms.items() if time < 0}
        times = {partition: time for partition, time in position.times_ms.items() if time >= 0}
        return {**_edges(edges, topics), **topics.at_times(times)}
    _check_partitions(position.option, position.offsets, found)
    _check_topic_ids(position.option, position.topic_ids, found)
    return _edges(position.offsets, topics)


def _edges(wanted: Mapping[TopicPartition, int], topics: SubscribedTopics) -> Offsets:
    first = topics.earliest([partition for partition, offset in wanted.items() if offset == EARLIEST])
    last = topics.latest([partition for partition, offset in wanted.items() if offset == LATEST])
    return {**wanted, **first, **last}


def _with_ends(offsets: Mapping[TopicPartition, int | None], topics: SubscribedTopics) -> Offsets:
    ends = topics.latest([partition for partition, offset in offsets.items() if offset is None])
    return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}


def _checked(position: Position, offsets: Offsets, topics: SubscribedTopics, *, fails: bool) -> Offsets:
    """Offsets that somebody wrote down may be of another time."""
    if not isinstance(position, AtOffsets):
        return offsets
    extents = topics.extents(offsets)
    found, losses = {}, []
    for partition, offset in sorted(offsets.items()):
        found[partition], lost = nearest_in(position.option, partition, offset, extents[partition])
        losses += lost
    report(losses, fails=fails)
    return found


def _check_partitions(option: str, given: Collection[TopicPartition], found: Found) -> None:
    """As in Spark, all are named: one that is forgotten would be read from an end that nobody chose."""
    unknown, forgotten = set(given) - found.partitions, found.partitions - set(given)
    if unknown:
        raise BadOffsets(f"option {option} has {listed(unknown)}, which this query does not read or which is not there")
    if forgotten:
        raise BadOffsets(
            f"option {option} lacks {listed(forgotten)}: name every partition, with -2 for its first offset or -1 for "
            "its end"
        )


def _check_topic_ids(option: str, given: Mapping[str, TopicId], found: Found) -> None:
    for topic, topic_id in given.items():
        now = found.topic_ids.get(topic, topic_id)
        if now != topic_id:
            raise BadOffsets(
                f'option {option} is of a topic "{topic}" that was deleted and created anew: the id of the topic is '
                f"{topic_id_to_text(now)} and was {topic_id_to_text(topic_id)}"
            )
