"""The options of the source, by the names that Spark's Kafka source has for them.

Spark does not care about the case of options and hands them over in lower case. What is not known is refused by name:
an option that is silently ignored may be the one that somebody relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.core.config_values import nearest
from penstock.spark.errors import BadOption
from penstock.spark.offsets_json import EARLIEST, LATEST
from penstock.spark.positions import AtEdge, Position, check_batch, parse_position
from penstock.spark.subscriptions import PARSERS, Subscription
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
    "filterPushdown",
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
    _ISOLATION,
)
_SPELLED = {name.lower(): name for name in (*NAMES, *(_CLIENT + key for key in wire.KEYS))}
# What people may try who come from Spark's source, or who mean the sink.
_WHY_NOT = {
    "exactlyonce": "belongs to the sink",
    "fetchoffset.numretries": "is not known here: kafka.default.api.timeout.ms says how long offsets are asked for",
    "fetchoffset.retryintervalms": "is not known here: there is kafka.retry.backoff.ms",
    "groupidprefix": "is not known here: this source is in no consumer group",
    "kafka.auto.offset.reset": "is not known here: startingOffsets says where to begin",
    "kafka.enable.auto.commit": "is not known here: what was read is in the query's checkpoint",
    "kafka.group.id": "is not known here: this source is in no consumer group",
    "kafkaconsumer.polltimeoutms": "is not known here: there is kafka.default.api.timeout.ms",
    "path": "is not known here: topics have no path, use subscribe, and load() without an argument",
    "topic": "belongs to the sink: a source takes subscribe, subscribePattern or assign",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """`starting` and `ending` are None where nothing was said, until it is known whether it is a batch or a stream."""

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
    pushes_filters: bool

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> SourceOptions:
        """Raises BadOption, BadOffsets."""
        given = {key.lower(): value for key, value in values.items()}
        _check_names(given)
        read = _Values(given)
        return cls(
            settings=read.settings(),
            isolation=Isolation[read.choice(_ISOLATION, "read_committed", "read_uncommitted").upper()],
            subscription=read.subscription(),
            starting=parse_position("starting", given),
            ending=parse_position("ending", given),
            none_that_late_is_latest=read.choice("startingOffsetsByTimestampStrategy", "error", "latest") == "latest",
            max_offsets_per_trigger=read.number("maxOffsetsPerTrigger", _INT64_MAX),
            min_partitions=read.number("minPartitions", _INT32_MAX),
            max_records_per_partition=read.number("maxRecordsPerPartition", _INT64_MAX),
            fails_on_data_loss=read.choice("failOnDataLoss", "true", "false") == "true",
            includes_headers=read.choice("includeHeaders", "false", "true") == "true",
            pushes_filters=read.choice("filterPushdown", "false", "true") == "true",
        )

    def for_batch(self) -> SourceOptions:
        """Raises BadOption for what has no meaning in a batch; limits for triggers are ignored, as Spark does."""
        starting = self.starting or AtEdge("startingOffsets", EARLIEST)
        ending = self.ending or AtEdge("endingOffsets", LATEST)
        check_batch(starting, ending)
        return replace(self, starting=starting, ending=ending)

    def for_stream(self) -> SourceOptions:
        """Raises BadOption for what has no meaning in a stream."""
        if self.ending is not None:
            raise BadOption(self.ending.option, "is for batch queries: a stream has no end")
        return replace(self, starting=self.starting or AtEdge("startingOffsets", LATEST))


def _check_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name in _SPELLED:
            continue
        if name in _WHY_NOT:
            raise BadOption(name, _WHY_NOT[name])
        guess = nearest(name, _SPELLED)
        raise BadOption(name, f"is not known to the source{f': did you mean {_SPELLED[guess]}?' if guess else ''}")


class _Values:
    """Keys are in lower case."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

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

    def subscription(self) -> Subscription:
        given = [name for name in PARSERS if name.lower() in self._values]
        if not given:
            raise BadOption("subscribe", "is missing: say which topics to read, or use subscribePattern or assign")
        if len(given) > 1:
            raise BadOption(given[0], f"and {' and '.join(given[1:])} exclude each other")
        (name,) = given
        return PARSERS[name](self._values[name.lower()].strip())

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
