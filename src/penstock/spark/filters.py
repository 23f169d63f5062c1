"""What the conditions of a query say about which offsets have to be fetched at all.

Nothing is decided about a record here: Spark looks at every row again. So a condition that is not understood is left
to Spark, and a bound may be too wide but never too narrow. Conditions come as a list of which all must hold; no column
that is looked at here is ever null, so a comparison with null holds for no row and says nothing that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.core.ids import TopicPartition
from penstock.spark.ranges import OffsetRange

_INT64_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_MS = 1_000
_US_PER_SECOND = 1_000_000
_SECONDS_PER_DAY = 86_400

_Comparison = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In


@dataclass(frozen=True, slots=True)
class Between:
    """Whole numbers from `first` to before `end`."""

    first: int = 0
    end: int = _INT64_MAX

    def within(self, other: Between) -> Between:
        return Between(max(self.first, other.first), min(self.end, other.end))

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.end


@dataclass(frozen=True, slots=True)
class Pruning:
    """None: any. `from_ms`: no record that is older is wanted."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_bounds: Between = Between()
    offsets: Between = Between()
    from_ms: int | None = None

    @classmethod
    def by(cls, filters: Iterable[Filter]) -> Pruning:
        pruning = cls()
        for each in filters:
            if isinstance(each, _Comparison):
                pruning = pruning._and(each)
        return pruning

    def _and(self, each: _Comparison) -> Pruning:
        if each.attribute == ("topic",) and (names := _texts(each)) is not None:
            return replace(self, topics=names if self.topics is None else self.topics & names)
        if each.attribute == ("partition",):
            numbers = _listed(each)
            if numbers is None:
                return replace(self, partition_bounds=self.partition_bounds.within(_bounds(each)))
            return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)
        if each.attribute == ("offset",):
            return replace(self, offsets=self.offsets.within(_bounds(each)))
        if each.attribute == ("timestamp",) and (from_ms := _first_ms(each)) is not None:
            return replace(self, from_ms=from_ms if self.from_ms is None else max(self.from_ms, from_ms))
        return self

    def wants(self, partition: TopicPartition) -> bool:
        return (
            (self.topics is None or partition.topic in self.topics)
            and (self.partitions is None or partition.partition in self.partitions)
            and partition.partition in self.partition_bounds
        )

    def cut(self, whole: OffsetRange, first: int = 0) -> OffsetRange:
        """`first` is the offset of the first record that is not too old."""
        start = max(whole.start, self.offsets.first, first)
        return OffsetRange(whole.partition, start, max(start, min(whole.end, self.offsets.end)))


def _choices(each: _Comparison) -> list[object]:
    """What the column may be, if the condition lists it. A null in a list makes no row match."""
    if isinstance(each, In):
        return [value for value in each.value if value is not None]
    return [each.value] if isinstance(each, EqualTo | EqualNullSafe) and each.value is not None else []


def _texts(each: _Comparison) -> frozenset[str] | None:
    choices = _choices(each)
    texts = frozenset(value for value in choices if isinstance(value, str))
    return texts if choices and len(texts) == len(set(choices)) else None


def _listed(each: _Comparison) -> frozenset[int] | None:
    choices = _choices(each)
    numbers = frozenset(value for value in choices if type(value) is int)
    return numbers if choices and len(numbers) == len(set(choices)) else None


def _bounds(each: _Comparison) -> Between:
    numbers = _listed(each)
    if numbers is not None:
        return Between(min(numbers), max(numbers) + 1)
    value = each.value
    if type(value) is not int:
        return Between()
    if isinstance(each, GreaterThan):
        return Between(first=value + 1)
    if isinstance(each, GreaterThanOrEqual):
        return Between(first=value)
    if isinstance(each, LessThan):
        return Between(end=value)
    return Between(end=value + 1) if isinstance(each, LessThanOrEqual) else Between()


def _first_ms(each: _Comparison) -> int | None:
    """Records have whole milliseconds, conditions microseconds."""
    if isinstance(each, LessThan | LessThanOrEqual):
        return None
    times = [_microseconds(value) for value in _choices(each) or [each.value]]
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return None
    first = min(known)
    return first // _US_PER_MS + 1 if isinstance(each, GreaterThan) else -(-first // _US_PER_MS)


def _microseconds(value: object) -> int | None:
    """Without a time zone it is not known which moment is meant."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    return (since.days * _SECONDS_PER_DAY + since.seconds) * _US_PER_SECOND + since.microseconds
