"""Three brokers on etcd whose members fail: one is not noticed, two stop changes of the metadata and nothing else."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.core.errors import ErrorCode
from tests.chaos.cluster_clients import FLUSHED, Clients
from tests.chaos.conftest import FULL
from tests.compat.members import group_settings
from tests.testkit import Broker, Cluster, RawClient, eventually
from tests.testkit.asking import ask_to_create, create_topic
from tests.testkit.etcd import EtcdCluster, EtcdMember
from tests.testkit.hosts import Hosts

pytestmark = pytest.mark.xdist_group("chaos-cluster")

MEMBERS = ("etcd0", "etcd1", "etcd2")
# The default. With less, etcd's own elections could outlast a session.
SESSION_MS = 3_000
WITHIN_S = 30
PARTITIONS, TOPICS = 10_000, 10

Harm = Callable[[EtcdMember], None]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts.made(*MEMBERS) as hosts:
        yield hosts


@pytest.fixture
def etcd(hosts: Hosts, tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster.start_on([EtcdMember(name, tmp_path, host=hosts[name]) for name in MEMBERS]) as etcd:
        yield etcd


@pytest.fixture
def cluster(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Cluster]:
    settings: dict[str, Any] = {
        "broker.session.timeout.ms": SESSION_MS,
        "default.replication.factor": 3,
        **group_settings(),
    }
    settings["penstock.metadata"] = etcd.address(uuid.uuid4().hex)
    with Cluster.start(tmp_path, **settings) as cluster:
        yield cluster


@pytest.fixture
def clients(cluster: Cluster, tmp_path: Path, luck: random.Random) -> Iterator[Clients]:
    with Clients.fleet_of(cluster, tmp_path, luck) as fleet:
        clients = Clients(cluster, fleet, {FLUSHED: {}})
        eventually(clients.all_in_sync, WITHIN_S)
        get_on(clients, "nothing")
        yield clients


def leaders(clients: Clients, cluster: Cluster) -> list[tuple[int, int, int]]:
    return [(each.partition_index, each.leader_id, each.leader_epoch) for each in clients.states(cluster[1])]


def readiness(broker: Broker) -> tuple[int, str]:
    try:
        with urlopen(f"http://{broker.http}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, json.loads(error.read())["reason"]


def get_on(clients: Clients, what: str) -> None:
    clients.until_all_get_on(WITHIN_S, what)
    clients.fleet.until_all_progress()


def test_given_a_member_that_is_killed_paused_or_cut_off_then_no_client_notices_and_nobody_is_elected(
    cluster: Cluster, etcd: EtcdCluster, hosts: Hosts, clients: Clients, topic_name: str
) -> None:
    def cut_off(member: EtcdMember) -> None:
        hosts.cut_both_ways(member.name, *(name for name in MEMBERS if name != member.name))
        hosts.cut_from_clients(member.name)  # which brokers are, too

    before = leaders(clients, cluster)
    pids = [broker.pid for broker in cluster]
    harms: dict[str, Harm] = {"killed": EtcdMember.kill, "paused": EtcdMember.pause, "cut off": cut_off}
    with RawClient(cluster[2].address, timeout=WITHIN_S) as client:
        for what, harm in harms.items():
            with etcd.healed_afterwards(), hosts.healed_afterwards():
                # Not the leader: one that wakes after a lease's time revokes it in the name of the next (etcd 3.4.23,
                # its issue 15247).
                harm(etcd.followers[0] if harm is EtcdMember.pause else etcd.leader)
                get_on(clients, f"a member of etcd is {what}")
                create_topic(client, f"{topic_name}-{what.replace(' ', '-')}", 3, replication_factor=3)
                get_on(clients, f"a member of etcd is {what}")

    assert leaders(clients, cluster) == before
    assert [broker.pid for broker in cluster] == pids
    clients.finish()
    clients.check()


def test_given_a_lost_quorum_then_changes_are_refused_records_flow_and_all_goes_on_by_itself_when_it_is_back(
    cluster: Cluster, etcd: EtcdCluster, clients: Clients, topic_name: str
) -> None:
    pids = [broker.pid for broker in cluster]
    with etcd.healed_afterwards(), RawClient(cluster[2].address, timeout=WITHIN_S) as client:
        for member in etcd.followers:
            member.kill()
        for broker in cluster:
            eventually(lambda: readiness(broker)[0] == 503, WITHIN_S, f"{broker.name} is ready")  # noqa: B023
            assert "metadata cannot change: no answer from etcd" in readiness(broker)[1]
            assert "etcd does not answer, metadata cannot change" in broker.log_text()
        before = leaders(clients, cluster)

        get_on(clients, "no quorum")
        refused = ask_to_create(client, topic_name)
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR, refused
        assert "no answer from etcd" in (refused.error_message or ""), refused
        get_on(clients, "no quorum")
        assert leaders(clients, cluster) == before

        etcd.start_missing()
        for broker in cluster:
            eventually(lambda: readiness(broker)[0] == 200, WITHIN_S, f"{broker.name} is not ready")  # noqa: B023
        create_topic(client, topic_name, 3, replication_factor=3)
        get_on(clients, "the quorum is back")

    assert [broker.pid for broker in cluster] == pids
    clients.finish()
    clients.check()


@pytest.mark.skipif(not FULL, reason="takes minutes: PENSTOCK_TEST_CHAOS=full")
@pytest.mark.timeout(900)
def test_given_ten_thousand_partitions_on_etcd_then_each_can_be_written_to_also_after_a_broker_was_killed(
    cluster: Cluster, topic_name: str
) -> None:
    topics = [f"{topic_name}-{number}" for number in range(TOPICS)]
    began = time.monotonic()
    with RawClient(cluster[2].address, timeout=300) as client:
        for topic in topics:
            create_topic(client, topic, PARTITIONS // TOPICS)
    print(f"{PARTITIONS} partitions created within {time.monotonic() - began:.1f} s")
    write_to_all(cluster, topics)

    cluster[1].kill()
    cluster[1].restart(same_port=True)
    began = time.monotonic()
    write_to_all(cluster, topics)
    print(f"all can be written to {time.monotonic() - began:.1f} s after a broker was back")


def write_to_all(cluster: Cluster, topics: Sequence[str]) -> None:
    failures: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.topic()}-{message.partition()}: {error}")

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": 300_000})
    for topic in topics:
        for partition in range(PARTITIONS // TOPICS):
            producer.produce(topic, b"x", partition=partition, on_delivery=delivered)
    assert producer.flush(300) == 0
    assert failures == []
