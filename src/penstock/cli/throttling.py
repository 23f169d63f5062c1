"""How fast replicas are copied: Kafka's keys (KIP-73), set for what moves and taken back when nothing does any more.

A rate is a broker's, for all that it sends or gets: so what is under way already gets the new one as well. When a
command is stopped its throttle stays, since what has begun goes on; the same command again takes it back.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from penstock.cli.client import fail
from penstock.cli.cluster_client import ClusterClient, Configs, Resource
from penstock.controller.balance import Move
from penstock.controller.commands import ResourceType
from penstock.core.ids import TopicPartition
from penstock.wire.errors import NoAnswer

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?(?:/s)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEADERS, _FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_KEYS = {ResourceType.BROKER: _RATES, ResourceType.TOPIC: (_LEADERS, _FOLLOWERS)}


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


@contextmanager
def throttled(client: ClusterClient, rate: int | None, moves: Sequence[Move] = ()) -> Iterator[None]:
    """For these moves, and what moves already. Taken back when all have moved."""
    if rate is None:
        yield
        return
    _throttle(client, rate, moves)
    yield
    take_back_throttle(client)


def _throttle(client: ClusterClient, rate: int, moves: Sequence[Move]) -> None:
    copied_from: dict[TopicPartition, set[int]] = {}
    copied_to: dict[TopicPartition, set[int]] = {}
    for where, row in client.ongoing().items():
        copied_from[where] = {*row.replicas} - {*row.adding_replicas}
        copied_to[where] = {*row.adding_replicas}
    for move in moves:
        copied_from.setdefault(move.topic_partition, set()).update(move.before)
        copied_to.setdefault(move.topic_partition, set()).update(move.added)
    if not any(copied_to.values()):
        return
    brokers = {each for replicas in (*copied_from.values(), *copied_to.values()) for each in replicas}
    settings: dict[Resource, dict[str, str | None]] = {
        (ResourceType.BROKER, str(each)): dict.fromkeys(_RATES, str(rate)) for each in sorted(brokers)
    }
    for key, lists in ((_LEADERS, copied_from), (_FOLLOWERS, copied_to)):
        for topic in sorted({where.topic for where in lists}):
            entries = [
                f"{where.partition}:{replica}"
                for where in sorted(lists)
                if where.topic == topic
                for replica in sorted(lists[where])
            ]
            if entries:
                settings.setdefault((ResourceType.TOPIC, topic), {})[key] = ",".join(entries)
    client.configure(settings)


def take_back_throttle(client: ClusterClient) -> None:
    """Also what a command that was stopped has left. Not while something moves: that has been throttled as well."""
    found = _found(client)
    if found and client.ongoing():
        print("penstock: other partitions are moving still, with the same throttle: it stays", file=sys.stderr)
    elif found:
        client.configure({resource: dict.fromkeys(_KEYS[resource[0]]) for resource in found})


def take_back_throttle_of_drain(client: ClusterClient, broker_id: int) -> None:
    """Of one that was given up. Its moves are those that copy from the broker; what others have listed stays."""
    found, ongoing = _found(client), client.ongoing()
    settings: dict[Resource, dict[str, str | None]] = {}
    freed: set[str] = set()
    used: set[str] = set()
    for (kind, name), configs in found.items():
        if kind is ResourceType.BROKER:
            continue
        moving = {str(where.partition) for where in ongoing if where.topic == name}
        sources = [each.partition(":") for each in _entries(configs, _LEADERS)]
        drained = {partition for partition, _, broker in sources if broker == str(broker_id)} - moving
        for key in configs:
            taken = [each for each in _entries(configs, key) if each.partition(":")[0] in drained]
            kept = [each for each in _entries(configs, key) if each not in taken]
            freed |= {each.partition(":")[2] for each in taken}
            used |= {each.partition(":")[2] for each in kept}
            if taken:
                settings.setdefault((kind, name), {})[key] = ",".join(kept) or None
    rated = {name for kind, name in found if kind is ResourceType.BROKER}
    settings |= {(ResourceType.BROKER, each): dict.fromkeys(_RATES) for each in sorted(rated & freed - used)}
    if settings:
        client.configure(settings)


def _found(client: ClusterClient) -> dict[Resource, Configs]:
    try:
        return client.changed(_KEYS)
    except NoAnswer as error:
        fail(f"{error}, and it may have kept its throttle: the same command again takes it back")


def _entries(configs: Configs, key: str) -> list[str]:
    return [each for each in configs.get(key, "").split(",") if each]
