"""The options of the source, by the names that Spark's Kafka source has for them.

Spark does not care about the case of options and hands them over in lower case. What is not known is refused by name:
an option that is silently ignored may be the one that somebody relies on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.config_values import nearest
from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.errors import BadOffsets, BadOption
from penstock.spark.offsets_json import EARLIEST, LATEST, parse_offsets, parse_partitions, parse_times
from penstock.wire import settings as wire
from penstock.wire.errors import BadSettings
from penstock.wire.offsets import Isolation
from penstock.wire.settings import ClientSettings

_CLIENT = "kafka."
_ISOLATION = "kafka.isolation.level"
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

NAMES = (
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
)
_SPELLED = {name.lower(): name for name in NAMES} | {
    name: name for name in (_ISOLATION, *(_CLIENT + key for key in wire.KEYS))
}
# What people who come from Spark's source, or mean the sink, may try.
_WHY_NOT = {
    "exactlyonce": "belongs to the sink",
    "fetchoffset.numretries": "is not known here: kafka.default.api.timeout.ms says how long offsets are asked for",
    "fetchoffset.retryintervalms": "is not known here: there is kafka.retry.backoff.ms",
    "groupidprefix": "is not known here: this source is in no consumer group",
    "kafka.auto.offset.reset": "is not known here: startingOffsets says where to begin",
    "kafka.enable.auto.commit": "is not known here: what was read is in the query's checkpoint",
    "kafka.group.id": "is not known here: this source is in no consumer group",
    "kafkaconsumer.polltimeoutms": "is not known here: there is kafka.default.api.timeout.ms",
    "topic": "belongs to the sink: a source takes subscribe, subscribePattern or assign",
}


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of these."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.names)


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of topics whose whole name matches."""

    regex: str

    def __str__(self) -> str:
        return self.regex


@dataclass(frozen=True, slots=True)
class Partitions:
    """These, and no others."""

    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.partitions))


Subscription = Topics | Pattern | Partitions


@dataclass(frozen=True, slots=True)
class AtEdge:
    """EARLIEST or LATEST, of every partition."""

    edge: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset, EARLIEST or LATEST by partition; `option` is where it was said."""

    option: str
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, TopicId]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Milliseconds by partition."""

    option: str
    times_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTime:
    """Milliseconds, the same for every partition."""

    option: str
    time_ms: int


Position = AtEdge | AtOffsets | AtTimes | AtTime


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """`starting` and `ending` are None where nothing was said and the kind of query is not known yet."""

    settings: ClientSettings
    isolation: Isolation
    subscription: Subscription
    starting: Position | None
    ending: Position | None
    none_that_late_is_latest: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fails_on_data_loss: bool
    includes_headers: bool

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> SourceOptions:
        """Raises BadOption, BadOffsets."""
        read = _Values({key.lower(): value for key, value in values.items()})
        read.check_names()
        return cls(
            settings=read.settings(),
            isolation=read.isolation(),
            subscription=read.subscription(),
            starting=read.position("starting"),
            ending=read.position("ending"),
            none_that_late_is_latest=read.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
            max_offsets_per_trigger=read.number("maxOffsetsPerTrigger", _INT64_MAX),
            min_partitions=read.number("minPartitions", _INT32_MAX),
            max_records_per_partition=read.number("maxRecordsPerPartition", _INT64_MAX),
            fails_on_data_loss=read.choice("failOnDataLoss", "true", "false") == "true",
            includes_headers=read.choice("includeHeaders", "false", "true") == "true",
        )

    def for_batch(self) -> SourceOptions:
        """Raises BadOption for what has no meaning in a batch."""
        starting, ending = self.starting or AtEdge(EARLIEST), self.ending or AtEdge(LATEST)
        _refuse_edge(starting, LATEST, "startingOffsets", "latest")
        _refuse_edge(ending, EARLIEST, "endingOffsets", "earliest")
        _check_order(starting, ending)
        return replace(self, starting=starting, ending=ending)

    def for_stream(self) -> SourceOptions:
        """Raises BadOption for what has no meaning in a stream."""
        if self.ending is not None:
            option = "endingOffsets" if isinstance(self.ending, AtEdge) else self.ending.option
            raise BadOption(option, "is for batch queries: a stream has no end")
        return replace(self, starting=self.starting or AtEdge(LATEST))


def _refuse_edge(position: Position, edge: int, option: str, name: str) -> None:
    if isinstance(position, AtEdge) and position.edge == edge:
        raise BadOption(option, f"cannot be {name} in a batch query: nothing would be read")
    if isinstance(position, AtOffsets):
        for partition, offset in position.offsets.items():
            if offset == edge:
                raise BadOption(option, f"of {partition} cannot be {name} ({edge}) in a batch query")


def _check_order(starting: Position, ending: Position) -> None:
    """Where both say the same kind of thing of a partition."""
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        first, last, what = starting.offsets, ending.offsets, "offset"
    elif isinstance(starting, AtTimes) and isinstance(ending, AtTimes):
        first, last, what = starting.times_ms, ending.times_ms, "time"
    elif isinstance(starting, AtTime) and isinstance(ending, AtTime) and starting.time_ms > ending.time_ms:
        raise BadOption(ending.option, f"is {ending.time_ms}, before {starting.option} {starting.time_ms}")
    else:
        return
    for partition, value in first.items():
        if 0 <= last.get(partition, value) < value:
            raise BadOption(
                ending.option,
                f"ends {partition} at {what} {last[partition]}, before it begins at {value}",
            )


class _Values:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def check_names(self) -> None:
        for name in self._values:
            if name in _SPELLED:
                continue
            if name in _WHY_NOT:
                raise BadOption(name, _WHY_NOT[name])
            guess = nearest(name, _SPELLED)
            raise BadOption(name, f"is not known to the source{f': did you mean {_SPELLED[guess]}?' if guess else ''}")

    def settings(self) -> ClientSettings:
        client = {
            name.removeprefix(_CLIENT): value
            for name, value in self._values.items()
            if name.startswith(_CLIENT) and name != _ISOLATION
        }
        try:
            return ClientSettings.parse(client)
        except BadSettings as bad:
            raise BadOption(_CLIENT + bad.key, bad.problem) from None

    def isolation(self) -> Isolation:
        return Isolation[self.choice(_ISOLATION, "read_committed", "read_uncommitted").upper()]

    def subscription(self) -> Subscription:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in self._values]
        if not given:
            raise BadOption("subscribe", "is missing: say which topics to read, or use subscribePattern or assign")
        if len(given) > 1:
            raise BadOption(given[0], f"and {' and '.join(given[1:])} exclude each other")
        (name,) = given
        value = self._values[name.lower()].strip()
        if name == "subscribe":
            return _topics(value)
        return _pattern(value) if name == "subscribePattern" else self._partitions(value)

    def _partitions(self, value: str) -> Partitions:
        try:
            return Partitions(tuple(parse_partitions(value, "assign")))
        except BadOffsets as bad:
            raise BadOption("assign", f'takes JSON as {{"topic": [0, 1]}}: {bad}') from None

    def position(self, edge: str) -> Position | None:
        """The most special that was said, as in Spark: a time for all, then times, then offsets."""
        time, times, offsets = f"{edge}Timestamp", f"{edge}OffsetsByTimestamp", f"{edge}Offsets"
        try:
            if (text := self._text(time)) is not None:
                return AtTime(time, _milliseconds(time, text))
            if (text := self._text(times)) is not None:
                return AtTimes(times, parse_times(text, times))
            if (text := self._text(offsets)) is not None:
                return _offsets(offsets, text)
        except BadOffsets as bad:
            raise BadOption(offsets, f"cannot be read: {bad}") from None
        return None

    def number(self, name: str, highest: int) -> int | None:
        text = self._text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= highest):
            raise BadOption(name, f'takes a whole number above 0, not "{text}"')
        return int(text)

    def choice(self, name: str, default: str, other: str) -> str:
        text = (self._text(name) or default).lower()
        if text not in (default, other):
            raise BadOption(name, f'takes {default} or {other}, not "{text}"')
        return text

    def _text(self, name: str) -> str | None:
        text = self._values.get(name.lower())
        return None if text is None else text.strip()


def _topics(value: str) -> Topics:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise BadOption("subscribe", f'names no topic: "{value}"')
    return Topics(names)


def _pattern(value: str) -> Pattern:
    if not value:
        raise BadOption("subscribePattern", "is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption("subscribePattern", f'is not a regular expression: {error}, in "{value}"') from None
    return Pattern(value)


def _offsets(option: str, text: str) -> AtEdge | AtOffsets:
    edges = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in edges:
        return AtEdge(edges[text.lower()])
    if not text.startswith("{"):
        raise BadOption(option, f'takes earliest, latest or JSON as {{"topic": {{"0": 23}}}}, not "{text}"')
    found = parse_offsets(text, option)
    return AtOffsets(option, found.offsets, found.topic_ids)


def _milliseconds(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _INT64_MAX):
        raise BadOption(option, f'takes milliseconds since 1970, not "{text}"')
    return int(text)
