"""`penstock producers`: which producers a topic's partitions remember, and where their transactions begin."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout, connected
from penstock.cli.options import AsJson, topic_selections
from penstock.cli.terminal import print_json
from penstock.cli.transaction_client import TransactionClient
from penstock.cli.transaction_view import print_producers


def producers(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC[:0,1,2]...", show_default=False)],
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the idempotent and transactional producers of a topic's partitions."""
    selections = topic_selections(topics, option="")
    client = TransactionClient(connected(bootstrap, timeout))
    views = client.producers(client.leaders(selections))
    if json:
        print_json([view.document() for view in views])
    else:
        print_producers(views)
