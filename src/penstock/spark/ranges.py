"""Ranges of offsets: how large ones become tasks, and how a limit is shared out among partitions.

Both depend on offsets and options alone, never on the number of cores or on what else goes on: a batch that is run
again has the same tasks with the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.ids import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """From `start` to before `end`. How many records that is nobody knows before they are read: offsets have gaps."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def within(self, other: OffsetRange | None) -> OffsetRange:
        """What both have; nothing, from where this one starts, if there is no such thing."""
        if other is None:
            return OffsetRange(self.partition, self.start, self.start)
        start = min(max(self.start, other.start), self.end)
        return OffsetRange(self.partition, start, max(start, min(self.end, other.end)))


def split(
    ranges: Iterable[OffsetRange], at_least: int | None = None, max_offsets: int | None = None
) -> list[OffsetRange]:
    """Without those that are empty; in as many parts as `at_least`, if there are as many offsets, none larger than
    `max_offsets`. Parts are equal in size but for one offset within a partition, and nearly so across partitions.
    """
    whole = sorted(each for each in ranges if each.size > 0)
    if not whole:
        return []
    size = max(each.size for each in whole)
    if at_least is not None:
        size = _part_size([each.size for each in whole], at_least)
    if max_offsets is not None:
        size = min(size, max_offsets)
    return [part for each in whole for part in _parts(each, -(-each.size // size))]


def _part_size(sizes: Sequence[int], at_least: int) -> int:
    """The largest that gives so many parts, or 1."""
    low, high = 1, max(sizes)
    while low < high:
        size = (low + high + 1) // 2
        if sum(-(-each // size) for each in sizes) >= at_least:
            low = size
        else:
            high = size - 1
    return low


def _parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [OffsetRange(whole.partition, start, end) for start, end in itertools.pairwise(edges)]


def share_out(ranges: Iterable[OffsetRange], limit: int) -> dict[TopicPartition, int]:
    """Where each partition's batch ends, so that all have `limit` offsets together, each in proportion to what it has.

    Every partition gets on: where there are more of them than offsets to give, they take turns.
    """
    waiting = sorted(each for each in ranges if each.size > 0)
    total = sum(each.size for each in waiting)
    if total <= limit:
        return {each.partition: each.end for each in waiting}
    if limit < len(waiting):
        return _in_turns(waiting, limit)
    # One for each, and the rest in proportion; what rounding leaves goes to the largest remainders.
    rest, rest_total = limit - len(waiting), total - len(waiting)
    shares = {each: 1 + (each.size - 1) * rest // rest_total for each in waiting}
    left = limit - sum(shares.values())
    by_remainder = sorted(waiting, key=lambda each: (-((each.size - 1) * rest % rest_total), each))
    for each in by_remainder[:left]:
        shares[each] += 1
    return {each.partition: each.start + share for each, share in shares.items()}


def _in_turns(waiting: Sequence[OffsetRange], limit: int) -> dict[TopicPartition, int]:
    """One offset for `limit` partitions: the sum of all positions, which grows by that, says whose turn it is."""
    first = sum(each.start for each in waiting) % len(waiting)
    turns = {(first + number) % len(waiting) for number in range(limit)}
    return {each.partition: each.start + (number in turns) for number, each in enumerate(waiting)}


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Of every partition in `end`; one that `start` does not know is new, and begins at its first offset."""
    return [OffsetRange(partition, start.get(partition, 0), end[partition]) for partition in sorted(end)]
