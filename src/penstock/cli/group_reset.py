"""Resetting a group's offsets, around the plan: what the options mean, what the broker knows, what people read."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.cli.client import fail
from penstock.cli.group_client import GroupClient, state_name
from penstock.cli.group_offsets import (
    BadPlan,
    Move,
    Offsets,
    Reset,
    ResetKind,
    ResetPlan,
    Selection,
    check_known,
    parse_file,
    parse_time_ms,
    plan_reset,
    select,
)
from penstock.cli.group_view import NOTHING
from penstock.cli.terminal import counted, print_columns, print_json
from penstock.core.ids import TopicPartition

_STATES_WITHOUT_MEMBERS = ("Empty", "Dead")


def reset_of(
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
    to_offset: int | None,
    shift_by: int | None,
    from_file: Path | None,
) -> Reset:
    given = [Reset(ResetKind.EARLIEST)] if to_earliest else []
    if to_latest:
        given.append(Reset(ResetKind.LATEST))
    if to_datetime is not None:
        given.append(Reset(ResetKind.TIME, _time_ms(to_datetime)))
    if to_offset is not None:
        given.append(Reset(ResetKind.OFFSET, to_offset))
    if shift_by is not None:
        given.append(Reset(ResetKind.SHIFT, shift_by))
    if from_file is not None:
        given.append(Reset(ResetKind.FILE, offsets=_file_offsets(from_file, group)))
    if len(given) != 1:
        fail(
            "give one of --to-earliest, --to-latest, --to-datetime, --to-offset, --shift-by and --from-file",
            2,
        )
    return given[0]


def _time_ms(text: str) -> int:
    try:
        return parse_time_ms(text)
    except BadPlan as refused:
        fail(f"--to-datetime {refused}", 2)


def _file_offsets(path: Path, group: str) -> Offsets:
    try:
        return parse_file(path.read_text("utf-8-sig"), group)
    except OSError as error:
        fail(f"--from-file {path}: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"--from-file {path}: it is not text")
    except BadPlan as refused:
        fail(f"--from-file {path}: {refused}")


def check_inactive(client: GroupClient, group: str) -> None:
    (description,) = client.describe([group])
    state, members = state_name(description.state), len(description.members)
    if members or state not in _STATES_WITHOUT_MEMBERS:
        fail(
            f'group "{group}" is {state} with {counted(members, "member")}: stop its consumers first, they would '
            "commit over the reset"
        )
    if state == "Dead":
        _say(f'there is no group "{group}" so far')


def plan_for(client: GroupClient, group: str, reset: Reset, selections: list[Selection]) -> ResetPlan:
    """What would be done; whatever is wrong ends the command here, before anything is."""
    committed, known = client.committed([group])[group], client.topics()
    try:
        partitions = _partitions(reset, selections, committed, known)
        logs = client.logs(partitions, reset.number if reset.kind is ResetKind.TIME else None)
        plan = plan_reset(reset, partitions, committed, logs)
    except BadPlan as refused:
        fail(f'group "{group}": {refused}')
    for warning in plan.warnings:
        _say(warning)
    return plan


def _partitions(
    reset: Reset, selections: list[Selection], committed: Offsets, known: dict[str, list[int]]
) -> list[TopicPartition]:
    if selections:
        return select(selections, known)
    if reset.kind is ResetKind.FILE:
        check_known(reset.offsets, known)
        return sorted(reset.offsets)
    there = [partition for partition in sorted(committed) if partition.partition in known.get(partition.topic, ())]
    if not there:
        raise BadPlan("it has no committed offsets: name topics with --topic")
    for gone in sorted(committed.keys() - set(there)):
        _say(f"{gone} is no more: its offset is left as it is")
    return there


def print_plan(group: str, plan: ResetPlan, is_done: bool, json: bool) -> None:
    if json:
        print_json({"group": group, "executed": is_done, "offsets": [_document(move) for move in plan.moves]})
    else:
        print_columns(("TOPIC", "PARTITION", "BEFORE", "AFTER", "MESSAGES"), [_row(move) for move in plan.moves])
    if is_done:
        _say(f"set {counted(len(plan.moves), 'offset')} of {group}")
    else:
        _say("dry run, nothing was changed: the same command with --execute does it")


def _document(move: Move) -> dict[str, object]:
    """Also what --from-file reads."""
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "before": move.before,
        "after": move.after,
        "messages": move.messages,
    }


def _row(move: Move) -> tuple[object, ...]:
    if move.before is None:
        return (*move.partition, NOTHING, move.after, NOTHING)
    return (*move.partition, move.before, move.after, f"{move.after - move.before:+}")


def _say(message: str) -> None:
    """To people, beside what a script reads."""
    print(f"penstock: {message}", file=sys.stderr)
