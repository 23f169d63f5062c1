"""Offsets of partitions as JSON, in the shape of Spark's Kafka source: {"topic": {"0": 23}}.

What a stream has read is written down like this in its checkpoint. A topic that was deleted and created anew begins at
offset 0 again, and its old offsets may well exist in it: so the ids of the topics are written down too, under a name
that no topic can have. Two texts of the same offsets are equal: Spark compares nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.core.ids import TopicId, TopicPartition, topic_id_from_text, topic_id_to_text
from penstock.spark.errors import BadOffsets

EARLIEST, LATEST = -2, -1

_TOPIC_IDS = "#topic-ids"
_STARTING_OFFSETS = "#starting-offsets"
_MOST_LISTED = 5
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """`topic_ids` has those that are known. `began_at`: where the query began, in the offsets of its first batch."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    began_at: Mapping[TopicPartition, int] | None = None

    def is_where(self, other: StreamOffsets) -> bool:
        """Whether there is nothing between the two, whatever else they tell."""
        return self.offsets == other.offsets and self.topic_ids == other.topic_ids

    def to_json(self) -> dict[str, object]:
        found: dict[str, object] = {**_by_topic(self.offsets)}
        if self.topic_ids:
            found[_TOPIC_IDS] = {name: topic_id_to_text(self.topic_ids[name]) for name in sorted(self.topic_ids)}
        if self.began_at is not None:
            found[_STARTING_OFFSETS] = _by_topic(self.began_at)
        return found

    @classmethod
    def from_json(cls, value: object, where: str = "the checkpoint") -> StreamOffsets:
        """`where` is what an error calls it. Raises BadOffsets."""
        topics = dict(_object(value, where))
        topic_ids = {name: _topic_id(text, where) for name, text in _object(topics.pop(_TOPIC_IDS, {}), where).items()}
        began_at = topics.pop(_STARTING_OFFSETS, None)
        return cls(
            dict(_numbers(topics, where)),
            topic_ids,
            None if began_at is None else dict(_numbers(_object(began_at, where), where)),
        )


def parse_offsets(text: str, where: str) -> StreamOffsets:
    """Of the option `where`. Raises BadOffsets."""
    return StreamOffsets.from_json(parse_json(text, where), where)


def parse_times(text: str, where: str) -> dict[TopicPartition, int]:
    """Milliseconds by partition, of the option `where`. Raises BadOffsets."""
    return dict(_numbers(_object(parse_json(text, where), where), where))


def parse_partitions(text: str, where: str) -> list[TopicPartition]:
    """Of {"topic": [0, 1]}. Raises BadOffsets."""
    found = []
    for topic, numbers in _object(parse_json(text, where), where).items():
        if not isinstance(numbers, list) or not numbers:
            raise BadOffsets(f'{where}: topic "{topic}" takes a list of partitions, not {json.dumps(numbers)}')
        found += [TopicPartition(topic, _whole(number, 0, _INT32_MAX, f"{where}: {topic}")) for number in numbers]
    if not found:
        raise BadOffsets(f"{where} names no partition")
    return sorted(set(found))


def parse_json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOffsets(f'{where} is not JSON: {error}, in "{text}"') from None


def listed(partitions: Iterable[TopicPartition]) -> str:
    """For messages."""
    names = [str(each) for each in sorted(partitions)]
    return ", ".join(names[:_MOST_LISTED]) + (
        f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    )


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return found


def _numbers(topics: Mapping[str, object], where: str) -> Iterator[tuple[TopicPartition, int]]:
    for topic, partitions in topics.items():
        for name, value in _object(partitions, f'{where}: topic "{topic}"').items():
            if not (name.isascii() and name.isdigit() and int(name) <= _INT32_MAX):
                raise BadOffsets(f'{where}: topic "{topic}": "{name}" is not the number of a partition')
            yield TopicPartition(topic, int(name)), _whole(value, EARLIEST, _INT64_MAX, f"{where}: {topic}-{name}")


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise BadOffsets(f'{where} takes an object as {{"topic": {{"0": 23}}}}, not {json.dumps(value)}')
    return value


def _whole(value: object, lowest: int, highest: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise BadOffsets(f"{where} takes a whole number from {lowest} on, not {json.dumps(value)}")
    return value


def _topic_id(text: object, where: str) -> TopicId:
    try:
        return topic_id_from_text(str(text))
    except ValueError:
        raise BadOffsets(f"{where}: {json.dumps(text)} is not the id of a topic") from None
