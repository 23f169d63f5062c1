"""Plots as SVG text, to stand in a page that needs nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

_WIDTH = 760
_LABELS = 150
_BAR = 14
_GAP = 8
_CELLS = 300
_HEIGHT = 160
_COLOURS = ("#4477aa", "#ccbb44", "#66ccee")
_STATES = {"=": "#228833", "r": "#bbbbbb", "!": "#cc3311", " ": "#ffffff"}
# The worst of what a cell stands for is what it shows.
_WORST_FIRST = "! r="


def bars(rows: Sequence[tuple[str, Sequence[int]]], names: Sequence[str]) -> str:
    """Numbers by label, with a bar for each name."""
    highest = max((number for _, numbers in rows for number in numbers), default=0) or 1
    row_height = _BAR * len(names) + _GAP
    parts, y = [_legend(names)], 24
    for label, numbers in rows:
        parts.append(_text(_LABELS - 8, y + row_height // 2, label, "end"))
        for at, number in enumerate(numbers):
            width = round((_WIDTH - _LABELS - 90) * number / highest)
            top = y + at * _BAR
            parts.append(f'<rect x="{_LABELS}" y="{top}" width="{width}" height="{_BAR - 2}" fill="{_COLOURS[at]}"/>')
            parts.append(_text(_LABELS + width + 6, top + _BAR - 4, f"{number:,}"))
        y += row_height
    return _svg(y, parts)


def strips(rows: Sequence[tuple[str, str]]) -> str:
    """Stretches of each partition, from the first offset to the last."""
    parts, y = [], 8
    longest = max((len(letters) for _, letters in rows), default=0) or 1
    per_cell = -(-longest // _CELLS)
    cell_width = (_WIDTH - _LABELS - 10) / -(-longest // per_cell)
    for label, letters in rows:
        parts.append(_text(_LABELS - 8, y + _BAR - 3, label, "end"))
        for at in range(0, len(letters), per_cell):
            worst = min(letters[at : at + per_cell], key=_WORST_FIRST.index)
            x = _LABELS + at // per_cell * cell_width
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{cell_width:.2f}" height="{_BAR}" fill="{_STATES[worst]}"/>'
            )
        y += _BAR + _GAP
    return _svg(y, parts)


def over_time(series: Mapping[str, Mapping[int, int]]) -> str:
    """Numbers by milliseconds, as steps; nothing where there is nothing."""
    times = sorted({time for numbers in series.values() for time in numbers})
    if not times:
        return ""
    highest = max(number for numbers in series.values() for number in numbers.values()) or 1
    first, span = times[0], max(1, times[-1] - times[0])
    wide, base = _WIDTH - 60, _HEIGHT + 24
    parts = [_legend(list(series))]
    for at, numbers in enumerate(series.values()):
        for time, number in numbers.items():
            height = round(_HEIGHT * number / highest)
            x = 40 + (time - first) / span * (wide - 8)
            parts.append(
                f'<rect x="{x + at * 3:.1f}" y="{base - height}" width="3" height="{height}" fill="{_COLOURS[at]}" '
                'fill-opacity="0.8"/>'
            )
    parts.append(f'<line x1="40" y1="{base}" x2="{wide + 40}" y2="{base}" stroke="#888"/>')
    parts += [_text(40, base + 16, _moment(times[0])), _text(wide + 40, base + 16, _moment(times[-1]), "end")]
    return _svg(base + 24, parts)


def _legend(names: Sequence[str]) -> str:
    parts = []
    for at, name in enumerate(names):
        x = _LABELS + at * 130
        parts.append(f'<rect x="{x}" y="2" width="12" height="12" fill="{_COLOURS[at]}"/>{_text(x + 18, 12, name)}')
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).strftime("%Y-%m-%d %H:%M")
