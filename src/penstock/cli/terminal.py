"""Output for people and for pipes: plain columns, JSON, and a progress bar that only a terminal sees."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_AFTER_S = 1.0
_UPDATE_EVERY_S = 0.1


def print_columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = [[shown(str(cell)) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def shown(name: str) -> str:
    """A name that somebody else chose, without line breaks and orders to the terminal: those as in a JSON string."""
    return name if name.isprintable() else json.dumps(name)[1:-1]


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _has_terminal() -> bool:
    if not sys.stderr.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:  # a terminal that nobody shares with others
        return True


class ProgressBar:
    """On standard error, when that is a terminal and the work takes longer than a second; otherwise nothing.

    Nor while the command is in the background: the lines of the terminal are then somebody else's.
    """

    def __init__(self, what: str, total_bytes: int | None) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._is_wanted = _has_terminal()
        self._next_update = time.monotonic() + _SHOW_AFTER_S
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, done_bytes: int, done_records: int) -> None:
        if not self._is_wanted or time.monotonic() < self._next_update:
            return
        self._next_update = time.monotonic() + _UPDATE_EVERY_S
        if self._progress is None or self._task is None:
            self._progress, self._task = self._start()
        self._progress.update(self._task, completed=done_bytes, records=done_records)

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TextColumn("{task.fields[records]} records"),
            TimeElapsedColumn() if self._total_bytes is None else TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        progress.start()
        return progress, progress.add_task(self._what, total=self._total_bytes, records=0)
