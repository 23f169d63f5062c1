"""What is not there any more of what a query was to read, and what is left of it.

A query either stops when something was lost or says so and goes on with the rest (failOnDataLoss). Either way the
message has the partition and the offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core.ids import TopicId, TopicPartition, topic_id_to_text
from penstock.spark.errors import DataLost
from penstock.spark.ranges import OffsetRange

_log = logging.getLogger(__name__)
# What to do about it; a pipeline calls it otherwise.
GOES_ON = "failOnDataLoss=false goes on with what is there"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition has now: from `first` to before `end`."""

    first: int
    end: int


def report(losses: Iterable[str], *, fails: bool) -> None:
    """Raises DataLost, or says it in the log."""
    lost = list(losses)
    if not lost:
        return
    text = "; ".join(lost[:_MOST_NAMED])
    if len(lost) > _MOST_NAMED:
        text += f"; and {len(lost) - _MOST_NAMED} more"
    if fails:
        raise DataLost(f"{text} ({GOES_ON})")
    _log.warning("data lost, going on with what is there: %s", text)


def left_of(wanted: OffsetRange, extent: Extent) -> tuple[OffsetRange, list[str]]:
    """What can still be read, and what is lost, in words."""
    start, end, losses = wanted.start, wanted.end, []
    if start < extent.first:
        start = min(extent.first, end)
        losses.append(
            f"offsets {wanted.start} to {start - 1} of {wanted.partition} are not there any more, "
            f"the first one is {extent.first}"
        )
    if end > extent.end:
        end = max(extent.end, start)
        losses.append(
            f"offsets {end} to {wanted.end - 1} of {wanted.partition} are not there, the partition ends at {extent.end}"
        )
    return OffsetRange(wanted.partition, start, end), losses


def nearest_in(option: str, partition: TopicPartition, offset: int, extent: Extent) -> tuple[int, list[str]]:
    """The offset that is nearest to the one an option has, and what is wrong with that one, in words."""
    if extent.first <= offset <= extent.end:
        return offset, []
    there = f"has offsets {extent.first} to {extent.end - 1}" if extent.first < extent.end else "is empty"
    return min(max(offset, extent.first), extent.end), [
        f"option {option} is {offset} for {partition}, which {there} and ends at {extent.end}"
    ]


def vanished(partition: TopicPartition, position: int) -> str:
    return f"{partition} is not there any more, and was read up to offset {position}"


def deselected(partition: TopicPartition, position: int) -> str:
    return f"{partition} was read up to offset {position}, and is not read by this query any more"


def recreated(topic: str, was: TopicId, now: TopicId, positions: Mapping[TopicPartition, int]) -> str:
    where = ", ".join(f"offset {positions[each]} of {each}" for each in sorted(positions) if each.topic == topic)
    return (
        f'topic "{topic}" was deleted and created anew, {where} is not what it was: the id of the topic is '
        f"{topic_id_to_text(now)} and was {topic_id_to_text(was)}"
    )


def went_back(partition: TopicPartition, position: int, end: int) -> str:
    return f"{partition} was read up to offset {position}, and ends at {end} now"
