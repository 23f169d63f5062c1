"""A follower's log beside its leader's: copying as a fetch does, and what must be the same then."""

from __future__ import annotations

from tests.storage.kit import NOW_MS, bytes_of

from penstock.storage.epochs import EpochEntry
from penstock.storage.log import Log
from penstock.storage.producers import ProducerEntry


def fetched(leader: Log, offset: int, max_bytes: int = 1 << 20) -> bytes:
    """What a leader answers: from the batch that holds the offset, and cut where it is enough."""
    span = leader.read(offset, max_bytes, leader.end_position, at_least_one=True, wait=True)
    return bytes_of(span) if span is not None else b""


def copy(leader: Log, follower: Log, max_bytes: int = 1 << 20, *, now_ms: int = NOW_MS) -> None:
    """One fetch, and what it brings."""
    records = fetched(leader, follower.log_end_offset, max_bytes)
    follower.append_replicated(memoryview(records), leader.leader_epochs.latest_epoch, now_ms)


def copy_all(leader: Log, follower: Log, max_bytes: int = 1 << 20) -> None:
    while follower.log_end_offset < leader.log_end_offset:
        copy(leader, follower, max_bytes)


def producers_of(log: Log) -> dict[int, ProducerEntry]:
    """All that is remembered of them but when they were last seen, which every replica counts for itself."""
    return {pid: entry._replace(last_update_ms=0) for pid, entry in log.producers.entries.items()}


State = tuple[dict[int, ProducerEntry], dict[int, int], tuple[EpochEntry, ...]]


def state_of(log: Log) -> State:
    return producers_of(log), log.open_transactions(), log.leader_epochs.entries
