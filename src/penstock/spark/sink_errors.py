"""What a write fails with besides bad options: what happened and, if there is something, what to do.

They are errors of the wire for whoever shows errors: a sentence, and nothing else is needed.
"""

from __future__ import annotations

from penstock.wire.errors import WireError


class BadColumns(WireError):
    """Rows of these columns cannot be records; said before any row is looked at."""


class BadRow(WireError):
    """A row that cannot be a record."""


class WriteFailed(WireError):
    """A task could not write its rows, or must not."""
