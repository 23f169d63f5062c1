"""What producers have been acknowledged, as their histories tell it while they are being written.

A history that grows says only that its producer still tries. It gets on when what it wrote after a fault is
acknowledged, and in every partition: one that nobody leads any more is not to hide behind the others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.history.events import AnyEvent, Writing, Written

_decode = msgspec.json.Decoder(AnyEvent).decode


class Acknowledged:
    """Of one producer, which writes to every partition of its topic."""

    def __init__(self, name: str, history: Path, partitions: int) -> None:
        self.name = name
        self._history = history
        self._position = 0
        self._lines = 0
        self._waiting: dict[int, int] = {}
        # Of the latest write to each partition that was acknowledged.
        self._line_of = dict.fromkeys(range(partitions), 0)
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
