"""Compaction's two passes over records: compiled where a compiler was at hand, in plain Python elsewhere.

A module of its own, so that whoever only reads and writes records does not load it. See `_pure_compaction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.records import KERNEL
from penstock.protocol.records._pure_compaction import (
    GROWTH_BYTES,
    SLOT_BYTES,
    FilteredRecords,
    Stop,
    with_delete_horizon,
    with_records,
    without_records,
)

if TYPE_CHECKING:
    from penstock.protocol.records._compaction import (
        OffsetMap,
        Rewriter,
        add_batches,
        add_records,
        end_offset,
        pass_over,
    )
elif KERNEL == "pure":
    from penstock.protocol.records._pure_compaction import (
        OffsetMap,
        Rewriter,
        add_batches,
        add_records,
        end_offset,
        pass_over,
    )
else:
    try:
        from penstock.protocol.records._compaction import (
            OffsetMap,
            Rewriter,
            add_batches,
            add_records,
            end_offset,
            pass_over,
        )
    except ImportError:
        from penstock.protocol.records._pure_compaction import (
            OffsetMap,
            Rewriter,
            add_batches,
            add_records,
            end_offset,
            pass_over,
        )

__all__ = [
    "GROWTH_BYTES",
    "SLOT_BYTES",
    "FilteredRecords",
    "OffsetMap",
    "Rewriter",
    "Stop",
    "add_batches",
    "add_records",
    "end_offset",
    "pass_over",
    "with_delete_horizon",
    "with_records",
    "without_records",
]
