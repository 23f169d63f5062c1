"""What several commands take, check and ask in the same way."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Annotated

import typer

from penstock.cli.client import fail
from penstock.cli.group_offsets import BadPlan, Selection, parse_selection

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change and change nothing.")]
TopicChoices = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:0,1,2]", help="A topic, or some of its partitions; may be repeated."),
]


def known_names(option: str, given: list[str] | None, known: Collection[str]) -> list[str]:
    """Kafka's spelling of the names, however they were written."""
    spelled = {name.lower(): name for name in known}
    for name in given or ():
        if name.lower() not in spelled:
            fail(f'{option}: there is no "{name}", only {", ".join(known)}', 2)
    return [spelled[name.lower()] for name in given or ()]


def topic_selections(topics: list[str] | None, option: str = "--topic ") -> list[Selection]:
    try:
        return [parse_selection(text) for text in topics or ()]
    except BadPlan as refused:
        fail(f"{option}{refused}", 2)


def confirm(question: str, is_confirmed: bool, does: str, done: str) -> None:
    """Asks on standard error, so that standard output has only what was done."""
    if is_confirmed:
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answered = sys.stdin.readline()
    if not answered:
        print(file=sys.stderr)  # the question is still waiting on its line
        fail(f"nobody answered, nothing was {done}: --yes {does} without asking")
    if answered.strip().lower() not in ("y", "yes"):
        fail(f"nothing was {done}")
