"""Partitions on three brokers: nothing acknowledged is lost when one of them goes, and who comes back has it all."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from penstock.protocol.messages.records import ProduceResponse
from tests.cluster.stores import on_both_stores
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import (
    PRODUCE_VERSION,
    a_batch,
    create_topic_on,
    fetch,
    produce,
    produce_request,
    values_of,
)

ALL = (1, 2, 3)
_PRODUCER_IDS = itertools.count(1 << 40)
PAGE_CACHE = {"flush.messages": 2**63 - 1}


@pytest.fixture
def cluster(tmp_path: Path, store: dict[str, Any]) -> Iterator[Cluster]:
    with Cluster.start(tmp_path, brokers=3, **store) as cluster:
        yield cluster


def state_of(cluster: Cluster, topic: str) -> MetadataResponsePartition:
    """Of its first partition, as a broker that runs tells it."""
    with RawClient(cluster.running[0].address) as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        (answer,) = client.exchange(request, 9, MetadataResponse).topics
    (state,) = answer.partitions
    return state


def leader_of(cluster: Cluster, topic: str) -> int | None:
    """None while there is none that runs."""
    leader = state_of(cluster, topic).leader_id
    return leader if leader > 0 and cluster[leader].is_running else None


def in_sync(cluster: Cluster, topic: str) -> list[int]:
    return sorted(state_of(cluster, topic).isr_nodes)


def write(cluster: Cluster, topic: str, *values: bytes, acks: int = -1) -> None:
    """To whoever leads, until it takes it; as an idempotent producer, since a leader may append and lose its place."""
    write_batch(
        cluster, topic, a_batch(*values, producer_id=next(_PRODUCER_IDS), producer_epoch=0, base_sequence=0), acks
    )


def write_batch(cluster: Cluster, topic: str, batch: bytearray, acks: int = -1) -> None:
    def written() -> bool:
        leader = leader_of(cluster, topic)
        if leader is None:
            return False
        with RawClient(cluster[leader].address) as client:
            return produce(client, topic, batch, acks=acks).error_code == 0

    eventually(written, 20, "nobody took the records")


def read(cluster: Cluster, topic: str) -> list[bytes | None]:
    leader = eventually(lambda: leader_of(cluster, topic), 20)
    with RawClient(cluster[leader].address) as client:
        return values_of(fetch(client, topic))


def log_of(cluster: Cluster, broker_id: int, topic: str) -> bytes:
    return (cluster[broker_id].data / f"{topic}-0" / f"{0:020}.log").read_bytes()


class Writer:
    """An idempotent producer of numbers."""

    def __init__(self, cluster: Cluster, topic: str, **settings: Any) -> None:
        self.sent: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.failures: list[KafkaError] = []
        self._cluster = cluster
        self._topic = topic
        self.producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **settings})

    def send(self) -> None:
        self.sent.append(b"%d" % len(self.sent))
        self.producer.produce(self._topic, self.sent[-1], partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.failures.append(error)

    def check(self) -> None:
        """Each was acknowledged and is there, once and in order."""
        assert self.producer.flush(20) == 0
        assert self.failures == []
        assert read(self._cluster, self._topic) == self.acknowledged == self.sent


@pytest.mark.parametrize("configs", [{}, PAGE_CACHE], ids=["fdatasync", "page-cache"])
def test_given_a_leader_that_is_killed_when_it_comes_back_then_all_is_there_and_the_logs_are_the_same(
    cluster: Cluster, topic_name: str, configs: dict[str, object]
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL, **configs)
    write(cluster, topic_name, b"before")

    cluster[1].kill()
    write(cluster, topic_name, b"without it")
    assert read(cluster, topic_name) == [b"before", b"without it"]
    cluster[1].restart()

    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 20)
    write(cluster, topic_name, b"after")
    assert read(cluster, topic_name) == [b"before", b"without it", b"after"]
    eventually(
        lambda: log_of(cluster, 1, topic_name) == log_of(cluster, 2, topic_name) == log_of(cluster, 3, topic_name)
    )


@on_both_stores
def test_given_producers_that_never_stop_when_each_broker_is_killed_in_turn_then_every_record_is_there_once_in_order(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL)
    writer = Writer(cluster, topic_name, **{"linger.ms": 1})

    def produced(count: int) -> bool:
        """Goes on until so many more were acknowledged."""
        writer.send()
        writer.producer.poll(0.002)
        return len(writer.acknowledged) >= count

    for broker_id in ALL:
        eventually(lambda: produced(len(writer.acknowledged) + 1), 20)
        cluster[broker_id].kill()
        target = len(writer.acknowledged) + 50
        eventually(lambda: produced(target), 20, "nothing was acknowledged any more")  # noqa: B023 - called at once
        cluster[broker_id].restart(same_port=True)
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 20)

    writer.check()


def test_given_records_that_no_other_replica_got_when_their_leader_comes_back_then_it_gives_them_up(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3, **{"broker.session.timeout.ms": 3_000}) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=(2, 3), **PAGE_CACHE)
        write(cluster, topic_name, b"on both")
        eventually(lambda: log_of(cluster, 2, topic_name) == log_of(cluster, 3, topic_name))
        with RawClient(cluster[2].address) as client:
            os.kill(cluster[3].pid, signal.SIGSTOP)
            # The first answers the fetch that waits there; nobody asks for the second.
            assert produce(client, topic_name, a_batch(b"on its way"), acks=1).error_code == 0
            assert produce(client, topic_name, a_batch(b"on one"), acks=1).error_code == 0
        cluster[2].kill()
        os.kill(cluster[3].pid, signal.SIGCONT)
        write(cluster, topic_name, b"instead", acks=1)
        cluster[2].restart()

        eventually(lambda: in_sync(cluster, topic_name) == [2, 3], 20)
        assert read(cluster, topic_name) == [b"on both", b"on its way", b"instead"]
        eventually(lambda: log_of(cluster, 2, topic_name) == log_of(cluster, 3, topic_name))
        assert "replica shortened" in cluster[2].log_text()


def test_given_a_replica_that_stands_still_then_it_leaves_the_in_sync_set_and_comes_back_when_it_has_caught_up(
    tmp_path: Path, topic_name: str
) -> None:
    settings = {"broker.session.timeout.ms": 60_000, "replica.lag.time.max.ms": 500}
    with Cluster.start(tmp_path, brokers=3, **settings) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL)
        write(cluster, topic_name, b"first")
        os.kill(cluster[3].pid, signal.SIGSTOP)

        write(cluster, topic_name, b"second")  # waits for it, until it is no longer in sync
        assert in_sync(cluster, topic_name) == [1, 2]
        os.kill(cluster[3].pid, signal.SIGCONT)

        eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 20)
        eventually(lambda: log_of(cluster, 3, topic_name) == log_of(cluster, 1, topic_name))


def test_given_a_replica_that_stands_still_past_its_session_then_it_comes_back_though_nothing_was_written(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL)
    write(cluster, topic_name, b"before")

    os.kill(cluster[3].pid, signal.SIGSTOP)
    eventually(lambda: in_sync(cluster, topic_name) == [1, 2], 20)
    os.kill(cluster[3].pid, signal.SIGCONT)

    eventually(lambda: in_sync(cluster, topic_name) == [1, 2, 3], 20)
    assert "session lost, registered again" in cluster[3].log_text()


def test_given_too_few_replicas_when_produced_with_acks_all_then_refused_and_nothing_is_appended(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=ALL)
        write(cluster, topic_name, b"kept")
        for broker_id in (2, 3):
            cluster[broker_id].kill()

        eventually(lambda: in_sync(cluster, topic_name) == [1], 20)
        refused = produce(client, topic_name, a_batch(b"too early"))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert values_of(fetch(client, topic_name)) == [b"kept"]
        cluster[2].restart()

        write(cluster, topic_name, b"in time")
        assert read(cluster, topic_name) == [b"kept", b"in time"]


def test_given_a_leader_that_is_told_to_stop_then_another_leads_before_it_is_gone(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3, **{"broker.session.timeout.ms": 60_000}) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL)
        write(cluster, topic_name, b"before")

        cluster[1].stop()

        write(cluster, topic_name, b"after")
        assert read(cluster, topic_name) == [b"before", b"after"]
        assert in_sync(cluster, topic_name) == [2, 3]


def test_given_a_producer_that_never_stops_when_the_leader_is_told_to_stop_then_no_record_fails_or_comes_twice(
    tmp_path: Path, topic_name: str
) -> None:
    """What was under way is neither lost nor taken for lost, and nobody waits for a session to end."""
    with Cluster.start(tmp_path, brokers=3, **{"broker.session.timeout.ms": 60_000}) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL)
        writer = Writer(cluster, topic_name, **{"message.timeout.ms": 20_000, "linger.ms": 0})

        def keep_busy() -> None:
            """So that some are always under way."""
            while len(writer.producer) < 100:
                writer.send()
            writer.producer.poll(0.001)

        with ThreadPoolExecutor(1) as pool:
            while not writer.acknowledged and not writer.failures:
                keep_busy()
            stopped = pool.submit(cluster[1].stop)
            while not stopped.done():
                keep_busy()
        stopped.result()

        writer.check()


def test_given_a_first_replica_that_came_back_when_it_is_elected_then_it_leads_again_at_once(
    tmp_path: Path, topic_name: str
) -> None:
    settings = {"auto.leader.rebalance.enable": "false"}
    with Cluster.start(tmp_path, brokers=2, **settings) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=(2, 1))
        write(cluster, topic_name, b"before")
        cluster[2].stop()
        write(cluster, topic_name, b"meanwhile")
        cluster[2].restart()
        eventually(lambda: in_sync(cluster, topic_name) == [1, 2], 20)
        assert leader_of(cluster, topic_name) == 1
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = TopicPartition(topic_name, 0)

        answer = admin.elect_leaders(ElectionType.PREFERRED, [wanted]).result(10)

        assert answer[wanted] is None
        eventually(lambda: leader_of(cluster, topic_name) == 2)
        write(cluster, topic_name, b"after")
        assert read(cluster, topic_name) == [b"before", b"meanwhile", b"after"]


def test_given_a_first_replica_that_came_back_when_asked_or_after_a_while_then_it_leads_again(
    tmp_path: Path, topic_name: str
) -> None:
    with Cluster.start(tmp_path, brokers=3, **{"leader.imbalance.check.interval.seconds": 1}) as cluster:
        with RawClient(cluster[1].address) as client:
            create_topic_on(client, topic_name, replicas=ALL)
        cluster[1].stop()
        eventually(lambda: leader_of(cluster, topic_name) == 2)
        cluster[1].restart()

        eventually(lambda: leader_of(cluster, topic_name) == 1, 20)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        wanted = TopicPartition(topic_name, 0)
        answer = admin.elect_leaders(ElectionType.PREFERRED, [wanted]).result(10)
        assert answer[wanted].code() == KafkaError.ELECTION_NOT_NEEDED


def test_given_a_follower_that_has_lost_its_session_when_nothing_is_written_then_it_comes_back_into_the_in_sync_set(
    cluster: Cluster, topic_name: str
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=(1, 3), **{"min.insync.replicas": 2})
    write(cluster, topic_name, b"first")
    os.kill(cluster[3].pid, signal.SIGSTOP)
    eventually(lambda: in_sync(cluster, topic_name) == [1], 20)

    os.kill(cluster[3].pid, signal.SIGCONT)

    # Nothing can be written before it is back, so nothing it would have to flush will bring it back.
    eventually(lambda: in_sync(cluster, topic_name) == [1, 3], 20)
    write(cluster, topic_name, b"second")
    assert read(cluster, topic_name) == [b"first", b"second"]


@pytest.mark.parametrize("acks", [0, 1])
def test_given_a_leader_that_stood_still_past_its_session_when_it_wakes_then_it_takes_nothing_that_waited_for_it(
    cluster: Cluster, topic_name: str, acks: int
) -> None:
    with RawClient(cluster[1].address) as client:
        create_topic_on(client, topic_name, replicas=(3, 2), **PAGE_CACHE)
    write(cluster, topic_name, b"first")
    with RawClient(cluster[3].address) as client:
        os.kill(cluster[3].pid, signal.SIGSTOP)
        request = produce_request(topic_name, {0: a_batch(b"too late")}, acks=acks)
        sent = client.send_request(request.API_KEY, PRODUCE_VERSION, request.encode(PRODUCE_VERSION))
        eventually(lambda: leader_of(cluster, topic_name) == 2, 20)

        os.kill(cluster[3].pid, signal.SIGCONT)

        # Nobody but this broker could tell by now that it leads no more, and it has not yet looked.
        if acks == 0:
            assert client.is_closed_by_broker()
        else:
            answer = client.receive_response(request.API_KEY, PRODUCE_VERSION, sent)
            ((row,),) = (each.partition_responses for each in ProduceResponse.decode(answer, PRODUCE_VERSION).responses)
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    eventually(lambda: in_sync(cluster, topic_name) == [2, 3], 20)
    assert read(cluster, topic_name) == [b"first"]


def test_given_a_partition_with_much_to_catch_up_on_then_others_do_not_wait_for_it(
    tmp_path: Path, topic_name: str
) -> None:
    much, little = f"{topic_name}-a", f"{topic_name}-b"
    settings = {"replica.fetch.response.max.bytes": 10_000}
    with Cluster.start(tmp_path, brokers=3, **settings) as cluster, RawClient(cluster[1].address) as client:
        for topic in (much, little):
            create_topic_on(client, topic, replicas=ALL, **PAGE_CACHE)
        write(cluster, much, b"first")
        cluster[3].kill()
        write(cluster, little, b"first")  # when it is known that broker 3 has gone
        for _ in range(1_500):
            assert produce(client, much, a_batch(b"." * 10_000), acks=1).error_code == 0
        cluster[3].restart()

        eventually(lambda: in_sync(cluster, little) == [1, 2, 3], 20)
        assert in_sync(cluster, much) == [1, 2]
        eventually(lambda: in_sync(cluster, much) == [1, 2, 3], 20)
