"""Conditions that say which offsets need not be fetched: never one that a row would have met."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.core.ids import TopicPartition
from penstock.spark.filters import Pruning
from penstock.spark.ranges import OffsetRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WHOLE = OffsetRange(TopicPartition("t", 1), 10, 20)

Compared = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    """As Spark evaluates it, for columns that are never null."""
    if isinstance(condition, Not):
        return not holds(condition.child, row)
    if isinstance(condition, In):
        return row[condition.attribute[0]] in [each for each in condition.value if each is not None]
    if isinstance(condition, Compared):
        value = row[condition.attribute[0]]
        return condition.value is not None and COMPARISONS[type(condition)](value, condition.value)
    return True


def conditions(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    maybe = st.one_of(values, st.none())
    compared = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(list(COMPARISONS)), maybe)
    listed = st.builds(lambda value: In((column,), tuple(value)), st.lists(maybe, max_size=4))
    return st.one_of(compared, listed, st.just(IsNotNull((column,))), compared.map(Not))


topics = st.sampled_from(("a", "b", "c"))
numbers = st.integers(-2, 7)
times = st.integers(-3_000, 9_000).map(lambda microseconds: EPOCH + timedelta(microseconds=microseconds))
any_conditions = st.lists(
    st.one_of(
        conditions("topic", topics),
        conditions("partition", numbers),
        conditions("offset", numbers),
        conditions("timestamp", times),
    ),
    max_size=4,
)


@given(any_conditions, topics, st.integers(0, 5), st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_given_any_conditions_when_pruned_then_every_row_that_meets_them_is_still_read(
    filters: list[Filter], topic: str, partition: int, times_ms: list[int]
) -> None:
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": EPOCH + timedelta(milliseconds=time_ms),
        }
        for offset, time_ms in enumerate(times_ms)
    ]
    wanted = {row["offset"] for row in rows if all(holds(each, row) for each in filters)}

    pruning = Pruning.by(filters)
    whole = OffsetRange(TopicPartition(topic, partition), 0, len(rows))
    read = set[int]()
    if pruning.wants(whole.partition):
        late = [at for at, time_ms in enumerate(times_ms) if time_ms >= (pruning.from_ms or 0)]
        cut = pruning.cut(whole, late[0] if late else whole.end)
        read = set(range(cut.start, cut.end))

    assert wanted <= read


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        (EqualTo(("offset",), 12), (12, 13)),
        (In(("offset",), (15, 12, None)), (12, 16)),
        (GreaterThan(("offset",), 12), (13, 20)),
        (GreaterThanOrEqual(("offset",), 12), (12, 20)),
        (LessThan(("offset",), 12), (10, 12)),
        (LessThanOrEqual(("offset",), 12), (10, 13)),
        (LessThan(("offset",), 5), (10, 10)),
        (GreaterThan(("offset",), 2**63 - 1), (2**63, 2**63)),
        (Not(EqualTo(("offset",), 12)), (10, 20)),
        (EqualTo(("offset",), None), (10, 20)),
        (EqualTo(("offset",), True), (10, 20)),
        (EqualTo(("value", "offset"), 12), (10, 20)),
    ],
)
def test_given_a_condition_on_offsets_when_a_range_is_cut_then_only_what_it_allows_is_left(
    condition: Filter, left: tuple[int, int]
) -> None:
    cut = Pruning.by([condition]).cut(WHOLE)

    assert (cut.start, cut.end) == left


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo(("partition",), 1), {1}),
        (EqualNullSafe(("partition",), 1), {1}),
        (In(("partition",), (0, 2, None)), {0, 2}),
        (GreaterThan(("partition",), 1), {2, 3}),
        (LessThanOrEqual(("partition",), 1), {0, 1}),
        (EqualTo(("topic",), "t"), {0, 1, 2, 3}),
        (EqualTo(("topic",), "other"), set()),
        (StringStartsWith(("topic",), "o"), {0, 1, 2, 3}),
    ],
)
def test_given_a_condition_on_partitions_when_asked_then_only_those_it_allows_are_read(
    condition: Filter, wanted: set[int]
) -> None:
    pruning = Pruning.by([condition])

    assert {number for number in range(4) if pruning.wants(TopicPartition("t", number))} == wanted


@pytest.mark.parametrize(
    ("condition", "from_ms"),
    [
        (GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(milliseconds=5)), 5),
        (GreaterThanOrEqual(("timestamp",), EPOCH + timedelta(microseconds=5_001)), 6),
        (GreaterThan(("timestamp",), EPOCH + timedelta(milliseconds=5)), 6),
        (GreaterThan(("timestamp",), EPOCH + timedelta(microseconds=5_001)), 6),
        (EqualTo(("timestamp",), EPOCH + timedelta(milliseconds=5)), 5),
        (LessThan(("timestamp",), EPOCH + timedelta(milliseconds=5)), None),
        (GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))), 0),
        (GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1, 2)), None),  # of which zone?
        (GreaterThanOrEqual(("timestamp",), 5), None),
    ],
)
def test_given_a_condition_on_time_when_pruned_then_it_is_the_first_whole_millisecond(
    condition: Filter, from_ms: int | None
) -> None:
    assert Pruning.by([condition]).from_ms == from_ms
