"""Consumers that say where they are read from a replica in their rack, and lose nothing by it (KIP-392)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.cli.cluster_client import ClusterClient
from penstock.controller.commands import ResourceType
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.records import FetchResponse, PartitionData
from tests.cluster.finding import all_are_known, create_topic_over, leader_of, states_of
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import FETCH_VERSION, a_batch, fetch, fetch_request, produce, values_of

RACKS = {1: "north", 2: "south", 3: "south"}
NO_REPLICA = -1
BEFORE_RACKS = 10


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster.start(tmp_path, brokers=1, **{"broker.rack": RACKS[1]})
    for broker_id in (2, 3):
        cluster.add(broker_id, **{"broker.rack": RACKS[broker_id]})
    with cluster:
        yield cluster


def asked(cluster: Cluster, broker_id: int, topic: str, offset: int, **fields: Any) -> PartitionData:
    with RawClient(cluster[broker_id].address) as client:
        return fetch(client, topic, offset, **fields)


def write(cluster: Cluster, topic: str, *values: bytes) -> None:
    with RawClient(cluster[leader_of(cluster, topic)].address) as client:
        assert produce(client, topic, a_batch(*values)).error_code == 0


def test_given_a_consumer_with_a_rack_when_it_asks_the_leader_then_it_is_sent_to_an_in_sync_replica_there(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    write(cluster, topic_name, b"one", b"two")

    def sent_to(rack: str, offset: int = 0) -> int:
        return asked(cluster, 1, topic_name, offset, rack_id=rack).preferred_read_replica

    eventually(lambda: sent_to("south") == 2, 20)
    assert sent_to("south", offset=2) == 2
    assert sent_to("north") == NO_REPLICA
    assert sent_to("elsewhere") == NO_REPLICA
    assert sent_to("") == NO_REPLICA
    redirected = asked(cluster, 1, topic_name, 0, rack_id="south")
    assert not redirected.records
    assert redirected.error_code == 0

    cluster[2].kill()
    eventually(lambda: states_of(cluster, topic_name)[0].isr_nodes == [1], 20)
    assert sent_to("south") == NO_REPLICA


def test_given_a_follower_when_a_consumer_asks_it_then_it_has_what_is_committed_and_nobody_is_told_to_start_over(
    cluster: Cluster, topic_name: str
) -> None:
    """Trap A12."""
    create_topic_over(cluster, topic_name, (1, 2))
    write(cluster, topic_name, b"one", b"two")

    eventually(lambda: values_of(asked(cluster, 2, topic_name, 0)) == [b"one", b"two"], 20)
    assert asked(cluster, 2, topic_name, 2).error_code == 0
    assert asked(cluster, 2, topic_name, 3).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert asked(cluster, 2, topic_name, 0, version=BEFORE_RACKS).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert asked(cluster, 3, topic_name, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_given_a_consumer_that_waits_at_a_follower_when_something_is_committed_then_it_gets_it(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2))
    write(cluster, topic_name, b"one")
    eventually(lambda: asked(cluster, 2, topic_name, 1).high_watermark == 1, 20)
    request = fetch_request({topic_name: [(0, 1)]}, max_wait_ms=60_000)
    with RawClient(cluster[2].address, timeout=60) as client:
        correlation_id = client.send_request(request.API_KEY, FETCH_VERSION, request.encode(FETCH_VERSION))
        write(cluster, topic_name, b"two")
        body = client.receive_response(request.API_KEY, FETCH_VERSION, correlation_id)
    (answer,) = FetchResponse.decode(body, FETCH_VERSION).responses

    assert values_of(answer.partitions[0]) == [b"two"]


def test_given_librdkafka_with_a_rack_when_it_consumes_then_the_replica_there_serves_it_even_when_the_leader_changes(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1, 2, 3))
    sent = [b"%d" % number for number in range(100)]
    for value in sent[:50]:
        write(cluster, topic_name, value)
    consumer = a_consumer_in_the_south(cluster, topic_name)
    received: list[bytes | None] = []

    eventually(lambda: has_read_on(consumer, received) and len(received) == 50, 30)
    assert bytes_out(cluster, 1, topic_name) == 0
    assert bytes_out(cluster, 2, topic_name) + bytes_out(cluster, 3, topic_name) > 0
    cluster[1].kill()
    eventually(lambda: states_of(cluster, topic_name)[0].leader_id in (2, 3), 20)
    for value in sent[50:]:
        write(cluster, topic_name, value)
    eventually(lambda: has_read_on(consumer, received) and len(received) == 100, 30)
    consumer.close()

    assert received == sent


def test_given_librdkafka_at_a_follower_that_falls_behind_when_it_catches_up_then_all_is_read_there_in_order(
    tmp_path: Path, topic_name: str
) -> None:
    """Trap A12: what the follower has not yet is no reason to start over, nor to leave something out."""
    # The throttle holds up whoever is not in sync; the session must outlast the pause.
    settings = {"broker.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 1_000, "replica.fetch.max.bytes": 1_000}
    throttled = {(ResourceType.BROKER, "1"): {"leader.replication.throttled.rate": "1"}}
    as_before = {(ResourceType.BROKER, "1"): {"leader.replication.throttled.rate": None}}
    sent = [b"%0600d" % number for number in range(60)]
    with Cluster.start(tmp_path, brokers=1, **{**settings, "broker.rack": "north"}) as cluster:
        cluster.add(2, **{"broker.rack": "south"})
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (1, 2), **{"leader.replication.throttled.replicas": "*"})
        admin = ClusterClient.of(cluster[1].bootstrap, timeout_s=10)
        consumer = a_consumer_in_the_south(cluster, topic_name)
        received: list[bytes | None] = []
        for value in sent[:30]:
            write(cluster, topic_name, value)
        eventually(lambda: has_read_on(consumer, received) and len(received) == 30, 30)
        os.kill(cluster[2].pid, signal.SIGSTOP)
        admin.configure(throttled)
        for value in sent[30:]:
            write(cluster, topic_name, value)
        os.kill(cluster[2].pid, signal.SIGCONT)
        eventually(lambda: not has_read_on(consumer, received, 0.5), 30)
        assert len(received) < 60
        assert asked(cluster, 2, topic_name, 60).error_code == ErrorCode.OFFSET_NOT_AVAILABLE

        admin.configure(as_before)

        eventually(lambda: has_read_on(consumer, received) and len(received) == 60, 30)
        consumer.close()
        assert received == sent
        assert bytes_out(cluster, 1, topic_name) == 0


def a_consumer_in_the_south(cluster: Cluster, topic: str) -> Consumer:
    """From the first record on. It fails rather than start over."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "client.rack": "south",
            "fetch.wait.max.ms": 100,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def has_read_on(consumer: Consumer, received: list[bytes | None], timeout_s: float = 0.1) -> bool:
    message = consumer.poll(timeout_s)
    if message is not None:
        assert message.error() is None, message.error()
        received.append(message.value())
    return message is not None


def bytes_out(cluster: Cluster, broker_id: int, topic: str) -> float:
    with urlopen(f"http://{cluster[broker_id].http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = f'penstock_topic_bytes_out_total{{topic="{topic}"}}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
