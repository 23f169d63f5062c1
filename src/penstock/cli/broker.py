"""`penstock broker`: take a broker out of the cluster, without losing what it holds."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout, fail
from penstock.cli.cluster_client import ClusterClient
from penstock.cli.cluster_view import ClusterView
from penstock.cli.moving import LOOK_EVERY_S, carry_out, show_plan, wait_until_moved
from penstock.cli.options import AsJson, DryRun, Yes, confirm
from penstock.cli.terminal import counted
from penstock.cli.throttling import Throttle, take_back_throttle_of_drain, throttled
from penstock.controller.balance import Move, vacated
from penstock.core.errors import BrokerError
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.wire.errors import reason

_NAMED = 5

app = typer.Typer(help="Take brokers out of the cluster.", no_args_is_help=True)

Id = Annotated[int, typer.Argument(metavar="ID", show_default=False, help="The broker's id.")]


@app.command()
def drain(
    broker_id: Id,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Give it up: the broker keeps what it has, and may be given replicas again."),
    ] = False,
    throttle: Throttle = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move everything that a broker holds to others, so that it can be stopped for good. It gets nothing new."""
    client = ClusterClient.of(bootstrap, timeout)
    view = client.view()
    if view.broker(broker_id) is None:
        fail(f"there is no broker {broker_id}: `penstock cluster describe` shows those there are")
    if cancel:
        _cancel(client, view, broker_id)
        return
    moves = _plan(view, broker_id)
    show_plan(client, view, moves, as_json=json)
    if dry_run:
        return
    if moves:
        confirm(f"Move everything off broker {broker_id}?", yes, "moves", "moved")
    client.set_draining(broker_id, True)
    # Topics may have been created before the broker was known to be drained.
    while moves := _plan(view := client.view(), broker_id):
        with throttled(client, throttle, moves):
            carry_out(client, moves)
        client.let_preferred_lead(move.topic_partition for move in moves)
    with throttled(client, throttle):
        wait_until_moved(client, {each.partition for each in view.partitions if broker_id in each.leaving})
    _tell_what_next(view, broker_id)


def _plan(view: ClusterView, broker_id: int) -> tuple[Move, ...]:
    """Topics of the cluster's own have as many replicas as there are brokers, so they may have one less."""
    broker = view.broker(broker_id)
    assert broker is not None
    if stranded := view.stranded(broker_id):
        names = ", ".join(str(each.partition) for each in stranded[:_NAMED]) + (", ..." if stranded[_NAMED:] else "")
        fail(
            f"broker {broker_id} cannot be drained: no replica that is in sync is left of {names}. Bring their brokers "
            "back, or give up what is lost: delete the topic, or have another replica elected (UNCLEAN) if there is one"
        )
    try:
        return vacated(view.layout, {broker.id}, INTERNAL_TOPICS)
    except BrokerError as refused:
        fail(f"broker {broker_id} cannot be drained: {reason(refused)}")


def _cancel(client: ClusterClient, view: ClusterView, broker_id: int) -> None:
    client.set_draining(broker_id, False)
    leaving = [each.partition for each in view.partitions if broker_id in each.leaving]
    if leaving:
        client.reassign(dict.fromkeys(leaving))
    given_up = counted(len(leaving), "move")
    print(f"penstock: broker {broker_id} is not drained any more, {given_up} given up", file=sys.stderr)
    take_back_throttle_of_drain(client, broker_id)


def _tell_what_next(view: ClusterView, broker_id: int) -> None:
    broker = view.broker(broker_id)
    stop = "stop it, then " if broker is not None and broker.is_alive else ""
    print(
        f"penstock: broker {broker_id} holds nothing any more: {stop}`penstock broker unregister {broker_id}` makes "
        f"the cluster forget it, `penstock broker drain {broker_id} --cancel` gives it work again",
        file=sys.stderr,
    )


@app.command()
def unregister(
    broker_id: Id,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Make the cluster forget a broker that has been drained and stopped. Its id can be given to another."""
    client = ClusterClient.of(bootstrap, timeout)
    _wait_for_end_of_session(client, broker_id, timeout)
    client.unregister(broker_id)
    print(f"unregistered broker {broker_id}")


def _wait_for_end_of_session(client: ClusterClient, broker_id: int, timeout_s: float) -> None:
    """Of a broker that has died just now. One that answers is alive, and is refused."""
    if not client.is_silent(broker_id):
        return
    how_long = (
        f"broker {broker_id} does not answer, but its session has not ended yet, which can take up to "
        f"{client.session_timeout_s():g} s (broker.session.timeout.ms)"
    )
    print(f"penstock: {how_long}: waiting for it", file=sys.stderr)
    deadline = time.monotonic() + timeout_s
    while client.is_silent(broker_id):
        if time.monotonic() >= deadline:
            fail(f"{how_long}: try again then, or wait longer with --timeout")
        time.sleep(LOOK_EVERY_S)
