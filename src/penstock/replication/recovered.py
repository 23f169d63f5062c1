"""Whether a replica that was opened after a stop may lack records that were committed with it.

It must not be elected then (KIP-966), unless nobody else holds them. What a recovery cuts off is no sign by itself: a
write that was under way is cut off after every crash, and was never acknowledged.
"""

from __future__ import annotations

from typing import NamedTuple


class Recovered(NamedTuple):
    """`high_watermark` is the one last checkpointed. `is_torn`: what was cut off may be the beginning of a write."""

    end_offset: int
    high_watermark: int
    was_clean: bool
    has_page_cache: bool
    # flush.messages=1: what was acknowledged was on disk.
    flushes: bool
    cut_bytes: int
    is_torn: bool
    log_start_offset: int = 0
    # There were no files of it: nobody knows what they held.
    was_missing: bool = False


def may_lack_committed(log: Recovered) -> bool:
    if log.end_offset < log.high_watermark or log.was_missing:
        return True
    if log.was_clean:
        return log.cut_bytes > 0 or not log.is_torn
    if log.has_page_cache:
        # A kill takes nothing that was written, so all that can be amiss is the write that it interrupted.
        return not log.is_torn
    return not log.flushes


def is_lost(log: Recovered) -> bool:
    """Whether all that was committed with it is gone, and no stop explains that: somebody has taken its files. Then it
    must not be elected even if nobody else is in sync, since whoever follows an empty log becomes empty, too.
    """
    holds_nothing = log.end_offset == log.log_start_offset and log.end_offset < log.high_watermark
    return holds_nothing and (log.was_clean or log.has_page_cache or log.flushes)
