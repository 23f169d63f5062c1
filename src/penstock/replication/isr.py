"""The leader's view of who has what.

The high watermark may only cover what every in-sync replica holds: on topics that flush, holds on disk. It never goes
back. On one node the leader is the whole set; the rule is the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.ids import BrokerId


class Isr:
    __slots__ = ("_held", "high_watermark", "members")

    def __init__(self, members: Iterable[BrokerId], high_watermark: int) -> None:
        self.members = frozenset(members)
        self.high_watermark = high_watermark
        self._held = dict.fromkeys(self.members, high_watermark)

    def held(self, member: BrokerId, offset: int) -> bool:
        """`member` holds everything below `offset`. True when the high watermark rose."""
        self._held[member] = offset
        committed = min(self._held[each] for each in self.members)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True
