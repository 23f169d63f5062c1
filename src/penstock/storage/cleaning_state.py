"""How compaction stands with a log: a part of the log, so that it goes when the log goes."""

from __future__ import annotations

from dataclasses import dataclass

# Up to where tombstones and markers may go when no other replica could miss them.
EVERYWHERE = 2**63 - 1


@dataclass(slots=True)
class CleaningState:
    # What is below was cleaned. It decides what is dirty, so it may be too low but never too high.
    cleaned_offset: int = 0
    # Whether a thread is at it: before the files' names may be another log's, it must be gone.
    is_busy: bool = False
    # From when on it may be tried again, on the monotonic clock.
    not_before_ms: int = 0
    # Why it is not tried again before a restart.
    uncleanable: str | None = None
