"""All commands as one program."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import penstock
from penstock.cli import broker, cluster, group, log, pipeline, topic, transaction
from penstock.cli.client import fail
from penstock.cli.consume import consume
from penstock.cli.flags_help import add_broker_commands
from penstock.cli.produce import produce
from penstock.cli.producers import producers
from penstock.wire.errors import WireError


class _Program(TyperGroup):
    """What goes wrong between a command and a broker ends the command with the reason."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except WireError as error:
            fail(str(error))


def run() -> None:
    build_app()(prog_name="penstock")


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="penstock",
        cls=_Program,
        help="A message queue that speaks the Kafka protocol: the broker, and tools for any broker of that protocol.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(help=app.info.help)(_version)
    add_broker_commands(app)
    app.add_typer(topic.app, name="topic")
    app.command()(produce)
    app.command()(consume)
    app.add_typer(group.app, name="group")
    app.add_typer(transaction.app, name="transaction")
    app.command()(producers)
    app.add_typer(cluster.app, name="cluster")
    app.add_typer(broker.app, name="broker")
    app.add_typer(log.app, name="log")
    app.add_typer(pipeline.app, name="pipeline")
    return app


def _print_version(asked: bool) -> None:
    if asked:
        print(f"penstock {penstock.__version__}")
        raise typer.Exit


def _version(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
