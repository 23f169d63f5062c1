"""Which part of a compacted log is cleaned next, whether it is worth it, and which segments become one: plans.

Whole segments are cleaned, from the first on, and never the active one, nothing at or above the last stable offset,
nothing younger than min.compaction.lag.ms. What is new since the last round (dirty) decides which log comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_RELATIVE_OFFSET = 2**31 - 1


class SegmentFacts(NamedTuple):
    base_offset: int
    # The next segment's base offset.
    end_offset: int
    size_bytes: int
    offset_index_bytes: int = 0
    time_index_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CleaningRule:
    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The records from `first_dirty_offset` on decide which of those below `end_offset` stay."""

    first_dirty_offset: int
    end_offset: int
    # How many of the log's segments end at or below `end_offset`.
    segments: int
    dirty_ratio: float
    # Reached min.cleanable.dirty.ratio, or max.compaction.lag.ms.
    is_due: bool


def plan(
    closed: Sequence[SegmentFacts],
    rule: CleaningRule,
    *,
    first_dirty_offset: int,
    upper_offset: int,
    largest_timestamp: Callable[[int], int],
    first_timestamp: Callable[[int], int],
    now_ms: int,
) -> CleaningPlan | None:
    """None when there is nothing new to clean. The callables are asked only when the rule depends on the answer."""
    count = 0
    clean_bytes = dirty_bytes = 0
    for at, segment in enumerate(closed):
        is_dirty = segment.end_offset > first_dirty_offset
        if segment.end_offset > upper_offset:
            break
        if is_dirty and rule.min_lag_ms > 0 and largest_timestamp(at) > now_ms - rule.min_lag_ms:
            break
        if is_dirty:
            dirty_bytes += segment.size_bytes
        else:
            clean_bytes += segment.size_bytes
        count = at + 1
    if dirty_bytes == 0:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    is_due = ratio > rule.min_dirty_ratio or _is_overdue(
        closed[:count], rule, first_dirty_offset, first_timestamp, now_ms
    )
    return CleaningPlan(first_dirty_offset, closed[count - 1].end_offset, count, ratio, is_due)


def _is_overdue(
    segments: Sequence[SegmentFacts],
    rule: CleaningRule,
    first_dirty_offset: int,
    first_timestamp: Callable[[int], int],
    now_ms: int,
) -> bool:
    if rule.max_lag_ms >= now_ms:
        return False
    dirty = [at for at, segment in enumerate(segments) if segment.end_offset > first_dirty_offset]
    return any(0 < first_timestamp(at) < now_ms - rule.max_lag_ms for at in dirty)


def groups(segments: Sequence[SegmentFacts], segment_bytes: int, segment_index_bytes: int) -> list[range]:
    """Neighbours that fit into one segment together, by their places."""
    found: list[range] = []
    start = 0
    sums = (0, 0, 0)
    for at, each in enumerate(segments):
        sizes = each.size_bytes, each.offset_index_bytes, each.time_index_bytes
        grown = (sums[0] + sizes[0], sums[1] + sizes[1], sums[2] + sizes[2])
        fits = (
            grown[0] <= segment_bytes
            and max(grown[1:]) <= segment_index_bytes
            and each.end_offset - 1 - segments[start].base_offset <= MAX_RELATIVE_OFFSET
        )
        if at > start and not fits:
            found.append(range(start, at))
            start, grown = at, sizes
        sums = grown
    if segments:
        found.append(range(start, len(segments)))
    return found
