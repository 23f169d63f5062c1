"""`penstock group`: list and describe groups, see how far behind they are, move their offsets, delete them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.client import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientConfig,
    Settings,
    Timeout,
    admin_client,
    client_settings,
    fail,
    reason,
)
from penstock.cli.group_client import STATES, TYPES, GroupClient, protocol_type, state_name, type_name
from penstock.cli.group_offsets import BadPlan, Offsets, ResetKind, Selection
from penstock.cli.group_reset import check_inactive, plan_for, print_plan, reset_of
from penstock.cli.group_view import assignment_text, print_group
from penstock.cli.offset_deletion import DeletionRefused, delete_offsets
from penstock.cli.options import AsJson, TopicChoices, Yes, confirm, known_names, topic_selections
from penstock.cli.terminal import print_columns, print_json, shown
from penstock.core.ids import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ConsumerGroupListing

app = typer.Typer(help="List, describe and delete consumer groups, and move their offsets.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)]

_REFUSED_WHILE_IN_USE = ("NON_EMPTY_GROUP", "GROUP_SUBSCRIBED_TO_TOPIC")


@app.command("list")
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(STATES)}.")
    ] = None,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only these: classic, consumer.")
    ] = None,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List groups with their states."""
    states, types = known_names("--state", state, STATES), known_names("--type", type, TYPES)
    client = GroupClient(admin_client(bootstrap, client_config), timeout)
    rows = [_summary(listing) for listing in client.listed(states, types)]
    if json:
        print_json(rows)
    else:
        print_columns(("GROUP", "STATE", "TYPE"), [(row["group"], row["state"], row["type"]) for row in rows])


@app.command()
def describe(
    groups: Annotated[list[str] | None, typer.Argument(metavar="GROUP...", show_default=False)] = None,
    all_groups: Annotated[bool, typer.Option("--all", "-a", help="All groups.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group's state, members, committed offsets and lag."""
    if all_groups == bool(groups):
        fail("describe takes either names of groups or --all", 2)
    named = _group_names(groups or [])
    client = GroupClient(admin_client(bootstrap, client_config), timeout)
    if all_groups:
        named = [listing.group_id for listing in client.listed()]
    views = client.views(client.describe(named))
    if json:
        print_json([view.document() for view in views])
        return
    for number, view in enumerate(views):
        if number:
            print()
        print_group(view)


@app.command()
def reset_offsets(
    group: Group,
    topic: TopicChoices = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition that the group has an offset for.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record of this time: 2026-01-31T12:00:00.000Z (no zone: UTC), or epoch milliseconds.",
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="N messages on; back when N is below zero.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", help="To the offsets of a file: lines topic,partition,offset or a dry run's JSON."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it, instead of showing what would be done.")] = False,
    json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Move a group's committed offsets. Shows what would be done, and does it with --execute."""
    _group_names([group])
    reset = reset_of(group, to_earliest, to_latest, to_datetime, to_offset, shift_by, from_file)
    selections = topic_selections(topic)
    if (bool(selections), all_topics, reset.kind is ResetKind.FILE).count(True) != 1:
        fail("give one of --topic and --all-topics; --from-file names the partitions on its own", 2)
    client = GroupClient(admin_client(bootstrap, client_config), timeout)
    check_inactive(client, group)
    plan = plan_for(client, group, reset, selections)
    if execute:
        client.commit(group, plan.offsets)
    print_plan(group, plan, execute, json)


@app.command()
def delete(
    groups: Groups,
    offsets: Annotated[bool, typer.Option("--offsets", help="Only the group's offsets of the topics given.")] = False,
    topic: TopicChoices = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    client_config: ClientConfig = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups with everything they have committed, or only their offsets of a topic."""
    if offsets != bool(topic):
        fail("--offsets and --topic go together: they delete a group's offsets of a topic", 2)
    named, selections = _group_names(groups), topic_selections(topic)
    admin = admin_client(bootstrap, client_config)
    what = f"the offsets of {', '.join(topic)} in " if topic else ""
    confirm(f"Delete {what}{', '.join(named)}?", yes, "deletes", "deleted")
    if topic:
        settings = client_settings(bootstrap, client_config, {})
        failures = _delete_offsets(GroupClient(admin, timeout), settings, named, selections, timeout)
    else:
        failures = _delete_groups(admin, named, timeout)
    if failures:
        fail("; ".join(failures))


def _group_names(groups: list[str]) -> list[str]:
    if "" in groups:
        fail("a group's name cannot be empty", 2)
    return list(dict.fromkeys(groups))


def _summary(listing: ConsumerGroupListing) -> dict[str, str]:
    return {
        "group": listing.group_id,
        "state": state_name(listing.state),
        "type": type_name(listing.type),
        "protocol_type": protocol_type(listing),
    }


def _delete_groups(admin: AdminClient, groups: list[str], timeout: float) -> list[str]:
    from confluent_kafka import KafkaException

    failures = []
    for group, future in admin.delete_consumer_groups(groups, request_timeout=timeout).items():
        try:
            future.result()
            print(f"deleted {shown(group)}")
        except KafkaException as refused:
            failures.append(f'group "{group}": {_with_advice(reason(refused.args[0]))}')
    return failures


def _delete_offsets(
    client: GroupClient, settings: Settings, groups: list[str], selections: list[Selection], timeout: float
) -> list[str]:
    failures = []
    for group, committed in client.committed(groups).items():
        try:
            chosen = _committed_of(selections, committed)
            delete_offsets(settings, group, chosen, timeout)
            print(f"deleted offsets of {shown(group)}: {assignment_text(chosen)}")
        except (BadPlan, DeletionRefused) as refused:
            failures.append(f'group "{group}": {_with_advice(str(refused))}')
    return failures


def _committed_of(selections: list[Selection], committed: Offsets) -> list[TopicPartition]:
    chosen: set[TopicPartition] = set()
    for topic, partitions in ((selection.topic, selection.partitions) for selection in selections):
        found = {
            there
            for there in committed
            if there.topic == topic and there.partition in (partitions or [there.partition])
        }
        if not found:
            which = f", partition {', '.join(map(str, partitions))}" if partitions else ""
            raise BadPlan(f'it has no committed offset for topic "{topic}"{which}')
        chosen |= found
    return sorted(chosen)


def _with_advice(refusal: str) -> str:
    is_in_use = any(name in refusal for name in _REFUSED_WHILE_IN_USE)
    return f"{refusal}: stop its consumers first" if is_in_use else refusal
