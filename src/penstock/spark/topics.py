"""What the driver asks of the cluster: which partitions there are, where they begin and end.

The first answer comes at once or not at all, so that a wrong address or topic is an error that one sees right away.
After that a cluster is known to be there, and what passes is waited for: a stream outlives its brokers' restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.spark.data_loss import Extent
from penstock.spark.source_options import SourceOptions
from penstock.spark.subscriptions import Partitions, Pattern, Subscription
from penstock.wire import offsets as wire
from penstock.wire.cluster import Cluster, Topic
from penstock.wire.errors import NotNow, UnknownTopic
from penstock.wire.offsets import Isolation, Offsets
from penstock.wire.patience import PASSING, Patience

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Found:
    """`topic_ids` lacks those of brokers that have none. `missing`: something was named that is not there."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, TopicId]
    missing: UnknownTopic | None = None


class SubscribedTopics:
    """Connects when it is first asked. Everything raises WireError."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._has_answered = False

    def find(self) -> Found:
        """Raises UnknownTopic where something was named that is not there."""
        subscription = self._options.subscription
        return self._asked("looking topics up", lambda cluster: _found(cluster, subscription))

    def find_again(self, known: Collection[str]) -> Found:
        """As `find` for who has read `known` topics: they are not missed before they have been asked for repeatedly."""
        subscription = self._options.subscription
        self._has_answered = self._has_answered or bool(known)
        try:
            return self._asked("looking topics up", lambda cluster: _found(cluster, subscription, known))
        except UnknownTopic as error:
            missing = error
        return self._asked("looking topics up", lambda cluster: _found(cluster, subscription, known, missing))

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._asked("first offsets", lambda cluster: wire.earliest(cluster, partitions))

    def latest(self, partitions: Collection[TopicPartition], isolation: Isolation | None = None) -> Offsets:
        """The end of what the query may read, or of what `isolation` may."""
        level = self._options.isolation if isolation is None else isolation
        return self._asked("last offsets", lambda cluster: wire.latest(cluster, partitions, level))

    def extents(
        self, partitions: Collection[TopicPartition], isolation: Isolation | None = None
    ) -> dict[TopicPartition, Extent]:
        ends, firsts = self.latest(partitions, isolation), self.earliest(partitions)
        return {each: Extent(firsts[each], ends[each]) for each in partitions}

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        level = self._options.isolation
        return self._asked("offsets of times", lambda cluster: wire.at_times(cluster, times_ms, level))

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _asked(self, what: str, question: Callable[[Cluster], Answer]) -> Answer:
        patience = Patience(self._options.settings)
        while True:
            try:
                self._cluster = self._cluster or Cluster(self._options.settings)
                answer = question(self._cluster)
            except PASSING as error:
                if not self._has_answered and not isinstance(error, NotNow):
                    raise
                patience.after(what, error)
            else:
                self._has_answered = True
                return answer


def _found(
    cluster: Cluster, subscription: Subscription, known: Collection[str] = (), missing: UnknownTopic | None = None
) -> Found:
    """Without what is not there, once it is said to be `missing`."""
    names = _names(cluster, subscription, known)
    topics = cluster.look_up(names) if missing is None else _those_there(cluster, names)
    there = {TopicPartition(topic.name, number) for topic in topics.values() for number in topic.leaders}
    if isinstance(subscription, Partitions):
        lacking = sorted(set(subscription.partitions) - there)
        if lacking and missing is None:
            raise UnknownTopic(
                "; ".join(f"no partition {each}: the topic has {len(topics[each.topic].leaders)}" for each in lacking)
            )
        there &= set(subscription.partitions)
    topic_ids = {topic.name: topic.id for topic in topics.values() if topic.id != NO_TOPIC_ID}
    return Found(frozenset(there), topic_ids, missing)


def _names(cluster: Cluster, subscription: Subscription, known: Collection[str]) -> Collection[str]:
    if isinstance(subscription, Pattern):
        _, topics = cluster.topics()
        listed = {name for name, topic in topics.items() if not topic.is_internal}
        return sorted(name for name in listed.union(known) if subscription.matches(name))
    if isinstance(subscription, Partitions):
        return sorted({each.topic for each in subscription.partitions})
    return subscription.names


def _those_there(cluster: Cluster, names: Collection[str]) -> dict[str, Topic]:
    found: dict[str, Topic] = {}
    for name in names:
        with suppress(UnknownTopic):
            found |= cluster.look_up([name])
    return found
