"""Records as Arrow's columns: compiled where a compiler was at hand, in plain Python elsewhere.

A module of its own, so that a broker, which never looks at records this way, does not load it. See `_pure_columns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.records import KERNEL
from penstock.protocol.records._pure_columns import MAX_COLUMN, Binary, Headers, Taken

if TYPE_CHECKING:
    from penstock.protocol.records._columns import Columns
elif KERNEL == "pure":
    from penstock.protocol.records._pure_columns import Columns
else:
    try:
        from penstock.protocol.records._columns import Columns
    except ImportError:
        from penstock.protocol.records._pure_columns import Columns

__all__ = ["MAX_COLUMN", "Binary", "Columns", "Headers", "Taken"]
