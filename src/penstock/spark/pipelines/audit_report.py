"""An audit as a page: one file, plots within, nothing fetched from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from penstock.spark.pipelines.audit_plots import bars, over_time, strips
from penstock.spark.pipelines.audit_result import AuditResult, PartitionAudit, ReplayedAudit

_STYLE = """
body { font: 15px/1.5 sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-size: 0.9em; } td, th { padding: 0.25em 0.7em; text-align: right; }
th { border-bottom: 2px solid #888; } td { border-bottom: 1px solid #ddd; }
td.name, th.name, td.words { text-align: left; } code { font-size: 0.85em; }
.equal { color: #228833; } .different { color: #cc3311; } .note { color: #666; }
"""


def page(result: AuditResult) -> str:
    verdict = (
        '<h1 class="equal">Equal</h1>'
        if result.is_equal
        else f'<h1 class="different">{len(result.differences)} differences</h1>'
    )
    sections = [
        verdict,
        f'<p class="note">{escape(result.archive)}, brokers {escape(result.bootstrap)}, {escape(result.when)}</p>',
        _list(result.differences, "different"),
        _list(result.notes, "note"),
        _archive_section(result),
        _replay_section(result),
        _time_section(result),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Audit</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _archive_section(result: AuditResult) -> str:
    rows = [
        (_name(each), (each.archive.rows, each.archive.rows - each.retired, each.broker.rows if each.broker else 0))
        for each in result.partitions
    ]
    header = (
        "partition",
        "archived",
        "first",
        "end",
        "broker",
        "missing",
        "extra",
        "changed",
        "twice",
        "gaps",
        "checksum",
    )
    cells = [_archive_cells(each) for each in result.partitions]
    notes = [f"{_name(each)}: {note}" for each in result.partitions for note in each.notes]
    return "\n".join(
        (
            "<h2>Broker and archive</h2>",
            bars(rows, ("archive", "archive, compared", "broker, compared")),
            _table(header, cells),
            _list(notes, "note"),
            "<h2>Offsets</h2>",
            '<p class="note">Green is the same in both, grey is in the archive only since the broker has deleted it, '
            "red is not the same.</p>",
            strips([(_name(each), each.strip) for each in result.partitions]),
        )
    )


def _archive_cells(each: PartitionAudit) -> tuple[str, ...]:
    broker = "" if each.broker is None else f"{each.broker.rows:,}"
    numbers = (each.missing.count, each.extra.count, each.other.count, each.duplicates, each.gaps.count)
    told = (f"{each.archive.rows:,}", str(each.archive.first), str(each.archive.end), broker)
    return (_name(each), *told, *(f"{number:,}" for number in numbers), each.archive.checksum[-16:])


def _replay_section(result: AuditResult) -> str:
    if result.replayed_to is None:
        return ""
    rows = [(_name(each), (each.archive_rows, each.replayed_rows)) for each in result.replayed]
    cells = [
        (
            _name(each),
            f"{each.archive_rows:,}",
            f"{each.replayed_rows:,}",
            "same" if each.archive_checksum == each.replayed_checksum else "not the same",
            {True: "same", False: "another", None: "not compared"}[each.is_in_order],
        )
        for each in result.replayed
    ]
    return "\n".join(
        (
            f"<h2>Archive and {escape(result.replayed_to)}</h2>",
            f'<p class="note">{escape(result.selection)}</p>',
            bars(rows, ("archive", "replayed")),
            _table(("partition", "selected", "replayed", "contents", "order"), cells),
        )
    )


def _time_section(result: AuditResult) -> str:
    plot = over_time({name: numbers for name, numbers in result.rows_by_time.items() if numbers})
    return f"<h2>Records by hour</h2>\n{plot}" if plot else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th{_class(at)}>{escape(cell)}</th>" for at, cell in enumerate(header))
    body = "\n".join(
        "<tr>" + "".join(f"<td{_class(at)}>{escape(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _class(column: int) -> str:
    return "" if column else ' class="name"'


def _list(texts: Sequence[str], kind: str) -> str:
    if not texts:
        return ""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def _name(each: PartitionAudit | ReplayedAudit) -> str:
    return each.topic if each.partition is None else f"{each.topic}-{each.partition}"
