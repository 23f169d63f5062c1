"""A cluster that grows and shrinks while it is used: brokers join, are drained, and are lost for good."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.conftest import QuickTools
from tests.cluster.finding import (
    OFFSETS_TOPIC,
    SMALL_INTERNAL_TOPICS,
    STATE_TOPIC,
    a_pair,
    all_are_known,
    create_topic_over,
    gauge,
    states_of,
    stored,
)
from tests.testkit import Cluster, eventually

# A session that is lost for a moment moves leaders, which is not what is looked at here.
PATIENT = {"broker.session.timeout.ms": 6_000}


class Load:
    """A producer that never stops: acks=all, idempotent, to all partitions in turn."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1})
        self._topic = topic
        self._partitions = partitions
        self._stop = Event()
        self._thread = Thread(target=self._run, name="load")
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.failures: list[KafkaError] = []

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            value = b"%d" % len(self.sent)
            self.sent.append(value)
            where = len(self.sent) % self._partitions
            self._producer.produce(self._topic, value, partition=where, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.failures.append(error)

    def goes_on(self) -> None:
        target = len(self.acknowledged) + 50
        eventually(lambda: len(self.acknowledged) >= target, 30, "nothing is acknowledged any more")

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        assert self._producer.flush(30) == 0
        assert self.failures == []


def all_values(cluster: Cluster, topic: str, partitions: int, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "checker", "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        values: list[bytes] = []

        def are_there() -> bool:
            for message in consumer.consume(1_000, 0.2):
                assert message.error() is None, message.error()
                values.append(message.value() or b"")
            return len(values) >= count

        eventually(are_there, 30)
        return values
    finally:
        consumer.close()


def replicas_of(cluster: Cluster, topic: str) -> list[list[int]]:
    return [sorted(state.replica_nodes) for state in states_of(cluster, topic)]


def described(tools: QuickTools) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(tools.output("cluster", "describe", "--json"))
    return document


def test_given_load_when_a_broker_joins_and_another_is_drained_and_stopped_then_nothing_is_lost_and_work_is_shared(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3, **PATIENT) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, *[(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)] * 2)
        tools = QuickTools(cluster.bootstrap)
        load = Load(cluster, topic_name, partitions=8)
        with load.running():
            load.goes_on()
            cluster.add(4)
            all_are_known(cluster)

            plan = json.loads(tools.output("cluster", "rebalance", "--yes", "--json", "--throttle", "50MB"))
            assert {added for move in plan for added in set(move["after"]) - set(move["before"])} == {4}
            assert described(tools)["skew"] == {
                "replicas": {"least": 6, "most": 6},
                "leaders": {"least": 2, "most": 2},
            }
            assert stored(cluster, "broker-configs/4")["configs"] == {}  # the throttle is gone
            assert "throttled" not in str(stored(cluster, f"topics/{topic_name}")["configs"])
            assert b"nothing to move" in tools.run("cluster", "rebalance", "--yes").stderr
            load.goes_on()

            drained = tools.run("broker", "drain", 2, "--yes")
            assert drained.returncode == 0, drained.stderr.decode()
            assert "broker unregister 2" in drained.stderr.decode()
            assert replicas_of(cluster, topic_name) == [[1, 3, 4]] * 8
            assert "alive" in tools.refusal("broker", "unregister", 2)
            assert "too few" in tools.refusal("broker", "drain", 3, "--yes")
            cluster[2].stop()
            QuickTools(cluster.bootstrap).output("broker", "unregister", 2)
            load.goes_on()

        assert sorted(all_values(cluster, topic_name, 8, len(load.sent))) == sorted(load.sent)
        remaining = described(QuickTools(cluster.bootstrap))
        assert [each["id"] for each in remaining["brokers"]] == [1, 3, 4]
        assert remaining["under_replicated"] == remaining["offline"] == remaining["moving"] == []
        assert sum(gauge(broker, "penstock_leaders") for broker in cluster.running) == remaining["partitions"]
        assert sum(gauge(broker, "penstock_active_controller") for broker in cluster.running) == 1
        assert [gauge(broker, "penstock_under_replicated_partitions") for broker in cluster.running] == [0, 0, 0]


def test_given_one_broker_when_two_join_then_internal_topics_have_three_replicas_and_survive_the_first(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=1, **SMALL_INTERNAL_TOPICS) as cluster:
        create_topic_over(cluster, topic_name, (1,))
        commit_in_transaction(cluster, topic_name)
        assert replicas_of(cluster, OFFSETS_TOPIC) == replicas_of(cluster, STATE_TOPIC) == [[1]] * 6

        cluster.add(2)
        cluster.add(3)

        for topic in (OFFSETS_TOPIC, STATE_TOPIC):
            eventually(lambda: replicas_of(cluster, topic) == [[1, 2, 3]] * 6, 30)  # noqa: B023 - called at once
            eventually(lambda: all(len(each.isr_nodes) == 3 for each in states_of(cluster, topic)), 30)  # noqa: B023
            key = f"topics/{topic}"
            eventually(lambda: stored(cluster, key)["configs"]["min.insync.replicas"] == "2", 30)  # noqa: B023
        cluster[1].kill()
        assert committed(cluster, topic_name) == 1


def commit_in_transaction(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "copier"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    group = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], group.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    group.close()


def committed(cluster: Cluster, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    try:
        (found,) = reader.committed([TopicPartition(topic, 0)], 30)
        return int(found.offset)
    finally:
        reader.close()


def test_given_auto_heal_when_a_broker_is_killed_for_good_then_its_replicas_are_made_anew_elsewhere(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=4, **{"penstock.replica.auto.heal.ms": 500}) as cluster:
        all_are_known(cluster)
        create_topic_over(cluster, topic_name, (1, 2, 3), (2, 3, 4), (3, 1, 4))
        load = Load(cluster, topic_name, partitions=3)
        with load.running():
            load.goes_on()

            cluster[1].kill()

            eventually(lambda: replicas_of(cluster, topic_name) == [[2, 3, 4]] * 3, 60)
            eventually(lambda: all(len(each.isr_nodes) == 3 for each in states_of(cluster, topic_name)), 30)
            load.goes_on()
        assert sorted(all_values(cluster, topic_name, 3, len(load.sent))) == sorted(load.sent)
        brokers = described(QuickTools(cluster.bootstrap))["brokers"]
        assert (brokers[0]["id"], brokers[0]["alive"], brokers[0]["replicas"]) == (1, False, 0)


def test_given_a_broker_that_is_drained_when_it_is_cancelled_then_it_gets_replicas_again(
    tmp_path: Path, topic_name: str
) -> None:
    with a_pair(tmp_path, topic_name) as cluster:
        tools = QuickTools(cluster.bootstrap)
        tools.output("broker", "drain", 2, "--yes")
        cluster[2].restart()
        all_are_known(cluster)
        states = {each["id"]: each["draining"] for each in described(QuickTools(cluster.bootstrap))["brokers"]}
        assert states == {1: False, 2: True}
        assert replicas_of(cluster, topic_name) == [[1], [1]]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assert admin.list_topics(timeout=10).topics.keys() == {topic_name}

        cancelled = tools.run("broker", "drain", 2, "--cancel").stderr.decode()
        moved = tools.run("cluster", "rebalance", "--yes").stderr.decode()

        assert sorted(replicas_of(cluster, topic_name)) == [[1], [2]], moved
        assert "not drained any more, 0 moves given up" in cancelled
        assert moved.endswith("1 of 1 partition moved\npenstock: 1 partition moved, the cluster is balanced\n")
