"""The result as one page to look at: an HTML file that needs nothing else, neither a network nor a script.

What must stay true: every row is there, with its figures or the reason why it has none; what was lost is said before
any of the details; the two durabilities are never in one plot.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.page_plots import advantages, bars
from bench.page_rows import (
    DURABILITIES,
    KAFKA,
    LIBRARIES_GROUP,
    LIMITS,
    PENSTOCK,
    SYSTEMS,
    PageRow,
    by_group,
    number,
    times,
)
from bench.page_style import STYLE


def write_page(result: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(result), encoding="utf-8")


def page(result: Mapping[str, Any]) -> str:
    rows = [PageRow.parse(row) for row in result["rows"]]
    parts = [
        _headline(rows, result),
        _tiles(rows),
        _overview(rows),
        _losses(rows),
        *(_durability(name, rows) for name in _durabilities(rows)),
        _table(rows),
        _missing(rows, result["versions"]),
        _made(result),
    ]
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head = f"<head>{meta}<title>Penstock beside Apache Kafka</title><style>{STYLE}</style></head>"
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en">\n{head}\n<body><main>\n{body}\n</main></body>\n</html>\n'


def _headline(rows: Sequence[PageRow], result: Mapping[str, Any]) -> str:
    said = _goals_text(rows) if any(row.goal is not None for row in rows) else "No goal was measured"
    day = str(result["date"]).partition("T")[0]
    return (
        f"<h1>Penstock beside Apache Kafka: {said}</h1>"
        f'<p class="lead">Both brokers, and others where they can be had, on one machine in one run of {escape(day)}, '
        "measured in turns. Every figure is a median of repetitions.</p>"
    )


def _tiles(rows: Sequence[PageRow]) -> str:
    with_goal = [row for row in rows if row.goal is not None]
    compared = [row.advantage for row in rows if row.advantage is not None]
    ahead = sum(advantage > 1 for advantage in compared)
    tiles = [
        ("best", f"{sum(row.is_met for row in with_goal)} / {len(with_goal)}", "goals met"),
        ("", str(ahead), "rows ahead of Kafka"),
        ("", str(sum(advantage < 1 for advantage in compared)), "rows behind Kafka"),
        ("", str(sum(row.bound is not None for row in rows)), "rows where the client is the limit"),
    ]
    cells = "".join(
        f'<div class="tile {kind}"><b>{figure}</b><span>{text}</span></div>' for kind, figure, text in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _overview(rows: Sequence[PageRow]) -> str:
    judged = [row for row in rows if row.goal is not None and row.advantage is not None]
    if not judged:
        return ""
    plots = ""
    for name in _durabilities(judged):
        groups = by_group([row for row in judged if row.durability == name])
        libraries = groups.pop(LIBRARIES_GROUP, [])
        plots += f"<h3>{_durability_title(name)}</h3>{advantages([row for group in groups.values() for row in group])}"
        if libraries:
            plots += _folded(f"{LIBRARIES_GROUP}, {_goals_text(libraries)}", advantages(libraries))
    marks = (("ahead", "better than Kafka"), ("behind", "worse than Kafka"), ("goal", "goal"))
    return (
        "<h2>How many times better than Kafka</h2>"
        '<p class="note">The rows that have a goal. Where less is better, as with latency, memory and processor time, '
        "the ratio is turned over: to the right is always better. The scale doubles from line to line.</p>"
        f'<div class="card">{plots}{_legend(marks)}</div>'
    )


def _losses(rows: Sequence[PageRow]) -> str:
    """What a reader would find out anyway."""
    missed = [row for row in rows if row.goal is not None and not row.is_met]
    slower = [row for row in rows if row not in missed and row.advantage is not None and row.advantage < 1]
    if not missed and not slower:
        return "<h2>Where Penstock loses</h2><p>In this run no goal was missed, and no row was behind Kafka.</p>"
    parts = ["<h2>Where Penstock loses</h2>"]
    if missed:
        parts.append(f'<div class="card"><h3>Goals missed</h3>{_loss_table(missed)}</div>')
    if slower:
        parts.append(f'<div class="card"><h3>Behind Kafka, no goal missed</h3>{_loss_table(slower)}</div>')
    return "".join(parts)


def _loss_table(rows: Sequence[PageRow]) -> str:
    """The worst first."""
    worst_first = sorted(rows, key=lambda row: row.advantage or 0)
    head = "<th>row</th><th class='text'>durability</th><th>Penstock</th><th>Kafka</th><th class='text'>unit</th>"
    head += "<th>times better</th><th class='text'>goal</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_loss, worst_first))}</tbody></table>"


def _loss(row: PageRow) -> str:
    better = "n/a" if row.advantage is None else times(row.advantage)
    return (
        f'<tr><td>{escape(row.name)}</td><td class="text">{escape(row.durability)}</td>'
        f'{_figure_cell(row, PENSTOCK)}{_figure_cell(row, KAFKA)}<td class="text">{escape(row.unit)}</td>'
        f'<td>{better}</td><td class="text">{escape(row.goal_text)}</td></tr>'
    )


def _durability(name: str, rows: Sequence[PageRow]) -> str:
    mine = [row for row in rows if row.durability == name]
    marks = [(system, title) for system, title in SYSTEMS.items() if any(system in row.figures for row in mine)]
    if any(limit in row.figures for limit in LIMITS for row in mine):
        marks.append(("limit", "a limit in the same run"))
    marks.append(("goal", "goal"))
    note = "Medians, and from the lowest to the highest repetition. On the right: how many times better than Kafka."
    parts = [f"<h2>{_durability_title(name)}</h2>", f'<p class="note">{note}</p>', _legend(marks)]
    for title, group in by_group(mine).items():
        if title == LIBRARIES_GROUP:
            plot = _folded(f"{title}, {_goals_text(group)}", bars(group))
        else:
            plot = f"<h3>{title}</h3>{bars(group)}"
        parts.append(f'<section class="card">{plot}</section>')
    return "".join(parts)


def _folded(title: str, body: str) -> str:
    """What is long and of less interest than the rest."""
    return f"<details><summary>{title}</summary>{body}</details>"


def _goals_text(rows: Sequence[PageRow]) -> str:
    with_goal = [row for row in rows if row.goal is not None]
    return f"{sum(row.is_met for row in with_goal)} of {len(with_goal)} goals met"


def _table(rows: Sequence[PageRow]) -> str:
    head = "".join(
        f'<th class="{kind}">{escape(text)}</th>'
        for kind, text in [
            ("text", "row"),
            ("text", "durability"),
            *(("", title) for title in (*SYSTEMS.values(), "limit")),
            ("text", "unit"),
            ("", "ratio"),
            ("text", "goal"),
            ("text", ""),
        ]
    )
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return (
        "<h2>All rows</h2>"
        "<p class='note'>The ratio is Penstock's figure divided by Kafka's. Small: the lowest and the highest "
        "repetition.</p>"
        f'<div class="card"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cells(row: PageRow) -> str:
    verdict = "" if row.goal is None else "met" if row.is_met else "missed"
    bound = f"bound: {row.bound}" if row.bound else ""
    goal = ", ".join(part for part in (row.goal_text, bound) if part)
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    return (
        f"<td>{escape(row.name)}</td>"
        f'<td class="text unit">{escape(row.durability)}</td>{"".join(_figure_cell(row, system) for system in SYSTEMS)}'
        f"<td>{_limits_text(row)}</td>"
        f'<td class="text">{escape(row.unit)}</td><td>{ratio}</td><td class="text">{escape(goal)}</td>'
        f'<td class="text {verdict}">{verdict}</td>'
    )


def _limits_text(row: PageRow) -> str:
    return ", ".join(f"{number(row.figures[each])}<small>{each}</small>" for each in LIMITS if each in row.figures)


def _figure_cell(row: PageRow, system: str) -> str:
    value = row.figures.get(system)
    if value is None:
        return f'<td class="none" title="{escape(row.reasons.get(system, "not measured"))}">n/a</td>'
    low, high = row.spread.get(system, (value, value))
    spread = f"<small>{number(low)} to {number(high)}</small>" if low < high else ""
    return f"<td>{number(value)}{spread}</td>"


def _missing(rows: Sequence[PageRow], versions: Mapping[str, Any]) -> str:
    """Nobody is left out silently: every system without a figure, and why, once for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for system in SYSTEMS:
            if system not in row.figures:
                reasons.setdefault((system, row.reasons.get(system, "not measured")), []).append(row.name)
    if not reasons:
        return ""
    lines = (
        f"<b>{SYSTEMS[system]}</b>{_absent(system, versions)} in {_rows_text(names, len(rows))}: {escape(reason)}"
        for (system, reason), names in reasons.items()
    )
    return f'<h2>What has no figure</h2><div class="card">{_items(lines)}</div>'


def _absent(system: str, versions: Mapping[str, Any]) -> str:
    return "" if system in versions else ", which is not among the versions of this run,"


def _rows_text(names: Sequence[str], count: int) -> str:
    if len(names) == count:
        return "all rows"
    return escape(", ".join(names)) if len(names) <= 3 else f"{len(names)} rows"


def _made(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    place = machine.items() if isinstance(machine, Mapping) else [("machine", machine)]
    facts = [("made by", f"<code>{escape(str(result['command']))}</code>"), ("finished", escape(str(result["date"])))]
    facts += [(escape(str(name).replace("_", " ")), escape(str(value))) for name, value in [*place, *versions.items()]]
    terms = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return f'<h2>Machine, versions, command</h2><div class="card"><dl>{terms}</dl></div>'


def _durabilities(rows: Sequence[PageRow]) -> list[str]:
    """Those that occur, the one that goals are judged in first."""
    present = dict.fromkeys(row.durability for row in rows)
    return [name for name in DURABILITIES if name in present] + [name for name in present if name not in DURABILITIES]


def _durability_title(name: str) -> str:
    return escape(DURABILITIES.get(name, name))


def _legend(marks: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><i class="{kind}"></i>{escape(text)}</li>' for kind, text in marks)
    return f'<ul class="legend">{items}</ul>'


def _items(lines: Iterable[str]) -> str:
    return '<ul class="plain">' + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"
