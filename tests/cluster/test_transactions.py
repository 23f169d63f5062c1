"""Transactions over three brokers: their coordinator, the leaders and the group's coordinator differ, and die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.core.ids import BrokerId
from penstock.net.channel import Channel, open_channel
from penstock.net.cluster_key import Credentials
from penstock.protocol.messages.records import ProduceResponse
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.cluster.finding import (
    GROUPS,
    TRANSACTIONS,
    State,
    a_cluster,
    a_name,
    clients_of,
    coordinator_of,
    create_topic_over,
    leader_of,
    state_of_name,
    stored,
)
from tests.compat.clients.confluent_transactions import ConfluentTransactions
from tests.compat.clients.java_transactions import JavaTransactions
from tests.compat.clients.transactional import TransactionalClient
from tests.testkit import Cluster, RawClient, eventually
from tests.testkit.asking import fetch, produce_request
from tests.testkit.java import JavaDriver, require_jars
from tests.testkit.transacting import (
    NOT_YET,
    TV1,
    TV2,
    TransactionalProducer,
    committed_values,
    open_transactions_of,
    producers_of,
    write_marker,
)

# On each broker, in turn, the leader of one partition.
OVER_ALL = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
TWO_REPLICAS: dict[str, Any] = {
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
}
LONG_SESSION: dict[str, Any] = {"broker.session.timeout.ms": 60_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with a_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def java_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    require_jars()
    with JavaDriver(tmp_path_factory.mktemp("java") / "driver.log") as driver:
        yield driver


@pytest.fixture(params=[ConfluentTransactions.name, JavaTransactions.name])
def transactions(request: pytest.FixtureRequest, cluster: Cluster) -> TransactionalClient:
    if request.param == JavaTransactions.name:
        return JavaTransactions(cluster.bootstrap, request.getfixturevalue("java_driver"))
    return ConfluentTransactions(cluster.bootstrap)


def led_by(*leaders: int) -> Callable[[State], bool]:
    return lambda state: state.leader_id in leaders


# All or nothing, of real clients


@pytest.mark.parametrize("coordinator", [1, 2, 3])
def test_given_partitions_on_three_brokers_when_transactions_end_one_after_another_then_all_or_nothing_is_read(
    cluster: Cluster, transactions: TransactionalClient, topic_name: str, coordinator: int
) -> None:
    create_topic_over(cluster, topic_name, *OVER_ALL)
    transactional_id = a_name(cluster, TRANSACTIONS, topic_name, led_by(coordinator))

    with transactions.producer(transactional_id) as producer:
        for number in range(6):
            producer.begin()
            for partition in range(3):
                producer.send(topic_name, [b"%d" % number], partition=partition)
            if number % 3 == 2:
                producer.abort()
            else:
                producer.commit()
        kept = [b"0", b"1", b"3", b"4"]

        def is_read() -> bool:
            return transactions.read(topic_name, partitions=3) == [kept] * 3

        eventually(is_read, 20)
        with clients_of(cluster) as clients:
            for partition in range(3):
                assert not open_transactions_of(clients[partition + 1], topic_name, partition)


def test_given_a_group_that_another_broker_coordinates_when_copied_then_records_and_positions_go_together(
    cluster: Cluster, transactions: TransactionalClient, topic_name: str
) -> None:
    target = f"copy-{topic_name}"[:200]
    create_topic_over(cluster, topic_name, *OVER_ALL)
    create_topic_over(cluster, target, *OVER_ALL)
    transactional_id = a_name(cluster, TRANSACTIONS, topic_name, led_by(1))
    group = a_name(cluster, GROUPS, topic_name, led_by(2, 3))
    with transactions.producer(f"source-{topic_name}") as producer:
        producer.begin()
        for partition in range(3):
            producer.send(topic_name, [b"a", b"b"], partition=partition)
        producer.commit()

    with transactions.producer(transactional_id) as producer:
        for commit in (False, True):
            producer.begin()
            producer.copy(topic_name, target, group, count=6)  # the aborted one leaves everything to be copied again
            if commit:
                producer.commit()
            else:
                producer.abort()

    eventually(lambda: transactions.read(target, partitions=3) == [[b"a", b"b"]] * 3, 20)
    with clients_of(cluster) as clients:
        assert open_transactions_of(clients[1], target, 0) == set()


# Verification


@pytest.mark.parametrize("version", [TV1, TV2])
def test_given_a_coordinator_elsewhere_when_a_batch_comes_after_its_transaction_then_it_is_refused(
    cluster: Cluster, topic_name: str, version: int
) -> None:
    create_topic_over(cluster, topic_name, (1,))
    name = a_name(cluster, TRANSACTIONS, topic_name, led_by(2))
    with clients_of(cluster) as clients:
        producer = TransactionalProducer(clients[2], name, version)
        producer.begin_anew()
        if version == TV1:
            assert producer.add(topic_name) is ErrorCode.NONE
        epoch = producer.producer_epoch
        late = producer.batch(topic_name, b"late")
        producer.end(commit=False)

        producer.client = clients[1]
        codes = {producer.send(topic_name, late).error_code for _ in range(3)}

        expected = ErrorCode.TRANSACTION_ABORTABLE if version == TV1 else ErrorCode.INVALID_PRODUCER_EPOCH
        assert (codes, producer.producer_epoch - epoch) == ({expected}, version - TV1)
        assert not open_transactions_of(clients[1], topic_name)


def test_given_a_coordinator_elsewhere_when_the_last_marker_comes_while_it_is_asked_then_the_next_transaction_begins(
    cluster: Cluster, topic_name: str
) -> None:
    """Producers of version 2 do not wait for the markers of their last transaction."""
    create_topic_over(cluster, topic_name, (1,))
    name = a_name(cluster, TRANSACTIONS, topic_name, led_by(2))
    with clients_of(cluster) as clients, RawClient(cluster[1].address) as other:
        producer = TransactionalProducer(clients[2], name)
        producer.begin_anew()
        request = produce_request(topic_name, {0: producer.batch(topic_name, b"x")}, transactional_id=name)
        os.kill(cluster[2].pid, signal.SIGSTOP)
        asked = other.send_request(request.API_KEY, 12, request.encode(12))
        # On the same connection, so that it is behind the batch; and seen on another, as its answer is behind, too.
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[WritableTxnMarkerTopic(name=topic_name, partition_indexes=[0])],
        )
        markers = WriteTxnMarkersRequest(markers=[marker])
        other.send_request(markers.API_KEY, 2, markers.encode(2))
        eventually(lambda: fetch(clients[1], topic_name, min_bytes=0).high_watermark == 1)
        os.kill(cluster[2].pid, signal.SIGCONT)

        answer = ProduceResponse.decode(other.receive_response(request.API_KEY, 12, asked), 12)

        ((row,),) = (each.partition_responses for each in answer.responses)
        assert ErrorCode(row.error_code) is ErrorCode.NONE
        assert open_transactions_of(clients[1], topic_name) == {producer.producer_id}
        producer.end(commit=True)
        assert committed_values(clients[1], topic_name) == [b"x"]


def test_given_a_coordinator_out_of_reach_when_written_to_then_producers_are_told_to_come_again(
    tmp_path: Path, topic_name: str
) -> None:
    with a_cluster(tmp_path, **LONG_SESSION) as cluster:
        create_topic_over(cluster, topic_name, (1,))
        name = a_name(cluster, TRANSACTIONS, topic_name, led_by(2))
        with clients_of(cluster) as clients:
            producer = TransactionalProducer(clients[2], name, TV1)
            producer.begin_anew()
            assert producer.add(topic_name) is ErrorCode.NONE
            producer.client = clients[1]
            cluster[2].kill()

            answer = producer.produce(topic_name, b"x")

            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        for broker in cluster.running:
            broker.kill()  # to hand over they would wait for the one that is gone


def test_given_a_coordinator_that_was_out_of_reach_for_the_first_batch_then_the_next_is_not_taken_for_the_first(
    tmp_path: Path, topic_name: str
) -> None:
    """It would be committed without the one before it, which librdkafka then takes for delivered."""
    with a_cluster(tmp_path, **LONG_SESSION) as cluster:
        create_topic_over(cluster, topic_name, (1,))
        with clients_of(cluster) as clients:
            names = [a_name(cluster, TRANSACTIONS, f"{each}-{topic_name}", led_by(2)) for each in ("one", "other")]
            producer, other = (TransactionalProducer(clients[2], name, TV1) for name in names)
            for each in (producer, other):
                each.begin_anew()
                assert each.add(topic_name) is ErrorCode.NONE
                each.client = clients[1]
            first, second = (producer.batch(topic_name, value) for value in (b"first", b"second"))
            os.kill(cluster[2].pid, signal.SIGSTOP)
            assert producer.send(topic_name, first).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            os.kill(cluster[2].pid, signal.SIGCONT)
            batch = other.batch(topic_name, b"the coordinator is back")
            eventually(lambda: other.send(topic_name, batch).error_code == 0, 20)

            assert producer.send(topic_name, second).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert producer.send(topic_name, first).error_code == 0
            assert producer.send(topic_name, second).error_code == 0


# Coordinators and leaders that die


@pytest.mark.parametrize("commit", [True, False])
def test_given_a_coordinator_that_dies_between_the_end_and_the_markers_then_the_next_one_ends_it_the_same_way(
    tmp_path: Path, topic_name: str, commit: bool
) -> None:
    """A broker that stands still keeps one marker from being written; it holds no part of the coordinator's log."""
    with a_cluster(tmp_path, of_the_third=LONG_SESSION, **TWO_REPLICAS) as cluster:
        create_topic_over(cluster, topic_name, (2, 1), (3, 1))
        name = a_name(cluster, TRANSACTIONS, topic_name, lambda state: sorted(state.replica_nodes) == [1, 2])
        before = coordinator_of(cluster, TRANSACTIONS, name)
        after = 3 - before
        with clients_of(cluster) as clients:
            producer = TransactionalProducer(clients[before], name)
            producer.begin_anew()
            for partition, leader in enumerate((2, 3)):
                producer.client = clients[leader]
                producer.write(topic_name, b"x", partition=partition)
            producer.client = clients[before]
            os.kill(cluster[3].pid, signal.SIGSTOP)
            eventually(lambda: producer.end_once(commit=commit) is ErrorCode.NONE)
            cluster[before].kill()
            producer.client = clients[after]
            eventually(lambda: producer.state().error_code not in NOT_YET, 20)
            prepared = producer.state().transaction_state
            os.kill(cluster[3].pid, signal.SIGCONT)

            producer.until_at_rest()

            assert prepared == ("PrepareCommit" if commit else "PrepareAbort")
            assert producer.state().transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
            for partition in range(2):
                leader = leader_of(cluster, topic_name, partition)
                client = clients[leader]
                assert committed_values(client, topic_name, partition=partition) == [b"x"] * commit
                # The markers carry the epoch of whoever wrote them, and those of the one before are refused.
                seen = producers_of(client, topic_name, partition)[producer.producer_id]
                assert seen.coordinator_epoch == state_of_name(cluster, TRANSACTIONS, name).leader_epoch
                zombie = write_marker(
                    client,
                    topic_name,
                    producer.producer_id,
                    producer.producer_epoch,
                    commit=not commit,
                    partition=partition,
                    coordinator_epoch=seen.coordinator_epoch - 1,
                )
                assert zombie is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_given_a_leader_that_dies_while_markers_are_written_then_the_next_one_has_its_marker(
    tmp_path: Path, topic_name: str
) -> None:
    with a_cluster(tmp_path, **TWO_REPLICAS) as cluster:
        create_topic_over(cluster, topic_name, (3, 1, 2), (1, 2, 3))
        name = a_name(cluster, TRANSACTIONS, topic_name, lambda state: sorted(state.replica_nodes) == [1, 2])
        with clients_of(cluster) as clients:
            producer = TransactionalProducer(clients[coordinator_of(cluster, TRANSACTIONS, name)], name, TV1)
            producer.begin_anew()
            assert producer.add(topic_name, 0, 1) is ErrorCode.NONE
            for partition, leader in enumerate((3, 1)):
                answer = with_client(producer, clients[leader]).produce(topic_name, b"x", partition=partition)
                assert answer.error_code == 0
            os.kill(cluster[3].pid, signal.SIGSTOP)

            assert producer.end_once(commit=True) is ErrorCode.NONE
            assert producer.state().transaction_state == "PrepareCommit"
            cluster[3].kill()
            producer.until_at_rest()

            for partition in range(2):
                client = clients[leader_of(cluster, topic_name, partition)]
                assert committed_values(client, topic_name, partition=partition) == [b"x"]


def with_client(producer: TransactionalProducer, client: RawClient) -> TransactionalProducer:
    """The same producer, for what it says to another broker. Sequence numbers are shared."""
    return TransactionalProducer(
        client,
        producer.transactional_id,
        producer.version,
        producer.producer_id,
        producer.producer_epoch,
        producer.sequences,
    )


# Markers that come late


async def test_given_a_connection_that_its_broker_replaced_when_a_marker_comes_there_then_it_is_refused(
    cluster: Cluster, topic_name: str
) -> None:
    create_topic_over(cluster, topic_name, (1,))
    earlier, later = [await a_channel_to(cluster, 1) for _ in range(2)]

    codes = [code for channel in (earlier, later, earlier, later) for code in await marked(channel, topic_name)]

    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
    for channel in (earlier, later):
        channel.close("done")


async def test_given_a_commit_that_a_replica_holds_up_when_brokers_ask_then_it_holds_up_nothing_else(
    tmp_path: Path, topic_name: str
) -> None:
    with a_cluster(tmp_path, of_the_third=LONG_SESSION) as cluster:
        create_topic_over(cluster, topic_name, (1, 3), (1, 2))
        name = a_name(cluster, TRANSACTIONS, topic_name, led_by(1))
        with clients_of(cluster) as clients:
            producer = TransactionalProducer(clients[1], name)
            producer.begin_anew()
        channel = await a_channel_to(cluster, 1)
        os.kill(cluster[3].pid, signal.SIGSTOP)

        codes = await marked(channel, topic_name, 0, 1), await added(channel, producer, topic_name)
        os.kill(cluster[3].pid, signal.SIGCONT)
        channel.close("done")

        assert codes == ([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE], ErrorCode.REQUEST_TIMED_OUT)


async def a_channel_to(cluster: Cluster, broker_id: int) -> Channel:
    """As another broker has it."""
    internal = stored(cluster, f"brokers/{broker_id}")["internal"]
    credentials = Credentials(BrokerId(2_000), stored(cluster, "cluster-key")["key"])
    return await open_channel((internal["host"], internal["port"]), credentials)


async def marked(channel: Channel, topic: str, *partitions: int) -> list[ErrorCode]:
    topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions) or [0])]
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=5_000_000, topics=topics)])
    body = await channel.request(request, 2, timeout_ms=10_000)
    (answered,) = WriteTxnMarkersResponse.decode(body, 2).markers[0].topics
    return [ErrorCode(row.error_code) for row in answered.partitions]


async def added(channel: Channel, producer: TransactionalProducer, topic: str) -> ErrorCode:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    body = await channel.request(AddPartitionsToTxnRequest(transactions=[transaction]), 5, timeout_ms=10_000)
    (result,) = AddPartitionsToTxnResponse.decode(body, 5).results_by_transaction
    return ErrorCode(result.topic_results[0].results_by_partition[0].partition_error_code)
