"""What is handed out: messages in a batch, and where a published one landed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]
"""Headers to publish: a mapping, or pairs where a name comes more than once."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it lies in the topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    payload: bytes | None
    """None is a tombstone: in a compacted topic it deletes its key."""
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Published:
    """Where a message landed."""

    topic: str
    partition: int
    offset: int | None
    """None with at-most-once delivery: the broker is not asked."""


class Batch:
    """Messages to go through with a `for` loop; empty when there were none in time.

    The batch notices how far its loop has come: a clean close commits the messages that the loop has gone past.
    """

    __slots__ = ("_forgotten", "_messages", "_passed", "handed_out")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._passed = 0
        self._forgotten: set[int] = set()
        self.handed_out = False  # the SDK's own: a batch whose `await` was cancelled has reached nobody

    def __iter__(self) -> Iterator[Message]:
        for position, message in enumerate(self._messages, start=1):
            yield message
            self._passed = max(self._passed, position)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"Batch({list(self._messages)!r})"

    def next_offsets(self, *, passed_only: bool = False) -> dict[int, int]:
        """Per partition, the offset to go on from when the batch (or what its loop has gone past) is done."""
        done = self._messages[: self._passed] if passed_only else self._messages
        return {message.partition: message.offset + 1 for message in done if message.partition not in self._forgotten}

    def forget(self, partition: int) -> None:
        """The caller has said himself where to go on in this partition."""
        self._forgotten.add(partition)
