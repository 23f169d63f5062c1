"""How fast replicas may catch up (KIP-73): so many bytes a second, for all that are named together.

A fetch is let through or not before its size is known, so what it takes may be more than what is left, and the next
ones wait until that is paid off: the rate holds on average. Who is in sync never waits, or it would be no more; but
what it takes counts, if it is named.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.core.ids import BrokerId

# How long unused bytes may be saved up. Longer than a fetcher rests when there is nothing that it may fetch.
SAVED_MS = 2_000
ALL_REPLICAS = "*"


def is_listed(listed: Collection[str], partition: int, broker_id: BrokerId) -> bool:
    """Whether the replica of a partition on that broker is among those of ...replication.throttled.replicas."""
    return ALL_REPLICAS in listed or f"{partition}:{broker_id}" in listed


class Throttle:
    """The rate may be another one in every call."""

    __slots__ = ("_left", "_seen_ms")

    def __init__(self) -> None:
        # Below nothing when more was taken than there was.
        self._left = 0.0
        self._seen_ms: float | None = None

    def is_exceeded(self, bytes_per_s: int, now_ms: float) -> bool:
        self._pass_time(bytes_per_s, now_ms)
        return self._left <= 0

    def take(self, size: int, bytes_per_s: int, now_ms: float) -> None:
        self._pass_time(bytes_per_s, now_ms)
        self._left -= size

    def _pass_time(self, bytes_per_s: int, now_ms: float) -> None:
        most = bytes_per_s * SAVED_MS / 1000
        if self._seen_ms is None:
            self._left = most
        else:
            self._left = min(most, self._left + bytes_per_s * (now_ms - self._seen_ms) / 1000)
        self._seen_ms = now_ms
