"""The help of the commands that run brokers: their options, and the whole table of keys, in the looks of the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from penstock.cli import serve, up
from penstock.cli.flags import Option
from penstock.core.config_keys import BROKER_KEY_GROUPS
from penstock.core.config_values import to_text

_LAYERS = (
    "A flag beats --set, which beats the environment, which beats the file. In the environment a key is PENSTOCK_ and "
    "its name in upper case, dots as underscores."
)


def add_broker_commands(app: typer.Typer) -> None:
    """Makes them known for help; `main` runs them without ever coming here."""
    _add(app, "serve", serve.serve, serve.OPTIONS, f"Run a broker until Ctrl-C or SIGTERM.\n\n{_LAYERS}")
    _add(
        app,
        "up",
        up.up,
        up.OPTIONS,
        "Run a cluster of brokers on this machine until Ctrl-C or SIGTERM.\n\nA broker that ends by itself is started "
        f"again. --config, --set and the environment are those of every broker. {_LAYERS}",
    )


def _add(
    app: typer.Typer, name: str, run: Callable[[Sequence[str]], int], options: Sequence[Option], described: str
) -> None:
    def command(**_: object) -> None:
        raise typer.Exit(run([]))

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(option) for option in options] + [_help_parameter()]
    )
    app.command(name, help=described, add_help_option=False)(command)


def _parameter(option: Option) -> inspect.Parameter:
    if option.metavar is None:
        annotation = Annotated[bool, typer.Option(option.flag, help=option.help, show_default=False)]
        return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
    described = Annotated[str | None, typer.Option(option.flag, metavar=option.metavar, help=option.help)]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=described)


def _help_parameter() -> inspect.Parameter:
    annotation = Annotated[
        bool,
        typer.Option("--help", help="Show this message and exit.", is_eager=True, callback=_print_help),
    ]
    return inspect.Parameter("help", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)


def _print_help(context: typer.Context, asked: bool) -> None:
    if not asked:
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    print(context.get_help())
    console = Console(highlight=False)
    for group, keys in BROKER_KEY_GROUPS.items():
        console.print(f"\n [bold]Keys: {group}[/bold]")
        for key in keys:
            default = to_text(key.default)
            console.print(f" [cyan]{key.name}[/cyan]" + ("" if default is None else f" = {default}"))
            console.print(Padding(Text(key.doc), (0, 1, 0, 5)))
    raise typer.Exit
