"""Prints what log_reader finds: as text for people, as lines of JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.log_reader import Fact, Finding, Problem, is_readable, read_any


def dump_files(paths: list[Path], *, records: bool, as_json: bool, only_check: bool) -> int:
    """The number of problems found."""
    problems = 0
    for path in _files(paths):
        if not as_json:
            print(f"{path}:")
        for finding in _findings(path, records):
            problems += isinstance(finding, Problem)
            if not (only_check and isinstance(finding, Fact) and finding.kind != "total"):
                print(_json_line(path, finding) if as_json else _text_line(finding))
    return problems


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(file for file in path.iterdir() if is_readable(file))
        else:
            yield path


def _findings(path: Path, records: bool) -> Iterator[Finding]:
    try:
        yield from read_any(path, records)
    except OSError as error:
        yield Problem(error.strerror or str(error))


def _text_line(finding: Finding) -> str:
    if isinstance(finding, Problem):
        return f"  PROBLEM: {finding.text}"
    indent = "    " if finding.kind == "record" else "  "
    return f"{indent}{finding.kind} " + " ".join(f"{name}={_text(value)}" for name, value in finding.fields.items())


def _text(value: object) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _quoted(value)


def _quoted(value: object) -> str:
    """Text bare where it is one word, everything else as JSON."""
    if isinstance(value, str) and value.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return value
    return json.dumps(value, ensure_ascii=False)


def _json_line(path: Path, finding: Finding) -> str:
    document: dict[str, object] = {"file": str(path)}
    if isinstance(finding, Problem):
        document["problem"] = finding.text
    else:
        document |= {"kind": finding.kind} | finding.fields
    return json.dumps(document, ensure_ascii=False)
