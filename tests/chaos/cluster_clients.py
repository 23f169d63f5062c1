"""Clients of a cluster that is harmed: producers and readers that write down what they do, and what is made of that.

Producers write with acks=all to topics with three replicas; nothing of what they were acknowledged may be missing. Some
write in transactions, of which they abort a few; readers of committed records see all of one or nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tests.chaos.acknowledged import Acknowledged
from tests.chaos.fleet import Fleet
from tests.history.checker import check
from tests.history.findings import report
from tests.history.reading import Fate, read_history
from tests.testkit import Broker, Cluster, RawClient, eventually

FLUSHED, CACHED = "flushed", "cached"
PAGE_CACHE = {"flush.messages": str(2**63 - 1)}
PARTITIONS = 3
TRANSACTIONAL = 2
# A producer whose leader stands still learns of it when a request is not answered in this time.
CLIENT_TIMEOUT_MS = 2_000
IN_SYNC_WITHIN_S = 60


# A broker whose clock is far behind takes what clients send for the future, and refuses it, as Kafka does.
ANY_TIMESTAMP = {"message.timestamp.after.max.ms": str(2**63 - 1)}


class Clients:
    """Use in the `with` block of the fleet that they belong to."""

    def __init__(
        self, cluster: Cluster, fleet: Fleet, topics: Mapping[str, Mapping[str, str]], *, led_by: int | None = None
    ) -> None:
        """`led_by` is to be the leader of all partitions."""
        self.fleet = fleet
        self.topics = list(topics)
        self._cluster = cluster
        self._create(topics, led_by)
        self.producers = list(self._start())

    @staticmethod
    def fleet_of(cluster: Cluster, directory: Path, luck: random.Random) -> Fleet:
        return Fleet(cluster.bootstrap, directory / "histories", luck)

    def _create(self, topics: Mapping[str, Mapping[str, str]], led_by: int | None) -> None:
        with RawClient(self._cluster[1].address) as client:
            # The controller has to know them all.
            eventually(lambda: len(_brokers(client)) == len(self._cluster.ids))
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        where: dict[str, Any] = {"num_partitions": PARTITIONS, "replication_factor": 3}
        if led_by is not None:
            others = [number for number in self._cluster.ids if number != led_by]
            where = {"num_partitions": PARTITIONS, "replica_assignment": [[led_by, *others]] * PARTITIONS}
        wanted = [NewTopic(name, config={**ANY_TIMESTAMP, **config}, **where) for name, config in topics.items()]
        for created in admin.create_topics(wanted).values():
            created.result(10)

    def _start(self) -> Iterator[Acknowledged]:
        for topic in self.topics:
            common = {
                "topic": topic,
                "partitions": PARTITIONS,
                "socket_timeout_ms": CLIENT_TIMEOUT_MS,
                "recovery": "rebootstrap",
            }
            for kind in ("idempotent", "plain"):
                worker = self.fleet.start("producer", kind=kind, **common)
                yield Acknowledged(f"{worker.name} ({kind}) of {topic}", topic, worker.history_path, PARTITIONS)
            for number in range(TRANSACTIONAL):
                self.fleet.start("producer", kind="transactional", transactional_id=f"{topic}-{number}", **common)
            for isolation in ("read_uncommitted", "read_committed"):
                self.fleet.start("tail", isolation=isolation, **common)
        self.fleet.start("consumer", group="one", **common)

    # While they work

    def until_all_get_on(self, within_s: float, what: str) -> None:
        """Until each producer is acknowledged something in each partition that it has not written yet."""
        for producer in self.producers:
            producer.mark()
        eventually(self._all_get_on, within_s, f"nothing is acknowledged any more: {what}")

    def _all_get_on(self) -> bool:
        behind = [each for producer in self.producers for each in producer.behind]
        assert not behind, f"{', '.join(behind)}"
        return True

    def take_longest_wait_s(self) -> float:
        """How long a producer was without an acknowledgement in some partition, since this was asked last."""
        return max(producer.take_longest_wait_s() for producer in self.producers)

    # In the end

    def finish(self) -> None:
        """Ends them when everything is in sync, and reads all that is there."""
        self.fleet.end("producer")
        eventually(self.all_in_sync, IN_SYNC_WITHIN_S, "replicas do not come back")
        self.fleet.end("tail", "consumer")
        for topic in self.topics:
            self.fleet.read_everything(topic, PARTITIONS)

    def check(self) -> None:
        """Every promise, by what the clients did and saw; and that all replicas have the same bytes."""
        history = read_history(self.fleet.directory)
        findings = check(history)
        fates = Counter(transaction.fate.name for transaction in history.transactions)
        sizes = f"{history.event_count} events, {len(history.writes)} writes, transactions: {dict(fates)}"
        print(f"{sizes}: {report(findings)}")
        assert not findings, report(findings)
        assert not self.fleet.stuck, "\n".join(self.fleet.stuck)
        assert any(write.outcome == "ok" for write in history.writes.values())
        assert fates[Fate.COMMITTED.name]
        for topic in self.topics:
            for partition in range(PARTITIONS):
                eventually(lambda: self._is_same_on_replicas(topic, partition), 10)  # noqa: B023 - called at once

    def states(self, broker: Broker) -> Iterator[MetadataResponsePartition]:
        for topic in self.topics:
            yield from self._states_of(topic, broker)

    def _states_of(self, topic: str, broker: Broker) -> list[MetadataResponsePartition]:
        with RawClient(broker.address) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            (answer,) = client.exchange(request, 9, MetadataResponse).topics
        assert answer.error_code == 0 and len(answer.partitions) == PARTITIONS, answer
        return sorted(answer.partitions, key=lambda each: each.partition_index)

    def all_in_sync(self) -> bool:
        """Whoever is asked says that each partition has a leader, and all its replicas in sync."""
        for broker in self._cluster:
            for state in self.states(broker):
                replicas = sorted(state.replica_nodes)
                assert state.leader_id in replicas and sorted(state.isr_nodes) == replicas, (broker.name, state)
        return True

    def _is_same_on_replicas(self, topic: str, partition: int) -> bool:
        first, *others = self._states_of(topic, self._cluster.running[0])[partition].replica_nodes
        one = _log_of(self._cluster[first], topic, partition)
        for broker_id in others:
            other = _log_of(self._cluster[broker_id], topic, partition)
            differs_at = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
            lengths = f"{len(one)} and {len(other)} bytes, first difference at {differs_at}"
            assert one == other, f"{topic}-{partition} on brokers {first} and {broker_id}: {lengths}"
        return len(one) > 0


def _brokers(client: RawClient) -> list[int]:
    return [each.node_id for each in client.exchange(MetadataRequest(topics=[]), 9, MetadataResponse).brokers]


def _log_of(broker: Broker, topic: str, partition: int) -> bytes:
    """All its segments, which need not end where those of another replica do."""
    return b"".join(path.read_bytes() for path in sorted((broker.data / f"{topic}-{partition}").glob("*.log")))
