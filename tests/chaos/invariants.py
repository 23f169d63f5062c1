"""What must be true of a replicated log at any moment, asked of the metadata store and of the files themselves.

- Who is in sync, or eligible, holds every record that a client was acknowledged (and so does whoever leads: it is in
  sync). Asked in this order: what was acknowledged, who is in sync, what they hold. Each can only rise meanwhile,
  unless a partition moves: who is none of its replicas any more holds nothing, and those that are have to.
- Replicas in sync have the same bytes, up to what was acknowledged.
- A leader is in sync; nobody is in sync and eligible; nobody is eligible while enough are in sync: two, or one where a
  partition has one replica, or had, or is to have.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.acknowledged import Acknowledged
from tests.testkit import Cluster

MIN_ISR = 2

# base offset and length of a batch, which are not counted in that length; last offset delta
_BATCH = struct.Struct(">qi")
_LAST_DELTA_AT = 23
_HEADER_BYTES = 61

# What the store has, by key: `topics/NAME`, `partitions/ID/NUMBER`.
Stored = Callable[[], Mapping[str, Mapping[str, Any]]]


@dataclass(slots=True)
class _Compared:
    """Up to here the replicas were found to be the same."""

    position: int = 0
    end_offset: int = 0


class Invariants:
    def __init__(self, cluster: Cluster, stored: Stored, producers: Sequence[Acknowledged]) -> None:
        self._cluster = cluster
        self._stored = stored
        self._producers = producers
        self._compared: defaultdict[tuple[str, int], _Compared] = defaultdict(_Compared)
        self.checks = 0

    def check(self) -> None:
        acknowledged = self._acknowledged()
        stored = self._stored()
        for (topic, partition), offset in acknowledged.items():
            record = _record_of(stored, topic, partition)
            self._check_sets(f"{topic}-{partition}", record, _leader_of(stored, record))
            self._check_holders(topic, partition, record, offset + 1)
        self.checks += 1

    def _check_holders(self, topic: str, partition: int, record: Mapping[str, Any], end_offset: int) -> None:
        members = _holders(record)
        while True:
            try:
                self._check_logs(topic, partition, members, end_offset)
                return
            except (AssertionError, FileNotFoundError) as error:
                error.add_note(f"{record}")
                record = _record_of(self._stored(), topic, partition)
                remaining = [member for member in members if member in record["replicas"]]
                if remaining == members:
                    raise
                members = [*remaining, *(member for member in _holders(record) if member not in remaining)]

    def _acknowledged(self) -> dict[tuple[str, int], int]:
        highest: dict[tuple[str, int], int] = {}
        for producer in self._producers:
            for partition, offset in producer.offsets().items():
                key = (producer.topic, partition)
                highest[key] = max(offset, highest.get(key, -1))
        return highest

    def _check_sets(self, name: str, record: Mapping[str, Any], leader: int | None) -> None:
        isr, eligible = set(record["isr"]), set(record["eligible"])
        assert isr | eligible <= set(record["replicas"]), f"{name}: {record}"
        assert leader is None or leader in isr, f"{name}: {record}"
        assert not isr & eligible, f"{name}: {record}"
        assert not eligible or len(isr) < _needed(record), f"{name}: {record}"

    def _check_logs(self, topic: str, partition: int, members: Sequence[int], end_offset: int) -> None:
        """All that hold everything hold it up to `end_offset`, byte by byte the same."""
        compared = self._compared[topic, partition]
        first: tuple[int, bytes, int] | None = None
        for member in members:
            directory = self._cluster[member].data / f"{topic}-{partition}"
            what = f"{topic}-{partition} on broker {member}"
            size = sum(path.stat().st_size for path in directory.glob("*.log"))
            assert size >= compared.position, f"{what}: {size} bytes, of which others had {compared.position}"
            log = _from(directory, compared.position)
            length, reached = _up_to(log, end_offset)
            held_offset = max(reached, compared.end_offset)
            assert held_offset >= end_offset, f"{what}: acknowledged up to {end_offset}, holds up to {held_offset}"
            first = first or (member, log[:length], held_offset)
            assert first[1] == log[:length], f"{what}: differs from broker {first[0]} behind byte {compared.position}"
        if first is not None:
            compared.position += len(first[1])
            compared.end_offset = first[2]


def _record_of(stored: Mapping[str, Mapping[str, Any]], topic: str, partition: int) -> Mapping[str, Any]:
    return stored[f"partitions/{stored[f'topics/{topic}']['topic_id']}/{partition}"]


def _leader_of(stored: Mapping[str, Mapping[str, Any]], record: Mapping[str, Any]) -> int | None:
    """Who leads in its session: one that came back in another, and has resigned, is in the record still."""
    session = stored.get(f"sessions/{record['leader']}")
    return record["leader"] if session is not None and session["epoch"] == record["leader_broker_epoch"] else None


def _holders(record: Mapping[str, Any]) -> list[int]:
    return [*record["isr"], *record["eligible"]]


def _needed(record: Mapping[str, Any]) -> int:
    """How many have to be in sync for something to be committed."""
    replicas = set(record["replicas"])
    return min(MIN_ISR, len(replicas - set(record["adding"])), len(replicas - set(record["removing"])))


def _from(directory: Path, position: int) -> bytes:
    """The log from there on, as if it were one file."""
    pieces = []
    for path in sorted(directory.glob("*.log")):
        size = path.stat().st_size
        if position < size:
            with path.open("rb") as file:
                file.seek(position)
                pieces.append(file.read())
            position = 0
        else:
            position -= size
    return b"".join(pieces)


def _up_to(log: bytes, end_offset: int) -> tuple[int, int]:
    """How many bytes of it are batches below the offset, and the offset behind them."""
    position = reached = 0
    while position + _HEADER_BYTES <= len(log):
        base_offset, length = _BATCH.unpack_from(log, position)
        # A power cut may leave zeros behind the last batch, up to the end of a page.
        is_batch = length >= _HEADER_BYTES - _BATCH.size
        if not is_batch or base_offset >= end_offset or position + _BATCH.size + length > len(log):
            break
        (last_delta,) = struct.unpack_from(">i", log, position + _LAST_DELTA_AT)
        reached = base_offset + last_delta + 1
        position += _BATCH.size + length
    return position, reached
