"""Who leads what in a cluster, and names that belong to a coordinator of the test's choice."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from penstock.coordinators.coordinators import partition_of
from penstock.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from penstock.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.testkit import Broker, Cluster, RawClient, eventually
from tests.testkit.asking import a_batch, fetch, produce, values_of

GROUPS, TRANSACTIONS = 0, 1
OFFSETS_TOPIC, STATE_TOPIC = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = {GROUPS: OFFSETS_TOPIC, TRANSACTIONS: STATE_TOPIC}
SMALL_INTERNAL_TOPICS: dict[str, Any] = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "group.initial.rebalance.delay.ms": 0,
}

State = MetadataResponsePartition
_PRODUCER_IDS = itertools.count(1 << 41)


def a_cluster(directory: Path, *, of_the_third: Mapping[str, Any] | None = None, **settings: Any) -> Cluster:
    """Three brokers, with internal topics of which each leads a part. The third may have settings of its own."""
    cluster = Cluster.start(directory, brokers=2, **{**SMALL_INTERNAL_TOPICS, **settings})
    cluster.add(3, **(of_the_third or {}))
    all_are_known(cluster)
    with RawClient(cluster[1].address) as client:
        for kind in INTERNAL_TOPICS:
            eventually(partial(_is_found, client, kind), 20)
    return cluster


@contextmanager
def a_pair(directory: Path, topic: str, **settings: Any) -> Iterator[Cluster]:
    """Two brokers that know each other, and a topic with a partition on each."""
    with Cluster.start(directory, brokers=2, **settings) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic, (1,), (2,))
        yield cluster


def all_are_known(cluster: Cluster) -> None:
    """Every broker that runs has heard of all of them."""
    for broker in cluster.running:
        with RawClient(broker.address) as client:
            eventually(lambda: len(_brokers(client)) == len(cluster.running))


def _brokers(client: RawClient) -> set[int]:
    return {each.node_id for each in client.exchange(MetadataRequest(topics=[]), 9, MetadataResponse).brokers}


def _is_found(client: RawClient, kind: int) -> bool:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["anybody"])
    (found,) = client.exchange(request, 4, FindCoordinatorResponse).coordinators
    return found.error_code == 0


def gauge(broker: Broker, name: str) -> float:
    with urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name} "))
    return float(value)


def states_of(cluster: Cluster, topic: str, at: Broker | None = None) -> list[State]:
    with RawClient((at or cluster.running[0]).address) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        (answer,) = client.exchange(request, 9, MetadataResponse).topics
    return sorted(answer.partitions, key=lambda each: each.partition_index)


def controller_of(cluster: Cluster, at: Broker | None = None) -> int:
    """As DescribeCluster names it, -1 when there is none: in Metadata every broker names itself."""
    with RawClient((at or cluster.running[0]).address) as client:
        return client.exchange(DescribeClusterRequest(), 1, DescribeClusterResponse).controller_id


def leader_of(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """One that runs."""

    def found() -> int | None:
        states = states_of(cluster, topic)
        leader = states[partition].leader_id if partition < len(states) else -1
        return leader if leader > 0 and cluster[leader].is_running else None

    return eventually(found, 20, f"nobody leads {topic}-{partition}")


def write_to_leader(cluster: Cluster, topic: str, *values: bytes) -> None:
    """To whoever leads its first partition, until it takes it; idempotent, since a leader may append and go."""
    batch = a_batch(*values, producer_id=next(_PRODUCER_IDS), producer_epoch=0, base_sequence=0)

    def is_written() -> bool:
        with RawClient(cluster[leader_of(cluster, topic)].address) as client:
            return produce(client, topic, batch).error_code == 0

    eventually(is_written, 60, "nobody took the records")


def until_readable(cluster: Cluster, topic: str, expected: Sequence[bytes]) -> None:
    """That and nothing else is in its first partition. A new leader may take a moment to know what is committed."""
    values: list[bytes | None] = []

    def is_read() -> bool:
        with RawClient(cluster[leader_of(cluster, topic)].address) as client:
            while (data := fetch(client, topic, len(values))).error_code == 0:
                if not (some := values_of(data)):
                    return len(values) >= len(expected)
                values.extend(some)
        return False

    eventually(is_read, 60, f"not all of {topic} can be read")
    assert values == list(expected)


def coordinator_of(cluster: Cluster, kind: int, name: str) -> int:
    return leader_of(cluster, INTERNAL_TOPICS[kind], state_of_name(cluster, kind, name).partition_index)


def a_name(cluster: Cluster, kind: int, prefix: str, fits: Callable[[State], bool]) -> str:
    """A group or transactional id whose partition is as wanted."""
    states = states_of(cluster, INTERNAL_TOPICS[kind])
    assert any(fits(each) for each in states), states
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(name for name in names if fits(states[partition_of(name, len(states))]))


def create_topic_over(cluster: Cluster, name: str, *partitions: Sequence[int], **configs: Any) -> None:
    """A topic with its replicas where they are wanted; the first of each leads."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in enumerate(partitions)
        ],
        configs=[CreatableTopicConfig(name=key, value=str(value)) for key, value in configs.items()],
    )
    with RawClient(cluster.running[0].address) as client:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (result,) = client.exchange(request, 7, CreateTopicsResponse).topics
    assert result.error_code == 0, result

    def is_everywhere() -> bool:
        return all(len(states_of(cluster, name, broker)) == len(partitions) for broker in cluster.running)

    def is_led() -> bool:
        """A broker may know that it is to lead a partition, and still be making its log."""
        for index in range(len(partitions)):
            with RawClient(cluster[leader_of(cluster, name, index)].address) as client:
                if fetch(client, name, partition=index).error_code:
                    return False
        return True

    eventually(is_everywhere)
    eventually(is_led)


def state_of_name(cluster: Cluster, kind: int, name: str) -> State:
    states = states_of(cluster, INTERNAL_TOPICS[kind])
    return states[partition_of(name, len(states))]


def stored(cluster: Cluster, key: str) -> dict[str, Any]:
    """What the metadata has under a key."""
    with closing(sqlite3.connect(cluster[1].data.parent / "metadata.db")) as database:
        ((value,),) = database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchall()
    content: dict[str, Any] = json.loads(value)
    return content


@contextmanager
def clients_of(cluster: Cluster) -> Iterator[dict[int, RawClient]]:
    """One to each broker that runs, by its id."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(RawClient(cluster[number].address))
            for number in (1, 2, 3)
            if cluster[number].is_running
        }
