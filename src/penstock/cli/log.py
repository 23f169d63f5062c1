"""`penstock log dump`: what the files of a log hold, and whether it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.client import fail
from penstock.cli.terminal import counted

app = typer.Typer(help="Look into the files of a broker's log.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """One command for now; the group keeps its name free for more."""


@app.command()
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            show_default=False,
            help="Segment files (.log, .index, .timeindex, .txnindex, .snapshot), checkpoints, or whole directories.",
        ),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Records too, not only batches.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Print only totals and what is wrong.")] = False,
) -> None:
    """Print what files of a log hold, and check batches and indexes. Exits with 1 when something is wrong."""
    # Not at the top of the file: the other tools would load the record kernel and the codecs too.
    from penstock.cli.log_dump import dump_files

    problems = dump_files(paths, records=records, as_json=json, only_check=check)
    if problems:
        fail(f"{counted(problems, 'problem')} found")
