"""Which brokers hold which partition.

Never two replicas on one broker. Replicas of a partition share a machine only when every machine has one, and a rack
only when every rack has one or its machines are taken. Leaders are spread evenly over all brokers, replicas as evenly
as machines and racks allow. Where brokers are equally good the seed decides, so that the followers of one broker's
partitions are spread too, and the same seed always gives the same placement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.core.ids import BrokerId

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A broker that may take replicas. Brokers without a rack count as one rack of their own."""

    broker_id: BrokerId
    host: str
    rack: str | None = None


class SeededDraws:
    """A stream of numbers that depends on the seed alone (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, bound: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % bound


def place(
    candidates: Sequence[Candidate], partition_count: int, replication_factor: int, seed: int
) -> list[tuple[BrokerId, ...]]:
    """The replicas of each partition, the leader first. There must be as many candidates as replicas."""
    assert 1 <= replication_factor <= len(candidates)
    if len(candidates) == 1:
        return [(candidates[0].broker_id,)] * partition_count
    placement = _Placement(candidates, seed)
    return [placement.partition(replication_factor) for _ in range(partition_count)]


class _Placement:
    def __init__(self, candidates: Sequence[Candidate], seed: int) -> None:
        # Sorted first: the order in which brokers happened to register must not matter.
        self._candidates = sorted(candidates, key=lambda candidate: candidate.broker_id)
        self._draws = SeededDraws(seed)
        self._leaders: Counter[BrokerId] = Counter()
        self._replicas: Counter[BrokerId] = Counter()

    def partition(self, replication_factor: int) -> tuple[BrokerId, ...]:
        leader = self._best(self._candidates, lambda one: (self._leaders[one.broker_id], self._replicas[one.broker_id]))
        self._leaders[leader.broker_id] += 1
        chosen = [leader]
        while len(chosen) < replication_factor:
            chosen.append(self._follower(chosen))
        self._replicas.update(one.broker_id for one in chosen)
        return tuple(one.broker_id for one in chosen)

    def _follower(self, chosen: list[Candidate]) -> Candidate:
        hosts = Counter(one.host for one in chosen)
        racks = Counter(one.rack for one in chosen)
        free = [one for one in self._candidates if one not in chosen]
        return self._best(free, lambda one: (hosts[one.host], racks[one.rack], self._replicas[one.broker_id]))

    def _best(self, candidates: list[Candidate], badness: Callable[[Candidate], tuple[int, ...]]) -> Candidate:
        """The least bad candidate; among equals the first from a drawn starting point on."""
        start = self._draws.below(len(candidates))
        return min(candidates[start:] + candidates[:start], key=badness)
