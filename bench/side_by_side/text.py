"""A result for a reader: a table with ratios, goals met and missed, and the generated part of docs/performance.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import brokers
from bench.side_by_side.judging import OTHER_PEERS, goals
from bench.side_by_side.rows import KAFKA, MACHINE, PENSTOCK, STUB

DOCS = brokers.ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- begin: side by side -->", "<!-- end: side by side -->"
HEAD = ("row", "durability", "Penstock", "Kafka", "NATS", "RabbitMQ", "unit", "ratio", "goal", "")


def number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    systems = [_with_spread(row, PENSTOCK), _with_spread(row, KAFKA), *(number(row[peer]) for peer in OTHER_PEERS)]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    return row["row"], row["durability"], *systems, row["unit"], ratio, goal_text(row), _verdict(row)


def _with_spread(row: Mapping[str, Any], system: str) -> str:
    low, high = row["spread"].get(system, (0, 0))
    spread = f" ({number(low)} to {number(high)})" if low < high else ""
    return number(row[system]) + spread


def goal_text(row: Mapping[str, Any]) -> str:
    """What the figure is held against, with that figure where it has no column of its own."""
    extra = [f"{system} {number(row[system])}" for system in (STUB, MACHINE) if row.get(system) is not None]
    bound = [f"bound: {row['bound']}"] if row["bound"] else []
    goal = row["goal"]
    if goal is None:
        return ", ".join([*bound, *extra])
    limit = f", under {goal['under']:g} {row['unit']}" if "under" in goal else ""
    return ", ".join([f"{goal['direction']} {goal['ratio']:g} x {goal['of']}{limit}", *bound, *extra])


def _verdict(row: Mapping[str, Any]) -> str:
    if row["goal"] is None:
        return ""
    return "met" if row["met"] else "MISSED"


def line(row: Mapping[str, Any]) -> str:
    name, durability, ours, theirs, *peers, unit, ratio, goal, verdict = cells(row)
    others = " ".join(f"{peer:>8}" for peer in peers)
    return f"{name:<34} {durability:<10} {ours:>28} {theirs:>28} {others} {unit:<16} {ratio:>7}  {verdict:<6} {goal}"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = " ".join(f"{name:>8}" for name in OTHER_PEERS)
    title = f"{'row':<34} {'durability':<10} {'penstock':>28} {'kafka':>28} {head} {'unit':<16} {'ratio':>7}"
    return "\n".join([title, *(line(row) for row in rows)])


def goals_text(rows: Sequence[Mapping[str, Any]]) -> str:
    met, missed = goals(rows)
    lines = [f"{len(met)} of {len(met) + len(missed)} goals are met"]
    lines += [f"  missed: {row['row']}: {_reached(row)}" for row in missed]
    return "\n".join(lines)


def _reached(row: Mapping[str, Any]) -> str:
    ours, of = row[PENSTOCK], row["goal"]["of"]
    theirs = row.get(of)
    if ours is None or not theirs:
        return f"{goal_text(row)}, but a figure is missing"
    return f"{ours / theirs:.2f} x {of} ({number(ours)} and {number(theirs)} {row['unit']}), wanted {goal_text(row)}"


def missing_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every system without a figure and why, once for each reason."""
    reasons = {(system, reason) for row in rows for system, reason in row["reasons"].items()}
    return "\n".join(f"{system} is n/a where {reason}" for system, reason in sorted(reasons))


def write_docs(path: Path, document: Mapping[str, Any]) -> None:
    """Replaces the generated part of the page; its prose stays."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has lost its marks {BEGIN} and {END}: put them back where the figures belong")
    path.write_text(before + generated(document) + after)


def generated(document: Mapping[str, Any]) -> str:
    machine, rows = document["machine"], document["rows"]
    place = (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB of memory, {machine['system']}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    made = f"Made by `{document['command']}` on {document['date']}. Machine: {place}. Versions: {versions}."
    verdicts = goals_text(rows).replace("\n  missed:", "\n- missed:").replace("\n", "\n\n", 1)
    lines = [HEAD, ["---"] * len(HEAD), *(cells(row) for row in rows)]
    markdown = "\n".join("| " + " | ".join(each) + " |" for each in lines)
    why = "\n".join(f"- {each}" for each in missing_text(rows).splitlines())
    return "\n\n".join([BEGIN, made, verdicts, markdown, why, END])
