"""`penstock pipeline`: topics to tables and back, on Spark.

A command is a function whose pipeline is imported inside it. Those that turn topics into other topics and tables are in
`pipeline_transforms` and are added to the group here.
"""

from __future__ import annotations

import typer

app = typer.Typer(help="Archive, replay, transform and check topics on Spark.", no_args_is_help=True)
