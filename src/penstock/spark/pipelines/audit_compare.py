"""Two measured copies of a partition, compared: which offsets only one of them has, and where contents differ.

Pure: it knows stretches, not where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.spark.pipelines.audit_measure import STRETCH, Stretch

Bits = NDArray[np.bool_]
Ranges = tuple[tuple[int, int], ...]
_RANGES_TOLD = 100


@dataclass(frozen=True, slots=True)
class Offsets:
    """How many, and the first ranges of them, each with its last offset."""

    count: int = 0
    ranges: Ranges = ()

    def told(self) -> str:
        shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges[:5])
        return shown + (", ..." if len(self.ranges) > 5 or self.count > _covered(self.ranges) else "")


@dataclass(frozen=True, slots=True)
class Difference:
    """`stretches` are those that are not the same: whose offsets differ, or whose contents do."""

    missing: Offsets
    extra: Offsets
    stretches: tuple[int, ...]


def present(stretch: Stretch | None) -> Bits:
    """Whether each offset of the stretch is there."""
    if stretch is None:
        return np.zeros(STRETCH, dtype=np.bool_)
    if stretch.present is not None:
        return np.unpackbits(np.frombuffer(stretch.present, dtype=np.uint8), bitorder="little")[:STRETCH].astype(
            np.bool_
        )
    bits = np.zeros(STRETCH, dtype=np.bool_)
    base = stretch.number * STRETCH
    bits[stretch.first - base : stretch.last - base + 1] = True
    return bits


def compared(wanted: Mapping[int, Stretch], found: Mapping[int, Stretch]) -> Difference:
    """What `found` lacks of `wanted`, and what it has besides."""
    missing, extra, differing = Collected(), Collected(), []
    for number in sorted(wanted.keys() | found.keys()):
        one, two = wanted.get(number), found.get(number)
        if one is not None and two is not None and _facts(one) == _facts(two):
            continue
        differing.append(number)
        bits_of_one, bits_of_two = present(one), present(two)
        missing.add(number, bits_of_one & ~bits_of_two)
        extra.add(number, bits_of_two & ~bits_of_one)
    return Difference(missing.offsets(), extra.offsets(), tuple(differing))


def gaps(stretches: Mapping[int, Stretch], first: int, end: int) -> Offsets:
    """Offsets from `first` to before `end` that are not there."""
    found = Collected()
    if first >= end:
        return found.offsets()
    for number in range(first // STRETCH, -(-end // STRETCH)):
        stretch, base = stretches.get(number), number * STRETCH
        low, high = max(first, base), min(end, base + STRETCH)
        if stretch is None:
            found.add_range(low, high - 1)
        elif stretch.present is not None or (stretch.first, stretch.last) != (low, high - 1):
            wanted = np.zeros(STRETCH, dtype=np.bool_)
            wanted[low - base : high - base] = True
            found.add(number, wanted & ~present(stretch))
    return found.offsets()


def offsets_of(numbers: Iterable[int]) -> Offsets:
    """In ascending order."""
    found = Collected()
    for number in numbers:
        found.add_range(number, number)
    return found.offsets()


def duplicates(stretches: Iterable[Stretch]) -> int:
    return sum(stretch.rows - stretch.distinct for stretch in stretches)


class Collected:
    """Offsets, in ascending order."""

    def __init__(self) -> None:
        self._count = 0
        self._ranges: list[tuple[int, int]] = []

    def add(self, number: int, bits: Bits) -> None:
        for first, last in _runs(bits):
            self.add_range(number * STRETCH + first, number * STRETCH + last)

    def add_range(self, first: int, last: int) -> None:
        self._count += last - first + 1
        if self._ranges and self._ranges[-1][1] == first - 1:
            self._ranges[-1] = (self._ranges[-1][0], last)
        elif len(self._ranges) < _RANGES_TOLD:
            self._ranges.append((first, last))

    def offsets(self) -> Offsets:
        return Offsets(self._count, tuple(self._ranges))


def _runs(bits: Bits) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], bits, [False])).astype(np.int8)))
    for first, end in edges.reshape(-1, 2):
        yield int(first), int(end) - 1


def _facts(stretch: Stretch) -> tuple[object, ...]:
    return stretch.rows, stretch.first, stretch.last, stretch.distinct, stretch.checksum, stretch.present


def _covered(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)
