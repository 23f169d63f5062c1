"""How a stream goes on: from where it was, to what there is now. Nothing is asked here, and nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.ids import TopicPartition
from penstock.spark import data_loss
from penstock.spark.data_loss import Extent
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import StreamOffsets, listed
from penstock.spark.ranges import OffsetRange, ranges_between
from penstock.spark.subscriptions import Subscription
from penstock.spark.topics import Found


@dataclass(frozen=True, slots=True)
class Continued:
    """Where each partition that is there is read from, and what was lost, in words."""

    positions: Mapping[TopicPartition, int]
    losses: list[str]


def check_same_query(begun: StreamOffsets, subscription: Subscription) -> None:
    """Raises BadOffsets where nothing in a checkpoint is of what the query reads."""
    if begun.offsets and not any(map(subscription.reads, begun.offsets)):
        raise BadOffsets(
            f"the checkpoint is of another query: it has offsets of {listed(begun.offsets)}, "
            f"and this query reads {subscription}"
        )


def continued(begun: StreamOffsets, now: StreamOffsets, subscription: Subscription) -> Continued:
    """A partition that was not there begins at 0, and so do all of a topic that was created anew."""
    anew = _recreated(begun, now)
    losses = [
        data_loss.recreated(topic, begun.topic_ids[topic], now.topic_ids[topic], begun.offsets)
        for topic in sorted(anew)
    ]
    for partition in sorted(begun.offsets.keys() - now.offsets.keys()):
        if partition.topic not in anew:
            lost = data_loss.vanished if subscription.reads(partition) else data_loss.deselected
            losses.append(lost(partition, begun.offsets[partition]))
    kept = {each: offset for each, offset in begun.offsets.items() if each.topic not in anew}
    return Continued({each: kept.get(each, 0) for each in sorted(now.offsets)}, losses)


def held(
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    high_watermarks: Mapping[TopicPartition, int],
) -> Continued:
    """Ends that are not before positions, unless the partition itself is shorter now; with those that are, as losses.

    Committed records may end before what an earlier run of the query, which read uncommitted ones, has come to.
    """
    found, losses = dict(ends), []
    for partition, high_watermark in sorted(high_watermarks.items()):
        position = positions[partition]
        if high_watermark < position:
            losses.append(data_loss.went_back(partition, position, high_watermark))
        else:
            found[partition] = position
    return Continued(found, losses)


def ranges_of_batch(start: StreamOffsets, end: StreamOffsets) -> list[OffsetRange]:
    """Those that are not empty. The first batch of a query knows itself where it began: see StreamOffsets."""
    if end.began_at is not None:
        positions = end.began_at
    else:
        anew = _recreated(start, end)
        positions = {each: offset for each, offset in start.offsets.items() if each.topic not in anew}
    return [each for each in ranges_between(positions, end.offsets) if each.size > 0]


def left_of_batch(
    ranges: list[OffsetRange], end: StreamOffsets, found: Found, extents: Mapping[TopicPartition, Extent]
) -> tuple[list[OffsetRange], list[str]]:
    """What of a batch is there now, and what was lost."""
    anew = _recreated(end, StreamOffsets({}, found.topic_ids))
    starts = {each.partition: each.start for each in ranges}
    losses = [
        data_loss.recreated(topic, end.topic_ids[topic], found.topic_ids[topic], starts)
        for topic in sorted(anew.intersection(each.topic for each in starts))
    ]
    left = []
    for each in ranges:
        if each.partition.topic in anew:
            continue
        if each.partition not in extents:
            losses.append(data_loss.vanished(each.partition, each.start))
            continue
        rest, lost = data_loss.left_of(each, extents[each.partition])
        left.append(rest)
        losses += lost
    return left, losses


def _recreated(before: StreamOffsets, now: StreamOffsets) -> set[str]:
    """Topics that have another id."""
    return {topic for topic, topic_id in before.topic_ids.items() if now.topic_ids.get(topic, topic_id) != topic_id}
