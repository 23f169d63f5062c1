"""Plans to reset a group's offsets, without a broker."""

from __future__ import annotations

import json

import pytest

from penstock.cli.group_offsets import (
    BadPlan,
    LogRange,
    Move,
    Reset,
    ResetKind,
    Selection,
    parse_file,
    parse_selection,
    parse_time_ms,
    plan_reset,
    select,
)
from penstock.cli.group_view import PartitionView, assignment_text, partitions_of_group
from penstock.core.ids import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
LOGS = {FIRST: LogRange(start=10, end=50, at_time=30), SECOND: LogRange(start=0, end=5)}


@pytest.mark.parametrize(
    ("reset", "after"),
    [
        (Reset(ResetKind.EARLIEST), [10, 0]),
        (Reset(ResetKind.LATEST), [50, 5]),
        (Reset(ResetKind.TIME, 1_000), [30, 5]),
        (Reset(ResetKind.OFFSET, 4), [10, 4]),
        (Reset(ResetKind.SHIFT, 3), [23, 5]),
        (Reset(ResetKind.SHIFT, -15), [10, 0]),
        (Reset(ResetKind.FILE, offsets={FIRST: 49, SECOND: -1}), [49, 0]),
    ],
    ids=lambda value: value.kind.name if isinstance(value, Reset) else "",
)
def test_given_each_way_to_reset_then_offsets_are_inside_the_log(reset: Reset, after: list[int]) -> None:
    plan = plan_reset(reset, [FIRST, SECOND], {FIRST: 20, SECOND: 4}, LOGS)

    assert plan.offsets == dict(zip((FIRST, SECOND), after, strict=True))


def test_given_offsets_outside_the_log_then_each_is_warned_about() -> None:
    plan = plan_reset(Reset(ResetKind.OFFSET, 7), [FIRST, SECOND], {FIRST: 20}, LOGS)

    assert plan.moves == [Move(FIRST, 20, 10), Move(SECOND, None, 5)]
    assert [move.messages for move in plan.moves] == [-10, None]
    assert plan.warnings == [
        "orders-0 begins at offset 10: taking that, not 7",
        "orders-1 ends at offset 5: taking that, not 7",
    ]


def test_given_a_time_after_the_last_record_then_the_end_is_taken_with_a_warning() -> None:
    plan = plan_reset(Reset(ResetKind.TIME, 1_000), [SECOND], {}, LOGS)

    assert plan.warnings == ["orders-1 has no record of that time or later: taking its end, 5"]


def test_given_partitions_without_a_commit_then_shifting_names_them_all() -> None:
    with pytest.raises(BadPlan, match="orders-0, orders-1"):
        plan_reset(Reset(ResetKind.SHIFT, 1), [FIRST, SECOND], {}, LOGS)


def test_given_topics_and_partitions_then_they_are_selected_once_and_in_order() -> None:
    assert parse_selection("orders") == Selection("orders", None)
    assert parse_selection("orders:2,0") == Selection("orders", [2, 0])

    chosen = select([parse_selection("orders:1"), parse_selection("orders")], {"orders": [0, 1]})

    assert chosen == [FIRST, SECOND]


def test_given_unknown_topics_and_partitions_then_one_error_names_them_all() -> None:
    selections = [Selection("orders", [1, 7, 8]), Selection("nope", None), Selection("none", [0, 1])]

    with pytest.raises(BadPlan) as refused:
        select(selections, {"orders": [0, 1]})

    assert str(refused.value) == (
        'no topic "none"; no topic "nope"; '
        'topic "orders" has no partition 7: it has 2, from 0; topic "orders" has no partition 8: it has 2, from 0'
    )


@pytest.mark.parametrize("text", ["", ":0", "orders:", "orders:a", "orders:0,,1", "orders:-1"])
def test_given_a_choice_that_is_none_then_it_is_refused(text: str) -> None:
    with pytest.raises(BadPlan, match="expected TOPIC"):
        parse_selection(text)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T00:00:01.234", 1_234),
        ("1970-01-01T00:00:01.234Z", 1_234),
        ("1970-01-01T01:00:00.500+01:00", 500),
        ("1970-01-01T02:30:00+0230", 0),
        ("1970-01-02", 86_400_000),
        ("1234", 1_234),
        ("1969-12-31T23:59:59.999", 0),
        ("9" * 30, 2**63 - 1),
    ],
)
def test_given_times_in_their_forms_then_they_are_milliseconds_and_utc_without_a_zone(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "noon", "2026-13-01T00:00:00", "-5", "1.5"])
def test_given_a_time_that_is_none_then_it_is_refused(text: str) -> None:
    with pytest.raises(BadPlan, match="expected a time"):
        parse_time_ms(text)


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,5\norders,1,6\n",
        'topic,partition,offset\r\norders, 0, 5\r\n\r\n"orders",1,6',
        "group,orders,0,5\nother,orders,0,9\ngroup,orders,1,6",
        json.dumps({"group": "x", "offsets": [{"topic": "orders", "partition": n, "after": 5 + n} for n in (0, 1)]}),
    ],
    ids=["lines", "header", "groups", "json"],
)
def test_given_a_file_in_its_forms_then_its_offsets_are_found(text: str) -> None:
    assert parse_file(text, "group") == {FIRST: 5, SECOND: 6}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'no offsets for group "group"'),
        ("other,orders,0,5", 'no offsets for group "group"'),
        ("orders,0,5\norders,zero,5", "line 2: expected topic,partition,offset"),
        ("orders,0", "line 1: expected topic,partition,offset"),
        ("xx\norders,0,5\norders,a,b", "line 1, 3: expected topic,partition,offset"),
        ("orders,0,5\norders,0,6", "orders-0 is in it twice"),
        ("{", "not the JSON of a dry run"),
        ('{"offsets": [{"topic": "orders", "partition": 0}]}', "not the JSON of a dry run"),
        ('{"offsets": [{"topic": "orders", "partition": 0, "after": 1.5}]}', "not the JSON of a dry run"),
        ('{"offsets": 5}', "not the JSON of a dry run"),
        ("x" * 200_000, "not CSV"),
    ],
)
def test_given_a_file_with_a_mistake_then_it_is_named(text: str, said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        parse_file(text, "group")


def test_given_a_group_then_every_partition_of_its_topics_is_looked_at_and_nothing_committed_is_no_lag() -> None:
    gone = TopicPartition("gone", 3)

    assert partitions_of_group([FIRST], [gone], {"orders": [0, 1], "other": [0]}) == [gone, FIRST, SECOND]
    assert PartitionView(FIRST, 5, 50, None).lag == 45
    assert PartitionView(FIRST, None, 50, "member").lag is None
    assert PartitionView(gone, 5, None, None).lag is None
    assert PartitionView(FIRST, 60, 50, None).lag == 0
    assert assignment_text([SECOND, gone, FIRST]) == "gone:3 orders:0,1"
