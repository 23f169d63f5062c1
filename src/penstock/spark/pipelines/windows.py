"""Windows of time and how long they wait for late records, as one writes them: 1m, 30 seconds, 1h 30m."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.spark.pipelines.errors import PipelineError

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "w": 604_800_000,
    "week": 604_800_000,
}
_PART = re.compile(r"(\d+)\s*([a-z]+)\s*")


@dataclass(frozen=True, slots=True)
class Windows:
    """`slide_ms` is from the beginning of one window to that of the next: as long as a window, or windows overlap."""

    size_ms: int
    slide_ms: int
    watermark_ms: int

    @classmethod
    def parse(cls, window: str | None, slide: str | None, watermark: str | None) -> Windows:
        """Raises PipelineError."""
        if window is None:
            raise PipelineError("--window is missing: how long windows are, such as 1m")
        if watermark is None:
            raise PipelineError(
                "--watermark is missing: how long a window waits for late records, such as 30s; without it no window "
                "would ever be done"
            )
        size_ms = duration_ms(window, "--window")
        slide_ms = size_ms if slide is None else duration_ms(slide, "--slide")
        if size_ms == 0 or slide_ms == 0:
            raise PipelineError(f"{'--window' if size_ms == 0 else '--slide'} takes more than no time")
        if slide_ms > size_ms:
            raise PipelineError(f"--slide {slide} is above --window {window}: records between windows would be in none")
        return cls(size_ms, slide_ms, duration_ms(watermark, "--watermark"))

    def __str__(self) -> str:
        every = "" if self.slide_ms == self.size_ms else f", one every {told(self.slide_ms)}"
        return f"of {told(self.size_ms)}{every}, done {told(self.watermark_ms)} after their end"


def duration_ms(text: str, option: str) -> int:
    """Raises PipelineError."""
    rest, total_ms = text.strip().lower(), 0
    parts = 0
    while match := _PART.match(rest):
        number, unit = int(match[1]), match[2]
        if unit not in _UNITS_MS:
            unit = unit.removesuffix("s")
        if unit not in _UNITS_MS:
            break
        total_ms += number * _UNITS_MS[unit]
        rest, parts = rest[match.end() :], parts + 1
    if rest or not parts:
        raise PipelineError(f'{option} takes a time such as 30s, 1 minute or 1h 30m, not "{text}"')
    return total_ms


def interval(milliseconds: int) -> str:
    """For Spark."""
    return f"{milliseconds} milliseconds"


def told(milliseconds: int) -> str:
    """1h 30m."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, milliseconds = divmod(milliseconds, _UNITS_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return " ".join(parts) or "0s"
