"""`penstock transaction`: list and describe transactions, abort them, find and end those that hang."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout, connected, fail
from penstock.cli.options import AsJson, TopicChoices, Yes, confirm, known_names, topic_selections
from penstock.cli.terminal import counted, print_json, shown
from penstock.cli.transaction_client import TransactionClient
from penstock.cli.transaction_view import (
    ABORTED,
    BEING_ENDED,
    ONGOING,
    RUNNING,
    STATES,
    HangingSearch,
    ProducerView,
    TransactionView,
    print_listed,
    print_producers,
    print_transaction,
)
from penstock.core.errors import BrokerError
from penstock.wire.errors import reason

app = typer.Typer(help="List, describe and abort transactions, also those that hang.", no_args_is_help=True)

# Kafka's transaction.max.timeout.ms: by then a coordinator that knows of a transaction has ended it.
_HANGING_AFTER_S = 900.0

Hanging = Annotated[
    bool,
    typer.Option("--hanging", help="Those open in a partition that their coordinator does not know of."),
]
ProducerIds = Annotated[
    list[int] | None,
    typer.Option("--producer-id", metavar="N", min=0, help="Only of this producer; may be repeated."),
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        "--older-than",
        metavar="SECONDS",
        min=0,
        help=f"Only those running for longer; with --hanging without a write for longer, {_HANGING_AFTER_S:g} s "
        "when not given.",
    ),
]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(STATES)}.")
    ] = None,
    matching: Annotated[
        str | None, typer.Option("--matching", metavar="REGEX", help="Only transactional ids that match as a whole.")
    ] = None,
    producer_id: ProducerIds = None,
    older_than: OlderThan = None,
    hanging: Hanging = False,
    topic: TopicChoices = None,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List transactional ids with the states of their transactions, or with --hanging what hangs in partitions."""
    states, selections = known_names("--state", state, STATES), topic_selections(topic)
    if hanging and (states or matching):
        fail("--hanging finds transactions in partitions: it goes with --topic, --producer-id and --older-than", 2)
    if selections and not hanging:
        fail("--topic goes with --hanging: coordinators do not list transactions by topic", 2)
    client = TransactionClient(connected(bootstrap, timeout))
    if hanging:
        search = client.hanging(selections, producer_id or (), _hanging_ms(older_than))
        _print_search(search, json)
        return
    older_than_ms = None if older_than is None else _milliseconds(older_than)
    if older_than is not None and not states:
        states = list(RUNNING)  # an id without a transaction counts as running since 1970
    views = client.listed(states, producer_id or (), older_than_ms, matching)
    if json:
        print_json([asdict(view) for view in views])
    else:
        print_listed(views)


@app.command()
def describe(
    transactional_ids: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", show_default=False)],
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a transactional id's state, producer, timeout and partitions."""
    named = _names(transactional_ids)
    views = _described(TransactionClient(connected(bootstrap, timeout)), named)
    if json:
        print_json([view.document() for view in views])
        return
    for number, view in enumerate(views):
        if number:
            print()
        print_transaction(view, _now_ms())


@app.command()
def abort(
    transactional_ids: Annotated[
        list[str] | None, typer.Argument(metavar="TRANSACTIONAL_ID...", show_default=False)
    ] = None,
    hanging: Hanging = False,
    topic: TopicChoices = None,
    producer_id: ProducerIds = None,
    older_than: OlderThan = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the open transactions of transactional ids, whose producers are fenced; or with --hanging what hangs."""
    if hanging == bool(transactional_ids):
        fail("abort takes either transactional ids or --hanging", 2)
    named, selections = _names(transactional_ids or []), topic_selections(topic)
    if not hanging and (selections or producer_id or older_than is not None):
        fail("--topic, --producer-id and --older-than go with --hanging", 2)
    client = TransactionClient(connected(bootstrap, timeout))
    if hanging:
        find = partial(client.hanging, selections, producer_id or (), _hanging_ms(older_than))
        failures = _end_hanging(client, find, yes)
    else:
        failures = _abort(client, named, yes)
    if failures:
        fail("; ".join(failures))


def _names(transactional_ids: Sequence[str]) -> list[str]:
    if "" in transactional_ids:
        fail("a transactional id cannot be empty", 2)
    return list(dict.fromkeys(transactional_ids))


def _described(client: TransactionClient, transactional_ids: Sequence[str]) -> list[TransactionView]:
    found = {name: client.described(name) for name in transactional_ids}
    missing = [f'no transactional id "{name}"' for name, view in found.items() if view is None]
    if missing:
        fail("; ".join(missing))
    return [view for view in found.values() if view is not None]


def _abort(client: TransactionClient, transactional_ids: Sequence[str], is_confirmed: bool) -> list[str]:
    views = _described(client, transactional_ids)
    refused = [_why_not(view) for view in views if view.state != ONGOING]
    if refused:
        fail("; ".join(refused))
    names = ", ".join(shown(view.transactional_id) for view in views)
    confirm(f"Abort the transaction and fence the producer of {names}?", is_confirmed, "aborts", "aborted")
    failures = []
    for view in views:
        ended = client.abort(view)
        if ended in ABORTED:
            print(f"aborted {shown(view.transactional_id)}")
        else:
            failures.append(f'transactional id "{view.transactional_id}": its producer ended the transaction before')
    return failures


def _why_not(view: TransactionView) -> str:
    name = f'transactional id "{view.transactional_id}"'
    if view.state in BEING_ENDED:
        return f"{name} is in {view.state}: its end is decided, and its coordinator is writing the markers"
    return f"{name} has no transaction open, it is in {view.state}"


def _end_hanging(client: TransactionClient, find: Callable[[], HangingSearch], is_confirmed: bool) -> list[str]:
    search = find()
    if not search.found:
        fail(_nothing_hangs(search))
    print_producers(search.found)
    _tell_what_is_left_out(search)
    which = "this transaction" if len(search.found) == 1 else f"these {len(search.found)} transactions"
    confirm(f"Abort {which}?", is_confirmed, "aborts", "aborted")
    # While somebody thought about it, a producer may have gone on with the transaction.
    still = {_identity(view) for view in find().found}
    failures = []
    for view in search.found:
        what = f"{view.partition}, producer {view.producer_id}, from offset {view.start_offset}"
        if _identity(view) not in still:
            failures.append(f"{what}: it does not hang any more")
            continue
        try:
            client.end(view, search.leaders[view.partition])
            print(f"aborted {what}")
        except BrokerError as refused:
            failures.append(f"{what}: {reason(refused)}")
    return failures


def _identity(view: ProducerView) -> tuple[object, ...]:
    return view.partition, view.producer_id, view.start_offset


def _print_search(search: HangingSearch, json: bool) -> None:
    if json:
        print_json([view.document() for view in search.found])
    elif search.found:
        print_producers(search.found)
    if search.found:
        _tell_what_is_left_out(search)
    else:
        print(f"penstock: {_nothing_hangs(search)}", file=sys.stderr)


def _nothing_hangs(search: HangingSearch) -> str:
    left_out = f"; {_left_out(search)}" if search.too_young else ""
    return f"nothing hangs in {counted(len(search.leaders), 'partition')}{left_out}"


def _tell_what_is_left_out(search: HangingSearch) -> None:
    if search.too_young:
        print(f"penstock: {_left_out(search)}", file=sys.stderr)


def _left_out(search: HangingSearch) -> str:
    return f"{counted(search.too_young, 'transaction')} written to of late left out: --older-than 0 takes all"


def _hanging_ms(older_than: float | None) -> int:
    return _milliseconds(_HANGING_AFTER_S if older_than is None else older_than)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1_000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
