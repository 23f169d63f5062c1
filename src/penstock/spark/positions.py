"""Where a query begins or ends, as its options say it: no broker has been asked yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.errors import BadOption
from penstock.spark.offsets_json import EARLIEST, LATEST, parse_offsets, parse_times

_INT64_MAX = 2**63 - 1
_EDGES = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class AtEdge:
    """EARLIEST or LATEST, of every partition. In all kinds `option` is where it was said."""

    option: str
    edge: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset, EARLIEST or LATEST by partition; `topic_ids` has those that were said."""

    option: str
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, TopicId]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Milliseconds, EARLIEST or LATEST by partition."""

    option: str
    times_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """Milliseconds, the same for every partition."""

    option: str
    time_ms: int


Position = AtEdge | AtOffsets | AtTimes | AtTime


def parse_position(edge: str, values: Mapping[str, str]) -> Position | None:
    """The most special that was said, as in Spark: one time, then times, then offsets. Raises BadOption, BadOffsets."""
    time, times, offsets = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
    if (text := values.get(time.lower())) is not None:
        return AtTime(time, _milliseconds(time, text.strip()))
    if (text := values.get(times.lower())) is not None:
        return AtTimes(times, parse_times(text, f"option {times}"))
    if (text := values.get(offsets.lower())) is not None:
        return _offsets(offsets, text.strip())
    return None


def _milliseconds(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _INT64_MAX):
        raise BadOption(option, f'takes milliseconds since 1970, not "{text}"')
    return int(text)


def _offsets(option: str, text: str) -> AtEdge | AtOffsets:
    if text.lower() in _EDGES:
        return AtEdge(option, _EDGES[text.lower()])
    if not text.startswith("{"):
        raise BadOption(option, f'takes earliest, latest or JSON as {{"topic": {{"0": 23}}}}, not "{text}"')
    found = parse_offsets(text, f"option {option}")
    return AtOffsets(option, found.offsets, found.topic_ids)


def check_batch(starting: Position, ending: Position) -> None:
    """Raises BadOption for what has no meaning in a batch."""
    _refuse(starting, LATEST, "the end")
    _refuse(ending, EARLIEST, "the first offset")
    if isinstance(starting, AtTime) and isinstance(ending, AtTime) and ending.time_ms < starting.time_ms:
        raise BadOption(ending.option, f"is {ending.time_ms}, before {starting.option}, which is {starting.time_ms}")
    first, last = _by_partition(starting), _by_partition(ending)
    if type(starting) is not type(ending):
        return  # offsets and times cannot be compared
    for partition, value in first.items():
        if 0 <= last.get(partition, value) < value:
            raise BadOption(ending.option, f"ends {partition} at {last[partition]}, before it begins at {value}")


def _refuse(position: Position, edge: int, what: str) -> None:
    if isinstance(position, AtEdge) and position.edge == edge:
        raise BadOption(position.option, f"cannot be {what} in a batch query: nothing would be read")
    for partition, value in _by_partition(position).items():
        if value == edge:
            raise BadOption(position.option, f"of {partition} cannot be {what} ({edge}) in a batch query")


def _by_partition(position: Position) -> Mapping[TopicPartition, int]:
    if isinstance(position, AtOffsets):
        return position.offsets
    return position.times_ms if isinstance(position, AtTimes) else {}
