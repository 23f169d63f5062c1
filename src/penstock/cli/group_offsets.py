"""What resetting a group's offsets would do, decided before anything is done.

Nothing here asks a broker or writes anything: a plan is whole and valid, or there is none. As in Kafka's own tool, an
offset outside the log becomes the nearest one inside it, and a time without a zone is UTC.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

from penstock.core.ids import TopicPartition

Offsets = dict[TopicPartition, int]

_LAST_TIME_MS = 2**63 - 1

_FIELDS = ["topic", "partition", "offset"]
# Kafka's tool writes the group in front when it was asked about several.
_FIELDS_WITH_GROUP = ["group", *_FIELDS]


class BadPlan(ValueError):
    """Nothing can be planned; the message says why."""


class ResetKind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    TIME = auto()
    OFFSET = auto()
    SHIFT = auto()
    FILE = auto()


@dataclass(frozen=True, slots=True)
class Reset:
    """Where to go: `number` is the offset, the shift or the time in milliseconds; `offsets` are those of a file."""

    kind: ResetKind
    number: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogRange:
    """A partition's log as it is now; `at_time` is the first offset of the time asked for, None when there is none."""

    start: int
    end: int
    at_time: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's committed offset; `before` is None when nothing was committed."""

    partition: TopicPartition
    before: int | None
    after: int

    @property
    def messages(self) -> int | None:
        """How far it moves: below zero messages are read again, above zero they are skipped."""
        return None if self.before is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class ResetPlan:
    moves: Sequence[Move]
    warnings: Sequence[str]

    @property
    def offsets(self) -> Offsets:
        return {move.partition: move.after for move in self.moves}


@dataclass(frozen=True, slots=True)
class Selection:
    """A topic, and which of its partitions; None for all."""

    topic: str
    partitions: Sequence[int] | None


def parse_selection(text: str) -> Selection:
    """`orders`, or `orders:0,1,2`; a topic's name has no colon in it."""
    topic, colon, listed = text.partition(":")
    numbers = listed.split(",") if colon else []
    if not topic or not all(number.isascii() and number.isdigit() for number in numbers):
        raise BadPlan(f'"{text}": expected TOPIC, or TOPIC:0,1,2')
    return Selection(topic, [int(number) for number in numbers] if colon else None)


def parse_time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return min(int(text), _LAST_TIME_MS)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadPlan(f'"{text}": expected a time like 2026-01-31T12:00:00.000Z, or epoch milliseconds') from None
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    # Times below zero are not times on the wire: -1 and -2 ask for the end and the start.
    return max(0, round(zoned.timestamp() * 1_000))


def parse_file(text: str, group: str) -> Offsets:
    """Lines of Kafka's tool (`topic,partition,offset`, with the group in front or not), or the JSON of a dry run."""
    offsets: Offsets = {}
    try:
        for partition, offset in _json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text, group):
            if partition in offsets:
                raise BadPlan(f"{partition} is in it twice")
            offsets[partition] = offset
    except csv.Error as error:
        raise BadPlan(f"it is not CSV: {error}") from None
    if not offsets:
        raise BadPlan(f'it has no offsets for group "{group}"')
    return offsets


def _csv_rows(text: str, group: str) -> Iterable[tuple[TopicPartition, int]]:
    bad_lines = []
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 1 and cells in (_FIELDS, _FIELDS_WITH_GROUP)):
            continue
        if len(cells) == len(_FIELDS_WITH_GROUP) and cells.pop(0) != group:
            continue
        try:
            topic, partition, offset = cells
            yield TopicPartition(topic, int(partition)), int(offset)
        except ValueError:
            bad_lines.append(str(number))
    if bad_lines:
        raise BadPlan(f"line {', '.join(bad_lines)}: expected topic,partition,offset")


def _json_rows(text: str) -> Iterable[tuple[TopicPartition, int]]:
    try:
        rows = json.loads(text)["offsets"]
        return [(TopicPartition(str(row["topic"]), _whole(row["partition"])), _whole(row["after"])) for row in rows]
    except (ValueError, KeyError, TypeError):
        raise BadPlan("it is not the JSON of a dry run, which is what reset-offsets prints with --json") from None


def _whole(number: object) -> int:
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    raise ValueError(f"not a whole number: {number!r}")


def select(selections: Iterable[Selection], known: Mapping[str, Collection[int]]) -> list[TopicPartition]:
    """The partitions that were asked for, all of them known."""
    wanted: set[TopicPartition] = set()
    for selection in selections:
        partitions = known.get(selection.topic, [0]) if selection.partitions is None else selection.partitions
        wanted.update(TopicPartition(selection.topic, partition) for partition in partitions)
    check_known(wanted, known)
    return sorted(wanted)


def check_known(partitions: Iterable[TopicPartition], known: Mapping[str, Collection[int]]) -> None:
    """Names everything that is missing at once, so that a command is corrected once."""
    missing = sorted(
        {partition for partition in partitions if partition.partition not in known.get(partition.topic, ())}
    )
    no_topic = {topic: f'no topic "{topic}"' for topic, _ in missing if topic not in known}
    no_partition = [
        f'topic "{topic}" has no partition {partition}: it has {len(known[topic])}, from 0'
        for topic, partition in missing
        if topic in known
    ]
    if missing:
        raise BadPlan("; ".join([*no_topic.values(), *no_partition]))


def plan_reset(
    reset: Reset,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, LogRange],
) -> ResetPlan:
    if reset.kind is ResetKind.SHIFT:
        _check_committed(partitions, committed)
    moves, warnings = [], []
    for partition in partitions:
        log = logs[partition]
        wanted = _wanted_offset(reset, partition, committed, log)
        after = min(max(log.end if wanted is None else wanted, log.start), log.end)
        if wanted is None:
            warnings.append(f"{partition} has no record of that time or later: taking its end, {after}")
        elif after != wanted:
            there = "begins" if wanted < log.start else "ends"
            warnings.append(f"{partition} {there} at offset {after}: taking that, not {wanted}")
        moves.append(Move(partition, committed.get(partition), after))
    return ResetPlan(moves, warnings)


def _check_committed(partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]) -> None:
    without = [str(partition) for partition in partitions if partition not in committed]
    if without:
        raise BadPlan(
            f"no committed offset to shift in {', '.join(without)}: name the other partitions with --topic TOPIC:0,1,2"
        )


def _wanted_offset(
    reset: Reset, partition: TopicPartition, committed: Mapping[TopicPartition, int], log: LogRange
) -> int | None:
    """None: there is no record of the time that was asked for."""
    match reset.kind:
        case ResetKind.EARLIEST:
            return log.start
        case ResetKind.LATEST:
            return log.end
        case ResetKind.TIME:
            return log.at_time
        case ResetKind.OFFSET:
            return reset.number
        case ResetKind.SHIFT:
            return committed[partition] + reset.number
        case ResetKind.FILE:
            return reset.offsets[partition]
