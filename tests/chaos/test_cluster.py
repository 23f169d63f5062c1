"""Three brokers are killed, paused and restarted, one or two at a time; then what clients did and saw is held against
every promise, and the replicas against each other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from tests.chaos.acknowledged import Acknowledged
from tests.chaos.cluster_harm import ClusterHarm
from tests.chaos.conftest import rounds
from tests.chaos.fleet import Fleet
from tests.compat.members import group_settings
from tests.history.checker import check
from tests.history.findings import report
from tests.history.reading import read_history
from tests.testkit import Broker, Cluster, RawClient, eventually, lasting_port

pytestmark = pytest.mark.xdist_group("chaos-cluster")

BROKERS = (1, 2, 3)
FLUSHED, CACHED = "flushed", "cached"
TOPICS = {FLUSHED: {}, CACHED: {"flush.messages": str(2**63 - 1)}}
PARTITIONS = 3
# A producer whose leader stands still learns of it when a request is not answered in this time.
CLIENT_TIMEOUT_MS = 2_000
IN_SYNC_WITHIN_S = 20


@pytest.mark.timeout(900)
def test_given_three_brokers_when_they_are_killed_paused_and_restarted_then_no_promise_is_broken(
    tmp_path: Path, luck: random.Random
) -> None:
    with _a_cluster(tmp_path) as cluster:
        _create_topics(cluster)
        with Fleet(cluster.bootstrap, tmp_path / "histories", luck) as fleet:
            harm = ClusterHarm(cluster, fleet, _start_clients(fleet), tmp_path / "metadata.db", luck)
            harm.go_on_for(rounds(short=15, full=300))
            fleet.end("producer")
            eventually(lambda: _all_in_sync(cluster), IN_SYNC_WITHIN_S, "replicas do not come back")
            fleet.end("tail", "consumer")
            for topic in TOPICS:
                fleet.read_everything(topic, PARTITIONS)
        for what, seconds in harm.seconds.items():
            print(f"{what}: {len(seconds)} times, got on within {max(seconds):.1f} s")

        history = read_history(fleet.directory)
        findings = check(history)
        print(f"{history.event_count} events, {len(history.writes)} writes: {report(findings)}")
        assert not findings, report(findings)
        assert not fleet.stuck, "\n".join(fleet.stuck)
        assert any(write.outcome == "ok" for write in history.writes.values())
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                eventually(lambda: _same_on_all(cluster, topic, partition), 10)  # noqa: B023 - called at once


def _a_cluster(tmp_path: Path) -> Cluster:
    """On ports that are still theirs when they come back."""
    cluster = Cluster(tmp_path, {"default.replication.factor": 3, **group_settings()})
    try:
        for broker_id in BROKERS:
            cluster.add(broker_id, port=lasting_port())
    except BaseException as error:
        cluster.__exit__(type(error), error, None)
        raise
    return cluster


def _create_topics(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = [NewTopic(name, PARTITIONS, 3, config=config) for name, config in TOPICS.items()]
    for created in admin.create_topics(topics).values():
        created.result(10)


def _start_clients(fleet: Fleet) -> list[Acknowledged]:
    producers = []
    for topic in TOPICS:
        common = {
            "topic": topic,
            "partitions": PARTITIONS,
            "socket_timeout_ms": CLIENT_TIMEOUT_MS,
            "recovery": "rebootstrap",
        }
        for kind in ("idempotent", "plain"):
            worker = fleet.start("producer", kind=kind, **common)
            producers.append(Acknowledged(f"{worker.name} ({kind}) of {topic}", worker.history_path, PARTITIONS))
        fleet.start("tail", **common)
    fleet.start("consumer", group="one", **common)
    return producers


# Replicas


def _states(broker: Broker) -> Iterator[MetadataResponsePartition]:
    with RawClient(broker.address) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in TOPICS])
        for topic in client.exchange(request, 9, MetadataResponse).topics:
            assert topic.error_code == 0 and len(topic.partitions) == PARTITIONS, topic
            yield from topic.partitions


def _all_in_sync(cluster: Cluster) -> bool:
    """Whoever is asked says that each partition has a leader, and all its replicas in sync."""
    for broker in cluster:
        for state in _states(broker):
            assert state.leader_id in BROKERS and sorted(state.isr_nodes) == list(BROKERS), (broker.name, state)
    return True


def _same_on_all(cluster: Cluster, topic: str, partition: int) -> bool:
    one, *others = (_log_of(broker, topic, partition) for broker in cluster)
    for broker_id, other in zip(BROKERS[1:], others, strict=True):
        differs_at = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        lengths = f"{len(one)} and {len(other)} bytes, first difference at {differs_at}"
        assert one == other, f"{topic}-{partition} on brokers 1 and {broker_id}: {lengths}"
    return len(one) > 0


def _log_of(broker: Broker, topic: str, partition: int) -> bytes:
    """All its segments, which need not end where those of another replica do."""
    return b"".join(path.read_bytes() for path in sorted((broker.data / f"{topic}-{partition}").glob("*.log")))
