"""Who of a consumer group gets which partitions, when the server decides (KIP-848).

An assignor is a function of what the members subscribe to and what they were meant to have before, and of nothing
else: the same input gives the same answer in any order and on any broker. Every partition that somebody subscribes to
goes to exactly one member that subscribes to its topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.core.ids import TopicId

Assignment = Mapping[TopicId, frozenset[int]]
"""Partitions by topic; a topic without partitions is not in it."""

NOTHING: Assignment = {}


class MemberSpec(NamedTuple):
    """What an assignor may know of a member."""

    topics: frozenset[TopicId]
    """What it subscribes to, of what exists."""
    target: Assignment = NOTHING
    """What it was meant to have so far."""
    instance_id: str | None = None


Members = Mapping[str, MemberSpec]
PartitionCounts = Mapping[TopicId, int]
Assignor = Callable[[Members, PartitionCounts], dict[str, Assignment]]

_Place = tuple[TopicId, int]

# Moving single partitions evens out most subscriptions in one round. Where subscriptions overlap in chains it may take
# many; each about halves what is left, so that more would cost time for little.
_BALANCING_ROUNDS = 16


def assign_range(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Of each topic a run of partitions for each of its subscribers, in the same order for all topics.

    So topics with equally many partitions and the same subscribers are co-partitioned. Members with an instance id come
    first and are ordered by it: they find their runs again when they come back under a new member id.
    """
    order = sorted(members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name))
    shares: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, subscribers in _subscribers(members, order).items():
        fewest, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + fewest + (position < extra)
            if start < end:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


def assign_uniform(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """As even as can be, then as little moved as can be."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    if len(subscriptions) == 1:
        return _uniform_alike(members, partition_counts, sorted(subscriptions.pop()))
    return _UniformUnlike(members, partition_counts).assign()


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _uniform_alike(members: Members, counts: PartitionCounts, topics: Sequence[TopicId]) -> dict[str, Assignment]:
    """All subscribe to the same: sizes differ by one at most, and nobody loses what fits."""
    order = sorted(members)
    kept, free = _keep(members, order, counts, topics)
    fewest, extra = divmod(sum(counts[topic_id] for topic_id in topics), len(order))
    # The larger shares go to those that already have one, or something would move for nothing.
    by_size = sorted(order, key=lambda member_id: -len(kept[member_id]))
    quotas = {member_id: fewest + (rank < extra) for rank, member_id in enumerate(by_size)}
    changed = {member_id for member_id in order if len(kept[member_id]) != _size(members[member_id].target)}
    for member_id in order:
        if len(kept[member_id]) > quotas[member_id]:
            free += kept[member_id][quotas[member_id] :]
            del kept[member_id][quotas[member_id] :]
            changed.add(member_id)
    # Dealing one at a time, not a hand at a time, spreads each topic over the members.
    hungry = deque(member_id for member_id in order if len(kept[member_id]) < quotas[member_id])
    for place in free:
        member_id = hungry.popleft()
        kept[member_id].append(place)
        changed.add(member_id)
        if len(kept[member_id]) < quotas[member_id]:
            hungry.append(member_id)
    return {
        member_id: _by_topic(places) if member_id in changed else members[member_id].target
        for member_id, places in kept.items()
    }


def _size(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def _keep(
    members: Members, order: Iterable[str], counts: PartitionCounts, topics: Iterable[TopicId]
) -> tuple[dict[str, list[_Place]], list[_Place]]:
    """What each member may go on having, in a fixed order, and what is nobody's."""
    unclaimed = {topic_id: set(range(counts[topic_id])) for topic_id in topics}
    kept: dict[str, list[_Place]] = {}
    for member_id in order:
        member = members[member_id]
        places = kept[member_id] = []
        for topic_id in sorted(member.target):
            if topic_id in member.topics:
                mine = member.target[topic_id] & unclaimed[topic_id]
                unclaimed[topic_id] -= mine
                places += [(topic_id, partition) for partition in sorted(mine)]
    free = [(topic_id, partition) for topic_id, left in unclaimed.items() for partition in sorted(left)]
    return kept, free


def _subscribers(members: Members, order: Iterable[str]) -> dict[TopicId, list[str]]:
    subscribers: dict[TopicId, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers


def _by_topic(places: Iterable[_Place]) -> Assignment:
    topics: dict[TopicId, set[int]] = {}
    for topic_id, partition in places:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}


class _UniformUnlike:
    """Members subscribe to different topics: no single partition could move and make two members more alike."""

    def __init__(self, members: Members, counts: PartitionCounts) -> None:
        order = sorted(members)
        subscribers = _subscribers(members, order)
        # Topics that few may have are dealt first, while all may still take them.
        self._topics = sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id))
        self._subscribers = subscribers
        kept, self._free = _keep(members, order, counts, self._topics)
        self._sizes = {member_id: len(places) for member_id, places in kept.items()}
        # To each topic and member its partitions, of which the last is the first to go.
        self._shares: dict[TopicId, dict[str, list[int]]] = {
            topic_id: {member_id: [] for member_id in subscribers[topic_id]} for topic_id in self._topics
        }
        for member_id, places in kept.items():
            for topic_id, partition in places:
                self._shares[topic_id][member_id].append(partition)

    def assign(self) -> dict[str, Assignment]:
        free: dict[TopicId, list[int]] = {}
        for topic_id, partition in self._free:
            free.setdefault(topic_id, []).append(partition)
        for topic_id in self._topics:
            self._deal(topic_id, free.get(topic_id, ()))
        for _ in range(_BALANCING_ROUNDS):
            # No short cut: every topic is to be balanced in every round.
            if not sum([self._balance(topic_id) for topic_id in self._topics]):
                break
        return self._result()

    def _deal(self, topic_id: TopicId, partitions: Iterable[int]) -> None:
        smallest = [(self._sizes[member_id], member_id) for member_id in self._subscribers[topic_id]]
        heapify(smallest)
        for partition in partitions:
            size, member_id = heappop(smallest)
            self._shares[topic_id][member_id].append(partition)
            self._sizes[member_id] = size + 1
            heappush(smallest, (size + 1, member_id))

    def _balance(self, topic_id: TopicId) -> int:
        """Moves partitions of this topic from its largest to its smallest subscribers; returns how many."""
        shares, sizes = self._shares[topic_id], self._sizes
        largest = [(-sizes[member_id], member_id) for member_id, share in shares.items() if share]
        smallest = [(sizes[member_id], member_id) for member_id in shares]
        heapify(largest)
        heapify(smallest)
        moved = 0
        while largest:
            # A giver's place among the takers is out of date, and the other way round; but only by making it look
            # less fit than it is, so that no move is wrong, and the next round makes those that were missed.
            giver, taker = largest[0][1], smallest[0][1]
            if sizes[giver] - sizes[taker] < 2:
                break
            heappop(largest)
            heappop(smallest)
            shares[taker].append(shares[giver].pop())
            sizes[giver] -= 1
            sizes[taker] += 1
            if shares[giver]:
                heappush(largest, (-sizes[giver], giver))
            heappush(smallest, (sizes[taker], taker))
            moved += 1
        return moved

    def _result(self) -> dict[str, Assignment]:
        result: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in self._sizes}
        for topic_id, shares in self._shares.items():
            for member_id, partitions in shares.items():
                if partitions:
                    result[member_id][topic_id] = frozenset(partitions)
        return dict(result)
