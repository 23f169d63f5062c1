"""What the driver asks of the cluster: which partitions there are, where they begin and end.

The first answer comes at once or not at all, so that a wrong address or topic is an error that one sees right away.
After that a cluster is known to be there, and what passes is waited for: a stream outlives its brokers' restarts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.core.ids import NO_TOPIC_ID, TopicId, TopicPartition
from penstock.spark.source_options import Partitions, Pattern, SourceOptions, Subscription
from penstock.wire import offsets as wire
from penstock.wire.cluster import Cluster, Topic
from penstock.wire.errors import NotNow, UnknownTopic
from penstock.wire.offsets import Isolation, Offsets
from penstock.wire.patience import PASSING, Patience

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Found:
    """`topic_ids` lacks those of brokers that have none."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, TopicId]


class SubscribedTopics:
    """Connects when it is first asked. Everything raises WireError."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._has_answered = False

    def find(self) -> Found:
        """Raises UnknownTopic where something was named that is not there."""
        return self._asked("looking topics up", lambda cluster: _found(cluster, self._options.subscription))

    def find_what_is_left(self) -> Found:
        """As `find`, without what is not there."""
        subscription = self._options.subscription
        return self._asked("looking topics up", lambda cluster: _found(cluster, subscription, may_lack=True))

    def earliest(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._asked("first offsets", lambda cluster: wire.earliest(cluster, partitions))

    def latest(self, partitions: Collection[TopicPartition], isolation: Isolation | None = None) -> Offsets:
        """The end of what the query may read, or of what `isolation` may."""
        level = self._options.isolation if isolation is None else isolation
        return self._asked("last offsets", lambda cluster: wire.latest(cluster, partitions, level))

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


def _found(cluster: Cluster, subscription: Subscription, *, may_lack: bool = False) -> Found:
    topics = _topics(cluster, _names(cluster, subscription), may_lack=may_lack)
    there = {TopicPartition(topic.name, number) for topic in topics.values() for number in topic.leaders}
    if isinstance(subscription, Partitions):
        missing = [each for each in subscription.partitions if each not in there]
        if missing and not may_lack:
            raise UnknownTopic(
                "; ".join(f"no partition {each}: the topic has {len(topics[each.topic].leaders)}" for each in missing)
            )
        there &= set(subscription.partitions)
    return Found(frozenset(there), {topic.name: topic.id for topic in topics.values() if topic.id != NO_TOPIC_ID})


def _names(cluster: Cluster, subscription: Subscription) -> Collection[str]:
    if isinstance(subscription, Pattern):
        matches = re.compile(subscription.regex).fullmatch
        _, topics = cluster.topics()
        return sorted(name for name, topic in topics.items() if not topic.is_internal and matches(name))
    if isinstance(subscription, Partitions):
        return sorted({each.topic for each in subscription.partitions})
    return subscription.names


def _topics(cluster: Cluster, names: Collection[str], *, may_lack: bool) -> dict[str, Topic]:
    if not may_lack:
        return cluster.look_up(names)
    found: dict[str, Topic] = {}
    for name in names:
        with suppress(UnknownTopic):
            found |= cluster.look_up([name])
    return found
