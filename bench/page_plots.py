"""The plots of the page as SVG text. Their colours are the page's style, so that they are legible in both of its modes.

Rows of different units stand in one plot, so every row has a scale of its own; what can be compared between rows is the
advantage over Kafka, which is logarithmic: twice as good and half as good are equally far from even.
"""

import math
from collections.abc import Sequence
from html import escape

from bench.page_rows import KAFKA, LIMITS, PENSTOCK, SYSTEMS, TIMES, PageRow, by_group, number, times

WIDTH = 1000
LABELS = 250
VERDICTS = 222
PLOT = WIDTH - LABELS - VERDICTS
VALUES = 168
"""Kept free behind the longest bar for its figure."""

LINE = 22
NAMES = {**SYSTEMS, **LIMITS}
BAR = {PENSTOCK: 15, KAFKA: 15}
THIN_BAR = 9
PAD = 14


def advantages(rows: Sequence[PageRow]) -> str:
    """How many times better than Kafka, a bar to the right for better and to the left for worse."""
    shown = [row for row in rows if row.advantage is not None]
    if not shown:
        return ""
    doublings = _doublings(shown)
    span = doublings[-1] - doublings[0]

    def x(advantage: float) -> float:
        return LABELS + 10 + (math.log2(advantage) - doublings[0]) / span * (PLOT - 20)

    drawn: list[str] = []
    y = 30
    for title, group in by_group(shown).items():
        drawn.append(_text(0, y + LINE - 6, title, "group"))
        y += LINE
        for row in group:
            goal = row.goal_advantage and x(row.goal_advantage)
            drawn += _advantage(row, y, x(1), x(row.advantage or 1), goal)
            y += LINE
    axis = [_axis_line(x(2.0**each), 2.0**each, y) for each in doublings]
    return _svg(y + 6, [*axis, *drawn], "How many times better than Kafka Penstock is, by row")


def bars(rows: Sequence[PageRow]) -> str:
    """A bar for every system that has a figure, the spread of its repetitions, and the goal as a line."""
    parts, y = [], -4
    for at, row in enumerate(rows):
        if at:
            parts.append(f'<line class="rule" x1="0" y1="{y}" x2="{WIDTH}" y2="{y}"/>')
        height, drawn = _row(row, y + PAD)
        parts += drawn
        y += height + 2 * PAD
    return _svg(y - PAD, parts, "Figures of every system, by row")


def _doublings(rows: Sequence[PageRow]) -> list[int]:
    """Powers of two around all bars and goals, at least from a half to two."""
    logs = [math.log2(each) for row in rows for each in (row.advantage, row.goal_advantage) if each]
    low, high = min(-1, math.floor(min(logs) - 0.4)), max(1, math.ceil(max(logs) + 0.4))
    return list(range(low, high + 1))


def _axis_line(x: float, value: float, bottom: int) -> str:
    name = "even" if value == 1 else f"{value:g} {TIMES}" if value > 1 else f"1/{1 / value:g} {TIMES}"
    kind = "even" if value == 1 else "grid"
    return f'<line class="{kind}" x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{bottom}"/>' + _text(x, 12, name, "axis middle")


def _advantage(row: PageRow, y: int, even: float, end: float, goal: float | None) -> list[str]:
    left, width = min(even, end), max(1.5, abs(end - even))
    kind = "ahead" if end >= even else "behind"
    middle = y + LINE / 2
    parts = [
        _text(LABELS - 8, middle + 4, row.name, "label end"),
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 4}" width="{width:.1f}" height="{LINE - 8}" rx="2">'
        f"<title>{escape(_sentence(row))}</title></rect>",
    ]
    if goal is not None:
        parts.append(f'<line class="goal" x1="{goal:.1f}" y1="{y + 1}" x2="{goal:.1f}" y2="{y + LINE - 1}"/>')
    parts += _verdict(row, middle + 4)
    return parts


def _verdict(row: PageRow, y: float) -> list[str]:
    """On the right: the advantage, and whether the goal was met, in words and not by colour alone."""
    start = WIDTH - VERDICTS + 12
    parts = []
    if row.advantage is not None:
        parts.append(_text(start + 52, y, times(row.advantage), "strong end"))
    if row.goal is not None:
        text, kind = ("✓ goal met", "met") if row.is_met else ("✗ goal missed", "missed")
        parts.append(_text(start + 64, y, text, kind))
    elif row.advantage is None:
        parts.append(_text(start + 64, y, "no comparison", "muted"))
    elif row.advantage < 1:
        parts.append(_text(start + 64, y, "behind Kafka", "muted"))
    return parts


def _row(row: PageRow, y: int) -> tuple[int, list[str]]:
    """Its height, and what is drawn from `y` on."""
    systems = [system for system in NAMES if system in row.figures]
    highest = max([high for _, high in row.spread.values()] + list(row.figures.values()) + [row.goal_figure or 0]) or 1
    scale = (PLOT - VALUES) / highest
    parts, top = [], y
    for system in systems:
        thickness = BAR.get(system, THIN_BAR)
        parts += _bar(row, system, top, thickness, scale)
        top += thickness + 5
    if not systems:
        parts.append(_text(LABELS, y + 13, "not measured", "muted"))
    better = "" if row.higher_is_better else ", less is better"
    parts += [
        _text(LABELS - 14, y + 12, row.name, "label end"),
        _text(LABELS - 14, y + 29, row.unit + better, "muted end"),
    ]
    parts += _verdict(row, y + 12)
    parts += _small_print(row, y + 29)
    return max(top - 5 - y, 30), parts


def _bar(row: PageRow, system: str, y: int, thickness: int, scale: float) -> list[str]:
    value = row.figures[system]
    low, high = row.spread.get(system, (value, value))
    width, middle = max(1.5, value * scale), y + thickness / 2
    said = f"{NAMES[system]}: {number(value)} {row.unit}, from {number(low)} to {number(high)}"
    parts = [
        f'<rect class="{system}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{thickness}" rx="2">'
        f"<title>{escape(said)}</title></rect>"
    ]
    end = LABELS + width
    if low < high:
        first, last = LABELS + low * scale, LABELS + high * scale
        ends = f"M{first:.1f} {middle - 3:.1f}v6M{last:.1f} {middle - 3:.1f}v6"
        parts.append(f'<path class="whisker" d="M{first:.1f} {middle:.1f}H{last:.1f}{ends}"/>')
        end = max(end, last)
    if system == PENSTOCK and row.goal_figure is not None:
        goal = LABELS + row.goal_figure * scale
        parts.append(f'<line class="goal" x1="{goal:.1f}" y1="{y - 5}" x2="{goal:.1f}" y2="{y + thickness + 5}"/>')
        if end - 8 < goal < end + VALUES:
            end = max(end, goal)  # the figure stands behind it, not across
    parts.append(
        f'<text class="value" x="{end + 8:.1f}" y="{middle + 4.5:.1f}">{number(value)} '
        f'<tspan class="muted">{escape(NAMES[system])}</tspan></text>'
    )
    return parts


def _small_print(row: PageRow, y: float) -> list[str]:
    """Under the verdict: what the goal is, or that the client was the limit."""
    start = WIDTH - VERDICTS + 12
    lines = [row.goal_text] if row.goal is not None else []
    lines += [f"bound: {row.bound}"] if row.bound else []
    return [_text(start, y + at * 15, line, "small") for at, line in enumerate(lines)]


def _sentence(row: PageRow) -> str:
    ours, theirs = row.figures.get(PENSTOCK), row.figures.get(KAFKA)
    if ours is None or theirs is None:
        return row.name
    return f"{row.name}: Penstock {number(ours)}, Kafka {number(theirs)} {row.unit}"


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
