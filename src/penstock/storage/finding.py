"""What a fetch wants of a segment, found by one call into C where a compiler was at hand: some 1.5 us in place of 12.

It takes only what the general way (`Segment.locate`, `probe`) would find as well, and leaves the rest to it: pages that
are not in the cache, indexes that point elsewhere, damage.
"""

from __future__ import annotations

import mmap

from penstock.protocol.records import KERNEL

if KERNEL == "compiled":
    from penstock.storage._finding import find_span as find_span
else:

    def find_span(
        descriptor: int,
        index: mmap.mmap | bytes,
        count: int,
        base_offset: int,
        offset: int,
        end: int,
        max_bytes: int,
        at_least_one: bool,
        probed_below: int,
    ) -> tuple[int, int] | None:
        """In plain Python there is no shorter way than the general one."""
        return None
