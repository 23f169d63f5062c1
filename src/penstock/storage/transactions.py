"""Which transactions of a partition are undecided: what the last stable offset depends on.

A transaction is unstable while it is open, and after that until its marker is below the high watermark: before that
the marker may be lost with a leader, and the outcome with it. What must stay true: the first unstable offset is found
in constant time, since every produce and every fetch may ask for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class EndedTransaction(NamedTuple):
    """`last_offset` is the marker's. No transaction that ends behind it begins below `last_stable_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    is_commit: bool


class Transactions:
    __slots__ = ("_ended", "_first_offsets", "open")

    def __init__(self) -> None:
        # Producer id to first offset.
        self.open: dict[int, int] = {}
        # The same offsets, ascending.
        self._first_offsets: list[int] = []
        # A heap of (first offset, offset of the marker). Those below the high watermark go when they come to its top.
        self._ended: list[tuple[int, int]] = []

    def first_open_offset(self) -> int | None:
        """Thread-safe: changes nothing, and looks once."""
        first = self._first_offsets[:1]
        return first[0] if first else None

    def begin(self, producer_id: int, first_offset: int) -> None:
        self.open[producer_id] = first_offset
        insort(self._first_offsets, first_offset)

    def forget(self, producer_id: int) -> int:
        """As if it had never begun. Returns its first offset."""
        first_offset = self.open.pop(producer_id)
        del self._first_offsets[bisect_left(self._first_offsets, first_offset)]
        return first_offset

    def end(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> EndedTransaction:
        first_offset = self.forget(producer_id)
        heappush(self._ended, (first_offset, marker_offset))
        last_stable_offset = self._first_offsets[0] if self._first_offsets else marker_offset + 1
        return EndedTransaction(producer_id, first_offset, marker_offset, last_stable_offset, is_commit)

    def reopen(self, producer_id: int, first_offset: int) -> None:
        """Its marker is taken back: it was staged, so it is not below any high watermark and still remembered."""
        self._ended = [each for each in self._ended if each[0] != first_offset]
        heapify(self._ended)
        self.begin(producer_id, first_offset)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """`high_watermark` never goes back: what is below it is not remembered."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        if not ended:
            return self._first_offsets[0] if self._first_offsets else None
        return min(ended[0][0], self._first_offsets[0]) if self._first_offsets else ended[0][0]

    def ended_before(self, offset: int) -> list[tuple[int, int]]:
        """Those that may still be unstable and whose markers are below `offset`, for `take_ended`."""
        return [each for each in self._ended if each[1] < offset]

    def take_ended(self, ended: Iterable[tuple[int, int]]) -> None:
        self._ended = [*{*self._ended, *ended}]
        heapify(self._ended)
