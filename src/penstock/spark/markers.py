"""What a task leaves behind in the transaction that carries its rows: which batch it was, and what was in it.

A marker is a record of a compacted topic. Its key is who wrote (a query, or a batch write by its name) and which task,
so the topic keeps the last one of each. It becomes visible with the rows or not at all: who finds it knows that the
rows are there.

Markers of a batch write without a name outlive it: an attempt of one of its tasks may come late, and must find what
another one has done. Nobody looks for them after that, so they are outdated after `UNNAMED_KEPT_MS`.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import NamedTuple

from crc32c_rs import crc32c

from penstock.wire.errors import WireError

VERSION = 1
# Of the topic, at least. Who looks for a marker counts on them for ever.
PARTITIONS = 16
# After that, brokers know nothing of a transactional id any more either (transactional.id.expiration.ms).
UNNAMED_KEPT_MS = 7 * 24 * 3_600_000
_UNNAMED = "unnamed-"
_KEY_OF_UNNAMED = re.compile(rb'\{"query":"unnamed-[0-9a-f-]{36}","task":\d+\}')
_COMPACT = (",", ":")


class UnreadableMarker(WireError):
    """Nothing that this version wrote."""


def new_unnamed_writer() -> str:
    """Of a batch write that has no name."""
    return f"{_UNNAMED}{uuid.uuid4()}"


def is_of_unnamed(key: bytes) -> bool:
    return _KEY_OF_UNNAMED.fullmatch(key) is not None


class MarkerKey(NamedTuple):
    writer: str
    task: int

    def to_bytes(self) -> bytes:
        return json.dumps({"query": self.writer, "task": self.task}, separators=_COMPACT).encode()

    @classmethod
    def from_bytes(cls, key: bytes) -> MarkerKey:
        """Raises UnreadableMarker."""
        try:
            content = json.loads(key)
            return cls(str(content["query"]), int(content["task"]))
        except (ValueError, TypeError, KeyError):
            raise UnreadableMarker(f"{key[:80]!r} is no key of a marker") from None

    def partition(self) -> int:
        """The same wherever and whenever it is asked, however many partitions the topic is given later."""
        return int(crc32c(self.to_bytes())) % PARTITIONS

    @property
    def transactional_id(self) -> str:
        return f"penstock-spark-{self.writer}-{self.task}"


class Marker(NamedTuple):
    """`is_whole` is False while a task that takes longer than a transaction may has written only its first rows."""

    batch_id: int
    rows: int
    checksum: int
    is_whole: bool = True

    def to_bytes(self) -> bytes:
        content = {"version": VERSION, "batch": self.batch_id, "rows": self.rows, "checksum": f"{self.checksum:016x}"}
        if not self.is_whole:
            content["whole"] = False
        return json.dumps(content, separators=_COMPACT).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Marker:
        """Raises UnreadableMarker."""
        try:
            content = json.loads(value)
            version = content["version"]
            if version == VERSION:
                checksum = int(content["checksum"], 16)
                return cls(int(content["batch"]), int(content["rows"]), checksum, content.get("whole", True) is True)
        except (ValueError, TypeError, KeyError):
            raise UnreadableMarker(f"{value[:80]!r} is no marker") from None
        raise UnreadableMarker(f"version {version} is not known here: a newer Penstock wrote it")
