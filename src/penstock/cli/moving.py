"""Carrying out a plan: some partitions at a time, with progress on standard error, until all have moved.

What has begun goes on in the cluster when the command is stopped; what has not is found again by the next one.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli.client import fail
from penstock.cli.cluster_client import ClusterClient
from penstock.cli.cluster_view import ClusterView, plan_document, print_plan
from penstock.cli.connection import NoAnswer
from penstock.cli.terminal import print_json
from penstock.controller.balance import Move
from penstock.controller.commands import ResourceType
from penstock.core.ids import TopicPartition

# More at the same time would not be faster, and clients would notice it more.
AT_ONCE = 50
LOOK_EVERY_S = 0.3
_SAY_WAITING_AFTER_S = 15.0
_NAMED = 3

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def parse_rate(text: str) -> int:
    """Bytes a second, of `500k`, `10MB`, `1.5 GiB/s`, or a plain number."""
    found = _RATE.fullmatch(text.strip())
    rate = int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if rate < 1:
        fail(f'--throttle takes bytes a second, such as 500k or 10MB, not "{text}"', 2)
    return rate


Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle", metavar="RATE", parser=parse_rate, help="Bytes a second that each broker may copy, such as 10MB."
    ),
]


def show_plan(client: ClusterClient, view: ClusterView, moves: Sequence[Move], *, as_json: bool) -> None:
    """As a table only if there is something in it."""
    sizes = client.sizes() if moves else {}
    if as_json:
        print_json(plan_document(moves, sizes))
    elif moves:
        print_plan(view, moves, sizes)


def carry_out(client: ClusterClient, moves: Sequence[Move]) -> None:
    """Returns when every partition is where it should be."""
    left = list(moves)
    moving: set[TopicPartition] = set()
    progress = _Progress(len(moves))
    try:
        while left or moving:
            some, left = left[: AT_ONCE - len(moving)], left[AT_ONCE - len(moving) :]
            if some:
                client.reassign({move.topic_partition: move.after for move in some})
                moving |= {move.topic_partition for move in some}
            moving &= client.ongoing().keys()
            progress.show(len(left), moving)
            if moving:
                time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        fail(
            f"stopped: {len(moving)} partitions go on moving, {len(left)} have not begun; the same command again takes "
            "up where this one stopped",
            130,
        )


def wait_until_moved(client: ClusterClient, partitions: set[TopicPartition]) -> None:
    """Of what somebody else has begun."""
    progress = _Progress(len(partitions))
    try:
        while partitions := partitions & client.ongoing().keys():
            progress.show(0, partitions)
            time.sleep(LOOK_EVERY_S)
    except KeyboardInterrupt:
        fail(f"stopped: {len(partitions)} partitions go on moving", 130)


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = -1
        self._since = time.monotonic()

    def show(self, left: int, moving: set[TopicPartition]) -> None:
        done = self._total - left - len(moving)
        now = time.monotonic()
        if done != self._done:
            self._done, self._since = done, now
            print(f"penstock: {done} of {self._total} partitions moved", file=sys.stderr)
        elif now - self._since >= _SAY_WAITING_AFTER_S:
            self._since = now
            named = ", ".join(map(str, sorted(moving)[:_NAMED])) + (", ..." if len(moving) > _NAMED else "")
            print(f"penstock: still moving {named}", file=sys.stderr)


@contextmanager
def throttled(client: ClusterClient, rate: int | None, moves: Sequence[Move]) -> Iterator[None]:
    """Kafka's keys, for the replicas that are copied and those they are copied from. Taken back when all have moved.

    When the command is stopped they stay, since what has begun goes on; the same command again takes them back.
    """
    if rate is not None and any(move.added for move in moves):
        _throttle(client, rate, moves)
    yield
    if rate is not None:
        take_back_throttle(client)


def _throttle(client: ClusterClient, rate: int, moves: Sequence[Move]) -> None:
    brokers = {replica for move in moves for replica in (*move.before, *move.after)}
    topics = {move.topic_partition.topic for move in moves}
    lists: dict[str, tuple[list[str], list[str]]] = {topic: ([], []) for topic in topics}
    for move in moves:
        leaders, followers = lists[move.topic_partition.topic]
        leaders += [f"{move.topic_partition.partition}:{replica}" for replica in move.before]
        followers += [f"{move.topic_partition.partition}:{replica}" for replica in move.added]
    client.configure(
        {
            **{(ResourceType.BROKER, str(each)): dict.fromkeys(_RATES, str(rate)) for each in sorted(brokers)},
            **{
                (ResourceType.TOPIC, topic): {
                    key: ",".join(entries) for key, entries in zip(_THROTTLED, lists[topic], strict=True) if entries
                }
                for topic in sorted(topics)
            },
        }
    )


def take_back_throttle(client: ClusterClient) -> None:
    """Also what a command that was stopped has left. Not while something moves: that has been throttled as well."""
    if client.ongoing():
        return
    keys = {ResourceType.BROKER: _RATES, ResourceType.TOPIC: _THROTTLED}
    try:
        found = client.changed(keys)
    except NoAnswer as error:
        fail(f"{error}, and it may have kept its throttle: the same command again takes it back")
    if found:
        client.configure({resource: dict.fromkeys(keys[resource[0]]) for resource in found})
