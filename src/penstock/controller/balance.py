"""Which replicas to move when a cluster grows, shrinks, or has lost a broker: plans, which somebody else carries out.

What must stay true of every plan:

- Never two replicas of a partition on one broker, and never fewer replicas than before (but see `vacated`).
- Replicas of a partition are spread over machines and racks as well as before or better (see `placement`).
- Moves copy data, so a plan has as few as it can; which replica leads costs nothing, so that is evened out last.
- A cluster that is as it should be gets an empty plan, and the same cluster always the same one.

Replicas on brokers that may not be given any, because they are away or being drained, count for the spread of their
partitions and stay where they are, unless the plan is made to move them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.controller.placement import Candidate
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.metadata.image import ClusterImage

Replicas = tuple[BrokerId, ...]
# From one broker to another, by way of a partition.
_Step = tuple[BrokerId, BrokerId, TopicPartition]
_Edge = Callable[[BrokerId, BrokerId, Collection[TopicPartition]], TopicPartition | None]


@dataclass(frozen=True, slots=True)
class Layout:
    """`brokers` are all that are known, `available` those that may be given replicas."""

    brokers: Mapping[BrokerId, Candidate]
    available: frozenset[BrokerId]
    partitions: Mapping[TopicPartition, Replicas]

    @staticmethod
    def of(image: ClusterImage) -> Layout:
        return Layout(
            {each.broker_id: Candidate(each.broker_id, each.host, each.rack) for each in image.brokers.values()},
            frozenset(image.available()),
            {
                TopicPartition(name, index): partition.target
                for name, topic in image.topics.items()
                for index, partition in enumerate(topic.partitions)
            },
        )


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a partition, the preferred leader first."""

    topic_partition: TopicPartition
    before: Replicas
    after: Replicas

    @property
    def added(self) -> Replicas:
        """Those that have to be filled."""
        return tuple(replica for replica in self.after if replica not in self.before)

    @property
    def removed(self) -> Replicas:
        return tuple(replica for replica in self.before if replica not in self.after)


def rebalanced(layout: Layout) -> tuple[Move, ...]:
    """Replicas and preferred leaders even over all available brokers, as far as machines and racks allow."""
    plan = _Plan(layout)
    plan.spread()
    plan.even_out_replicas()
    plan.even_out_leaders()
    return plan.moves()


def vacated(layout: Layout, leaving: Collection[BrokerId], shrinkable: Collection[str] = ()) -> tuple[Move, ...]:
    """Everything that these brokers hold goes elsewhere.

    Topics that are shrinkable lose a replica where there is no broker for it. Raises INVALID_REPLICATION_FACTOR where
    another topic would.
    """
    plan = _Plan(_without(layout, leaving))
    stuck = [each for each in plan.leave(leaving) if each.topic not in shrinkable or not plan.drop(each, leaving)]
    if stuck:
        factors = {each.topic: len(layout.partitions[each]) for each in stuck}
        named = ", ".join(f"{topic} (replication factor {factor})" for topic, factor in list(factors.items())[:3])
        count = len(plan.layout.available)
        others = "1 other broker" if count == 1 else f"{count} other brokers"
        more = f" and {len(factors) - 3} more" if len(factors) > 3 else ""
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{others} can take replicas, too few for {named}{more}: add a broker first",
        )
    return plan.moves()


def healed(layout: Layout, gone: Collection[BrokerId], led: Collection[TopicPartition]) -> tuple[Move, ...]:
    """What brokers held that are gone is made anew elsewhere, wherever there is a broker for it.

    Only of partitions that have a leader: without one there is nothing to copy.
    """
    plan = _Plan(_without(layout, gone))
    plan.leave(gone, only=led)
    return plan.moves()


def grown(layout: Layout, topics: Mapping[str, int]) -> tuple[Move, ...]:
    """The partitions of these topics have that many replicas, and their leaders are spread over those.

    Topics with partitions that need nothing are left as they are.
    """
    plan = _Plan(layout)
    growing: dict[str, None] = {}
    for each, replicas in layout.partitions.items():
        if len(replicas) < topics.get(each.topic, 0):
            plan.add(each, topics[each.topic] - len(replicas))
            growing[each.topic] = None
    for topic in growing:
        plan.even_out_leaders_of(topic)
    return plan.moves()


def _without(layout: Layout, brokers: Collection[BrokerId]) -> Layout:
    return replace(layout, available=layout.available.difference(brokers))


class _Plan:
    """The layout as it will be, and how much each broker has of it. Brokers go by their ids where all else is equal."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._available = sorted(layout.available)
        self._after: dict[TopicPartition, list[BrokerId]] = {each: list(r) for each, r in layout.partitions.items()}
        self._held: dict[BrokerId, dict[TopicPartition, None]] = {broker: {} for broker in self._available}
        self._led: dict[BrokerId, dict[TopicPartition, None]] = {broker: {} for broker in self._available}
        self._held_of_topic: Counter[tuple[BrokerId, str]] = Counter()
        self._led_of_topic: Counter[tuple[BrokerId, str]] = Counter()
        for each, replicas in self._after.items():
            for replica in replicas:
                self._count(each, replica, +1)
            self._count_leader(each, +1)

    def moves(self) -> tuple[Move, ...]:
        return tuple(
            Move(each, before, tuple(self._after[each]))
            for each, before in self.layout.partitions.items()
            if before != tuple(self._after[each])
        )

    # Machines and racks

    def spread(self) -> None:
        for each in self._after:
            while (better := self._better_spread(each)) is not None:
                self._exchange(each, *better)

    def _better_spread(self, each: TopicPartition) -> tuple[BrokerId, BrokerId] | None:
        replicas = self._after[each]
        best: tuple[tuple[int, ...], BrokerId, BrokerId] | None = None
        # From the last on: who leads stays if another can go.
        for old in reversed([replica for replica in replicas if replica in self.layout.available]):
            others = [replica for replica in replicas if replica != old]
            crowding = self._crowding(old, others)
            if crowding == (0, 0):
                continue
            for new in self._available:
                if new in replicas:
                    continue
                found = self._crowding(new, others)
                rank = (found[0] - crowding[0], found[1] - crowding[1], len(self._held[new]))
                if found < crowding and (best is None or rank < best[0]):
                    best = (rank, old, new)
        return None if best is None else best[1:]

    def _crowding(self, replica: BrokerId, others: Iterable[BrokerId]) -> tuple[int, int]:
        """How many of the others are on its machine, and in its rack."""
        mine = self._where(replica)
        theirs = [self._where(other) for other in others]
        return sum(one.host == mine.host for one in theirs), sum(one.rack == mine.rack for one in theirs)

    def _where(self, broker_id: BrokerId) -> Candidate:
        return self.layout.brokers.get(broker_id) or Candidate(broker_id, f"unknown {broker_id}")

    def _fits(self, each: TopicPartition, old: BrokerId, new: BrokerId) -> bool:
        others = [replica for replica in self._after[each] if replica != old]
        return self._crowding(new, others) <= self._crowding(old, others)

    # Even numbers

    def even_out_replicas(self) -> None:
        while (path := self._path(self._held, self._movable)) is not None:
            for old, new, each in path:
                self._exchange(each, old, new)

    def even_out_leaders(self) -> None:
        while True:
            path = self._path(self._led, self._can_lead_instead)
            if path is not None:
                for _, new, each in path:
                    self._let_lead(each, new)
            elif not self._exchange_leader():
                return

    def even_out_leaders_of(self, topic: str) -> None:
        """By the order of replicas alone, and as if there were no other topics."""
        partitions = {each: tuple(r) for each, r in self._after.items() if each.topic == topic}
        alone = _Plan(replace(self.layout, partitions=partitions))
        while (path := alone._path(alone._led, alone._can_lead_instead)) is not None:
            for _, new, each in path:
                alone._let_lead(each, new)
        for move in alone.moves():
            self._let_lead(move.topic_partition, move.after[0])

    def _path(self, load: Mapping[BrokerId, Collection[TopicPartition]], edge: _Edge) -> list[_Step] | None:
        """Steps that take one from a broker with much and give it to one with at least two less, the fewest there are.

        A step in between gives a broker one and takes one from it.
        """
        by_load = sorted(self._available, key=lambda broker: len(load[broker]))
        for start in reversed(by_load):
            if not by_load or len(load[start]) - len(load[by_load[0]]) < 2:
                return None
            paths: dict[BrokerId, list[_Step]] = {start: []}
            waiting = deque([start])
            while waiting:
                broker = waiting.popleft()
                used = [each for _, _, each in paths[broker]]
                for other in by_load:
                    if other in paths or (each := edge(broker, other, used)) is None:
                        continue
                    paths[other] = [*paths[broker], (broker, other, each)]
                    if len(load[other]) <= len(load[start]) - 2:
                        return paths[other]
                    waiting.append(other)
        return None

    def _movable(self, old: BrokerId, new: BrokerId, used: Collection[TopicPartition]) -> TopicPartition | None:
        """Of the topic that the old broker has the most of, compared to the new one."""
        best, best_gain = None, 0
        for each in self._held[old]:
            gain = self._held_of_topic[old, each.topic] - self._held_of_topic[new, each.topic]
            if best is not None and gain <= best_gain:
                continue
            if new not in self._after[each] and each not in used and self._fits(each, old, new):
                best, best_gain = each, gain
        return best

    def _can_lead_instead(
        self, old: BrokerId, new: BrokerId, used: Collection[TopicPartition]
    ) -> TopicPartition | None:
        best, best_gain = None, 0
        for each in self._led[old]:
            gain = self._led_of_topic[old, each.topic] - self._led_of_topic[new, each.topic]
            if (best is None or gain > best_gain) and new in self._after[each] and each not in used:
                best, best_gain = each, gain
        return best

    def _exchange_leader(self) -> bool:
        """Where the order of replicas is not enough: two brokers exchange one that leads for one that does not."""
        by_leaders = sorted(self._available, key=lambda broker: len(self._led[broker]))
        for old in reversed(by_leaders):
            for new in by_leaders:
                if len(self._led[old]) - len(self._led[new]) < 2:
                    break
                given = self._exchangeable(self._led[old], old, new)
                taken = self._exchangeable(self._held[new].keys() - self._led[new].keys(), new, old)
                if given is not None and taken is not None:
                    self._exchange(given, old, new)
                    self._exchange(taken, new, old)
                    return True
        return False

    def _exchangeable(
        self, partitions: Iterable[TopicPartition], old: BrokerId, new: BrokerId
    ) -> TopicPartition | None:
        return min(
            (each for each in partitions if new not in self._after[each] and self._fits(each, old, new)), default=None
        )

    # Leaving and joining

    def leave(
        self, leaving: Collection[BrokerId], only: Collection[TopicPartition] | None = None
    ) -> list[TopicPartition]:
        """Returns the partitions for which there were too few brokers; they have kept some of their replicas there."""
        stuck = []
        for each, replicas in self._after.items():
            if only is not None and each not in only:
                continue
            for old in [replica for replica in replicas if replica in leaving]:
                new = self._best_addition(each, [replica for replica in replicas if replica != old])
                if new is None:
                    stuck.append(each)
                    break
                had_led = replicas[0] == old
                self._exchange(each, old, new)
                if had_led:
                    self._let_lead(each, self._least_leading(each, leaving))
        return stuck

    def drop(self, each: TopicPartition, leaving: Collection[BrokerId]) -> bool:
        """Without the replicas there, and without any in their place; False when none would be left."""
        kept = [replica for replica in self._after[each] if replica not in leaving]
        if not kept:
            return False
        self._count_leader(each, -1)
        for old in leaving:
            if old in self._after[each]:
                self._count(each, old, -1)
        self._after[each] = kept
        self._count_leader(each, +1)
        self._let_lead(each, self._least_leading(each, leaving))
        return True

    def add(self, each: TopicPartition, count: int) -> None:
        """As many as there are brokers for."""
        for _ in range(count):
            new = self._best_addition(each, self._after[each])
            if new is None:
                return
            self._after[each].append(new)
            self._count(each, new, +1)

    def _best_addition(self, each: TopicPartition, others: Collection[BrokerId]) -> BrokerId | None:
        return min(
            (broker for broker in self._available if broker not in self._after[each]),
            key=lambda broker: (
                self._crowding(broker, others),
                len(self._held[broker]),
                self._held_of_topic[broker, each.topic],
                broker,
            ),
            default=None,
        )

    def _least_leading(self, each: TopicPartition, leaving: Collection[BrokerId]) -> BrokerId:
        replicas = self._after[each]
        able = [replica for replica in replicas if replica in self.layout.available] or replicas
        staying = [replica for replica in able if replica not in leaving] or able
        return min(staying, key=lambda broker: (len(self._led.get(broker, ())), replicas.index(broker)))

    # Keeping count

    def _exchange(self, each: TopicPartition, old: BrokerId, new: BrokerId) -> None:
        self._count_leader(each, -1)
        self._count(each, old, -1)
        replicas = self._after[each]
        replicas[replicas.index(old)] = new
        self._count(each, new, +1)
        self._count_leader(each, +1)

    def _let_lead(self, each: TopicPartition, leader: BrokerId) -> None:
        self._count_leader(each, -1)
        replicas = self._after[each]
        replicas.remove(leader)
        replicas.insert(0, leader)
        self._count_leader(each, +1)

    def _count(self, each: TopicPartition, broker: BrokerId, by: int) -> None:
        self._held_of_topic[broker, each.topic] += by
        _note(self._held, each, broker, by)

    def _count_leader(self, each: TopicPartition, by: int) -> None:
        leader = self._after[each][0]
        self._led_of_topic[leader, each.topic] += by
        _note(self._led, each, leader, by)


def _note(noted: dict[BrokerId, dict[TopicPartition, None]], each: TopicPartition, broker: BrokerId, by: int) -> None:
    """Brokers that may not be given anything are not counted."""
    if broker in noted and by > 0:
        noted[broker][each] = None
    elif broker in noted:
        del noted[broker][each]
