"""Which segments retention takes: a plan, made without touching anything.

Whole segments go, from the front only, and nothing at or above the high watermark. A segment's age is that of its
largest record timestamp, so one record from the future keeps its segment, and what came before stays in front of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SegmentFacts(NamedTuple):
    base_offset: int
    # The next segment's base offset, the log end offset for the active one.
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Everything below `log_start_offset` goes. The active segment among it is first closed by a roll."""

    log_start_offset: int
    segments: int
    bytes_freed: int
    takes_active: bool


@dataclass(frozen=True, slots=True)
class RetentionRule:
    # Negative: no limit.
    retention_ms: int
    retention_bytes: int


def plan(
    segments: Sequence[SegmentFacts],
    rule: RetentionRule,
    largest_timestamp: Callable[[int], int],
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
) -> RetentionPlan | None:
    """None when nothing is to be done. `largest_timestamp` is asked only for segments that may have to go."""
    surplus_bytes = sum(segment.size_bytes for segment in segments) - rule.retention_bytes
    taken = 0
    freed = 0
    for segment in segments:
        is_active = taken == len(segments) - 1
        if segment.end_offset > high_watermark or (is_active and segment.size_bytes == 0):
            break
        expired = rule.retention_ms >= 0 and now_ms - largest_timestamp(taken) > rule.retention_ms
        too_many = rule.retention_bytes >= 0 and surplus_bytes - freed >= segment.size_bytes
        # The records of the last segment are below the log start offset only after DeleteRecords up to the end.
        passed = segment.end_offset <= log_start_offset and not is_active
        if not (expired or too_many or passed):
            break
        taken += 1
        freed += segment.size_bytes
    if taken == 0:
        return None
    new_start = max(log_start_offset, segments[taken - 1].end_offset)
    return RetentionPlan(new_start, taken, freed, takes_active=taken == len(segments))
