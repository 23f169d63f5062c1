"""The brokers of a cluster, its topics, and who leads them.

What any broker can answer is asked of another one when one does not answer: this is used when brokers die. What only a
leader can answer is asked of whoever led the partition when we last heard; whoever is told that this is over forgets it
(`forget`) and asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId, TopicPartition
from penstock.protocol.codec import Request
from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.connection import Answer, Connection, reach
from penstock.wire.errors import NoAnswer, NotNow, Refused, UnknownTopic, Unreachable, check, error_name, reason
from penstock.wire.settings import Address, ClientSettings

Result = TypeVar("Result")

_TRANSACTIONAL_ID = 1
_SEVERAL_KEYS_SINCE = 4
_CREATES_NOTHING_SINCE = 4
_PASSING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id} at {self.host}:{self.port}"


class Leader(NamedTuple):
    node: Node
    epoch: int
    topic_id: TopicId


class Topic(NamedTuple):
    """Ids are all zeros from a broker that has none. A partition without a leader has None."""

    name: str
    id: TopicId
    leaders: Mapping[int, Leader | None]


class Cluster:
    """Every broker has one connection, made when it is asked something. Not for several threads."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._connections: dict[Node, Connection] = {}
        self._seen: list[Address] = []
        self._topics: dict[str, Topic] = {}
        self._heard_at_s: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._is_doubted = False
        try:
            self._any = Connection(*reach(settings.bootstrap, settings.connect_timeout_s), settings)
        except NoAnswer as error:
            self._any = self._another(error)

    def close(self) -> None:
        for connection in (self._any, *self._connections.values()):
            connection.close()
        self._connections.clear()

    # Asking

    def ask(
        self, node: Node, request: Request, response: type[Answer], needed: int = 0, at_most: int | None = None
    ) -> Answer:
        """Raises NoAnswer. A broker that was restarted since it was asked last is not gone."""
        connection = self._connections.pop(node, None)
        if connection is not None and connection.is_closed():
            connection.close()
            connection = None
        if connection is None:
            connection = self.connect(node)
        self._connections[node] = connection
        try:
            return connection.ask(request, response, needed, at_most)
        except NoAnswer:
            del self._connections[node]
            raise

    def ask_any(self, request: Request, response: type[Answer], needed: int = 0) -> Answer:
        """For what every broker can answer, or passes on. It may be asked twice. Raises Unreachable."""
        if self._any.is_closed():  # brokers close what is idle: this one may well be there still
            self._any.close()
            self._any = self._another(None)
        try:
            return self._any.ask(request, response, needed)
        except NoAnswer as error:
            self._any = self._another(error)
        try:
            return self._any.ask(request, response, needed)
        except NoAnswer as error:
            raise Unreachable(str(error)) from None

    def connect(self, node: Node) -> Connection:
        """One of the caller's own. Raises NoAnswer."""
        return Connection.to(Address(node.host, node.port), self.settings, f"broker {node}")

    def _another(self, first: NoAnswer | None) -> Connection:
        """A broker that answers, of those that are known, but for the one that has just not."""
        for address in dict.fromkeys((*self.settings.bootstrap, *self._seen)):
            if first is None or str(address) != first.address:
                try:
                    return Connection.to(address, self.settings)
                except NoAnswer as error:
                    first = first or error
        raise Unreachable(str(first)) from None

    def _ask_somebody_else(self) -> None:
        """From now on, if there is anybody else that answers."""
        self._is_doubted = False
        known = list(dict.fromkeys((*self._seen, *self.settings.bootstrap)))
        at = known.index(self._any.address) if self._any.address in known else 0
        for address in known[at + 1 :] + known[:at]:
            with suppress(NoAnswer):
                other = Connection.to(address, self.settings)
                self._any.close()
                self._any = other
                return

    # Looking

    def nodes(self) -> list[Node]:
        """Every broker."""
        return self._nodes(self.ask_any(MetadataRequest(topics=[]), MetadataResponse))

    def topics(self) -> tuple[dict[int, Node], dict[str, MetadataResponseTopic]]:
        """Every broker and every topic, by id and by name; a topic may have an error in place of partitions."""
        found = self.ask_any(MetadataRequest(topics=None), MetadataResponse)
        return {node.id: node for node in self._nodes(found)}, {topic.name or "": topic for topic in found.topics}

    def look_up(self, names: Collection[str]) -> dict[str, Topic]:
        """These topics as they are now. Raises UnknownTopic with all that are not there; creates none."""
        if self._is_doubted:
            self._ask_somebody_else()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        found = self.ask_any(request, MetadataResponse, needed=_CREATES_NOTHING_SINCE)
        nodes = {node.id: node for node in self._nodes(found)}
        missing = [row.name or "" for row in found.topics if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        if missing:
            raise UnknownTopic("; ".join(f'no topic "{name}"' for name in sorted(missing)))
        topics = {row.name or "": _topic(row, nodes) for row in found.topics}
        self._topics |= topics
        self._heard_at_s |= dict.fromkeys(topics, time.monotonic())
        self._doubted -= topics.keys()
        return topics

    def leader_of(self, partition: TopicPartition) -> Leader:
        """As last heard. Raises UnknownTopic, NotNow."""
        self._ask_again_if_doubted(partition.topic)
        topic = self._topics.get(partition.topic) or self.look_up([partition.topic])[partition.topic]
        if partition.partition not in topic.leaders:
            self.forget(partition.topic)
            raise UnknownTopic(f"no partition {partition}: the topic has {len(topic.leaders)}")
        leader = topic.leaders[partition.partition]
        if leader is None:
            self.doubt(partition.topic)
            raise NotNow(f"partition {partition} has no leader")
        return leader

    def forget(self, topic: str) -> None:
        """Asked for again when it is needed, and of another broker: who told us may be cut off from the others."""
        self._is_doubted = self._topics.pop(topic, None) is not None or self._is_doubted

    def doubt(self, topic: str) -> None:
        """As `forget`, but not before retry.backoff.ms: many partitions may have the same trouble at once."""
        self._doubted.add(topic)

    def _ask_again_if_doubted(self, topic: str) -> None:
        is_old = time.monotonic() - self._heard_at_s.get(topic, 0.0) >= self.settings.retry_backoff_s
        if topic in self._doubted and is_old:
            self._doubted.discard(topic)
            self.forget(topic)

    def coordinator_of(self, transactional_id: str) -> Node:
        """Raises BrokerError while there is none."""
        request = FindCoordinatorRequest(
            key_type=_TRANSACTIONAL_ID, key=transactional_id, coordinator_keys=[transactional_id]
        )
        found = self.ask_any(request, FindCoordinatorResponse, needed=_SEVERAL_KEYS_SINCE)
        (coordinator,) = found.coordinators
        check(coordinator.error_code, coordinator.error_message)
        return Node(coordinator.node_id, coordinator.host, coordinator.port)

    def settled(self, what: str, attempt: Callable[[], Result]) -> Result:
        """What is answered once coordinators have stopped moving. Raises Refused."""
        deadline = time.monotonic() + self.settings.request_timeout_s
        while True:
            try:
                return attempt()
            except BrokerError as refused:
                if refused.code not in _PASSING or time.monotonic() >= deadline:
                    raise Refused(f"{what}: {reason(refused)}") from None
            time.sleep(self.settings.retry_backoff_s)

    def _nodes(self, found: MetadataResponse) -> list[Node]:
        nodes = sorted(
            (Node(broker.node_id, broker.host, broker.port) for broker in found.brokers), key=lambda node: node.id
        )
        self._seen = [Address(node.host, node.port) for node in nodes]
        return nodes


def _topic(row: MetadataResponseTopic, nodes: Mapping[int, Node]) -> Topic:
    name = row.name or ""
    if row.error_code:
        try:
            check(row.error_code)
        except BrokerError as refused:
            kind = NotNow if refused.code.retriable else Refused
            raise kind(f'topic "{name}": {error_name(row.error_code)}') from None
    leaders = {}
    for each in sorted(row.partitions, key=lambda partition: partition.partition_index):
        node = nodes.get(each.leader_id)
        leaders[each.partition_index] = None if node is None else Leader(node, each.leader_epoch, row.topic_id)
    return Topic(name, row.topic_id, leaders)
