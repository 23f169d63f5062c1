"""`penstock cluster`: show the brokers and what they hold, spread it evenly, and end an upgrade."""

from __future__ import annotations

import sys

import typer

from penstock.cli.client import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Timeout, fail
from penstock.cli.cluster_client import ClusterClient
from penstock.cli.cluster_view import print_cluster
from penstock.cli.moving import carry_out, show_plan, wait_until_moved
from penstock.cli.options import AsJson, DryRun, Yes, confirm
from penstock.cli.terminal import counted, print_json
from penstock.cli.throttling import Throttle, take_back_throttle, throttled
from penstock.controller.balance import rebalanced

app = typer.Typer(
    help="Show the cluster's brokers, spread its partitions over them, end an upgrade.", no_args_is_help=True
)


@app.command()
def describe(
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the brokers, the controller, partitions that lack replicas or a leader, and how even the load is."""
    view = ClusterClient.of(bootstrap, timeout).view()
    if json:
        print_json(view.document())
    else:
        print_cluster(view)


@app.command()
def upgrade(
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Let the cluster use what every one of its brokers knows, once all of them run the new release.

    There is no way back: brokers of the old release cannot join it any more.
    """
    client = ClusterClient.of(bootstrap, timeout)
    changes = [each for each in client.features() if each.highest > each.finalized]
    for each in changes:
        print(f"{each.name}: {each.finalized} -> {each.highest}")
    if not changes:
        print("penstock: the cluster uses all that its brokers know", file=sys.stderr)
    if dry_run or not changes:
        return
    confirm("Change it? There is no way back.", yes, "upgrades", "upgraded")
    client.finalize({each.name: each.highest for each in changes})
    print("penstock: upgraded", file=sys.stderr)


@app.command()
def rebalance(
    throttle: Throttle = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Spread replicas and leaders evenly over all brokers, with as few copies as that takes."""
    client = ClusterClient.of(bootstrap, timeout)
    view = client.view()
    if moving := {each.partition for each in view.partitions if each.is_moving}:
        if dry_run:
            fail(f"{counted(len(moving), 'partition')} still moving: wait until `penstock cluster describe` shows none")
        print(f"penstock: {counted(len(moving), 'partition')} still moving: waiting for that first", file=sys.stderr)
        with throttled(client, throttle):
            wait_until_moved(client, moving)
        view = client.view()
    moves = rebalanced(view.layout)
    led_by_others = [each.partition for each in view.partitions if each.leader not in (None, each.replicas[0])]
    show_plan(client, view, moves, as_json=json)
    if not moves and not led_by_others:
        print("penstock: the cluster is balanced, there is nothing to move", file=sys.stderr)
        if throttle is not None and not dry_run:
            take_back_throttle(client)
    if dry_run or not (moves or led_by_others):
        return
    if not moves:
        led = counted(len(led_by_others), "partition")
        confirm(f"Let the preferred replica lead, of {led}?", yes, "moves leaders", "moved")
    else:
        confirm("Move them?", yes, "moves", "moved")
    with throttled(client, throttle, moves):
        carry_out(client, moves)
    client.let_preferred_lead({*led_by_others, *(move.topic_partition for move in moves)})
    print(f"penstock: {counted(len(moves), 'partition')} moved, the cluster is balanced", file=sys.stderr)
