"""Ranges become tasks, and a limit is shared out: what must hold for any offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import TopicPartition
from penstock.spark.ranges import OffsetRange, ranges_between, share_out, split


def a_range(number: int, start: int, size: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", number), start, start + size)


@st.composite
def some_ranges(draw: st.DrawFn, max_size: int = 10_000) -> list[OffsetRange]:
    sizes = draw(st.lists(st.integers(0, max_size), max_size=8))
    return [a_range(number, draw(st.integers(0, 2**40)), size) for number, size in enumerate(sizes)]


def total(ranges: Iterable[OffsetRange]) -> int:
    return sum(each.size for each in ranges)


@given(some_ranges(), st.none() | st.integers(1, 200), st.none() | st.integers(1, 5_000))
def test_given_any_ranges_when_split_then_every_offset_is_in_one_part_and_parts_are_as_asked(
    ranges: list[OffsetRange], at_least: int | None, max_offsets: int | None
) -> None:
    parts = split(ranges, at_least, max_offsets)

    assert all(part.size > 0 for part in parts)
    for whole in ranges:
        own = [part for part in parts if part.partition == whole.partition]
        edges = [whole.start, *(part.end for part in own)] if own else [whole.start]
        assert [part.start for part in own] == edges[:-1]
        assert edges[-1] == (whole.end if own else whole.start)
        assert bool(own) == (whole.size > 0)
        assert not own or max(part.size for part in own) - min(part.size for part in own) <= 1
    assert len(parts) >= min(at_least or 0, total(ranges))
    assert all(part.size <= (max_offsets or part.size) for part in parts)
    assert parts == split(list(reversed(ranges)), at_least, max_offsets)


@given(some_ranges())
def test_given_no_options_when_split_then_each_partition_is_one_task(ranges: list[OffsetRange]) -> None:
    assert split(ranges) == sorted(each for each in ranges if each.size)


def test_given_one_large_partition_when_more_tasks_are_wanted_then_only_that_one_is_split() -> None:
    parts = split([a_range(0, 0, 900), a_range(1, 50, 100)], at_least=4)

    assert parts == [a_range(0, 0, 300), a_range(0, 300, 300), a_range(0, 600, 300), a_range(1, 50, 100)]


@given(some_ranges(), st.integers(1, 20_000))
def test_given_any_backlog_when_a_limit_is_shared_out_then_it_is_used_up_and_nobody_gets_more_than_there_is(
    ranges: list[OffsetRange], limit: int
) -> None:
    ends = share_out(ranges, limit)

    waiting = {each.partition: each for each in ranges if each.size}
    assert ends.keys() == waiting.keys()
    shares = {partition: end - waiting[partition].start for partition, end in ends.items()}
    assert sum(shares.values()) == min(limit, total(ranges))
    for partition, share in shares.items():
        assert 0 <= share <= waiting[partition].size
        assert share > 0 or limit < len(waiting)
    if limit >= len(waiting) and total(ranges) > limit:
        # In proportion, but for the one that each of them has and one that rounding gives.
        for partition, share in shares.items():
            exact = limit * waiting[partition].size / total(ranges)
            assert abs(share - exact) <= len(waiting) + 1


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 12), st.data())
def test_given_a_limit_below_the_number_of_partitions_when_batches_follow_then_all_partitions_get_on_in_turns(
    sizes: list[int], limit: int, data: st.DataObject
) -> None:
    starts = {TopicPartition("t", number): data.draw(st.integers(0, 1_000)) for number in range(len(sizes))}
    ends = {partition: starts[partition] + 1_000 + size for partition, size in zip(starts, sizes, strict=True)}
    positions = dict(starts)

    rounds = -(-len(sizes) // limit) * 3
    for _ in range(rounds):
        positions |= share_out(ranges_between(positions, ends), limit)

    advanced = Counter({partition: positions[partition] - starts[partition] for partition in starts})
    assert sum(advanced.values()) == rounds * limit
    assert min(advanced.values()) >= 1
    if limit < len(sizes):
        assert max(advanced.values()) - min(advanced.values()) <= 1


@given(some_ranges(max_size=300), st.integers(1, 200))
def test_given_a_limit_when_batches_follow_until_there_is_nothing_left_then_all_was_read_in_as_many_as_needed(
    ranges: list[OffsetRange], limit: int
) -> None:
    positions = {each.partition: each.start for each in ranges}
    ends = {each.partition: each.end for each in ranges}

    batches = 0
    while positions != ends:
        positions |= share_out(ranges_between(positions, ends), limit)
        batches += 1

    assert batches == -(-total(ranges) // limit)


def test_given_a_partition_that_was_not_there_when_ranges_are_made_then_it_begins_at_0() -> None:
    old, new = TopicPartition("t", 0), TopicPartition("t", 1)

    assert ranges_between({old: 5}, {new: 3, old: 9}) == [OffsetRange(old, 5, 9), OffsetRange(new, 0, 3)]
