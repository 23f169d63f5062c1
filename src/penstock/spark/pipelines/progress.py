"""How far a pipeline has come, on the terminal: rows, rate, lag, and when it will be done.

Only where standard error is a terminal: logs get a line for each batch instead.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.spark.pipelines.batches import Totals

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """`follows` is of what has no end: it shows no estimate."""

    def __init__(self, what: str, follows: bool = False) -> None:
        self._what = what
        self._follows = follows
        self._begun_s = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None, facts="starting")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_shown(self) -> bool:
        return self._bar is not None

    def show(self, totals: Totals) -> None:
        if self._bar is None or self._task is None or not totals.batches:
            return
        total = None if totals.lag is None or self._follows else totals.rows + totals.lag
        facts = described(totals, time.monotonic() - self._begun_s, self._follows)
        self._bar.update(self._task, completed=totals.rows, total=total, facts=facts)

    def show_parts(self, done: int, parts: int, rows: int) -> None:
        """Of work that is cut into parts beforehand."""
        if self._bar is None or self._task is None:
            return
        elapsed_s = max(0.001, time.monotonic() - self._begun_s)
        left = f", {_time(elapsed_s / done * (parts - done))} left" if done else ""
        facts = f"{rows:,} rows, {rows / elapsed_s:,.0f} rows/s{left}"
        self._bar.update(self._task, completed=done, total=parts, facts=facts)


def described(totals: Totals, elapsed_s: float, follows: bool) -> str:
    facts = [f"{totals.rows:,} rows", f"{totals.rows_per_second:,.0f} rows/s"]
    if totals.lag is not None:
        facts.append(f"lag {totals.lag:,}")
        rate = totals.rows / max(0.001, elapsed_s)
        if totals.lag and rate and not follows:
            facts.append(f"{_time(totals.lag / rate)} left")
    return ", ".join(facts)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    return Bar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
