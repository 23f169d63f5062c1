"""What producers have been acknowledged, as their histories tell it while they are being written.

A history that grows says only that its producer still tries. It gets on when what it wrote after a fault is
acknowledged, and in every partition: one that nobody leads any more is not to hide behind the others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.history.events import NO_OFFSET, AnyEvent, Writing, Written

_decode = msgspec.json.Decoder(AnyEvent).decode


class Acknowledged:
    """Of one producer, which writes to every partition of its topic."""

    def __init__(self, name: str, topic: str, history: Path, partitions: int) -> None:
        self.name = name
        self.topic = topic
        self._history = history
        self._position = 0
        self._lines = 0
        self._waiting: dict[int, int] = {}
        # Of the latest write to each partition that was acknowledged.
        self._line_of = dict.fromkeys(range(partitions), 0)
        # The highest offset of each partition that it knows to be taken.
        self._offset_of = dict.fromkeys(range(partitions), NO_OFFSET)
        # When something was acknowledged last in each partition, and the longest that one of them was without.
        self._at_of: dict[int, int] = {}
        self._longest_ns = 0
        self._mark = 0

    def mark(self) -> None:
        """From here on it is to get on."""
        self._read()
        self._mark = self._lines

    @property
    def behind(self) -> list[str]:
        """The partitions where nothing was acknowledged that was written after the mark."""
        self._read()
        return [f"{self.name} in {partition}" for partition, line in self._line_of.items() if line <= self._mark]

    def take_longest_wait_s(self) -> float:
        """How long a partition was without an acknowledgement, at most, since this was asked last."""
        self._read()
        longest_ns, self._longest_ns = self._longest_ns, 0
        return longest_ns / 1e9

    def offsets(self) -> dict[int, int]:
        """By partition, the highest that was acknowledged: -1 for none."""
        self._read()
        return dict(self._offset_of)

    def _read(self) -> None:
        if not self._history.exists():
            return
        with self._history.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]  # the last line may be half written
        self._position += len(whole)
        for line in whole.splitlines():
            self._lines += 1
            event = _decode(line)
            if isinstance(event, Writing):
                self._waiting[self._lines] = event.partition
            elif isinstance(event, Written):
                partition = self._waiting.pop(event.write)
                if event.outcome == "ok":
                    self._line_of[partition] = max(self._line_of[partition], event.write)
                    waited_ns = event.at - self._at_of.get(partition, event.at)
                    self._longest_ns = max(self._longest_ns, waited_ns)
                    self._at_of[partition] = event.at
                    self._offset_of[partition] = max(self._offset_of[partition], event.offset)
