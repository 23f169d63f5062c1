"""A checksum of rows in columns: compiled where a compiler was at hand, in plain Python elsewhere.

A module of its own, as columns are: brokers never need it. See `_pure_checksum`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.records import KERNEL
from penstock.protocol.records._pure_checksum import MASK, Blobs, Numbers, Pairs

if TYPE_CHECKING:
    from penstock.protocol.records._checksum import RowHashes
elif KERNEL == "pure":
    from penstock.protocol.records._pure_checksum import RowHashes
else:
    try:
        from penstock.protocol.records._checksum import RowHashes
    except ImportError:
        from penstock.protocol.records._pure_checksum import RowHashes

__all__ = ["MASK", "Blobs", "Numbers", "Pairs", "RowHashes"]
