"""What a transaction promises when messages come late, others are at work, and the broker dies in the middle of an end.

Jepsen found such promises broken in brokers and clients: what is late must not touch what comes next, whoever has
nothing to do with a producer must not fence it, and a commit is never half.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from penstock.coordinators.transaction.records import TransactionRecord, TransactionStatus, encode
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.batch import Codec
from penstock.protocol.messages.records import FetchResponse, ProduceRequest, ProduceResponse
from penstock.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from tests.badinput.rows import not_for_kafka
from tests.badinput.test_groups import append_to_log, fetched, find_coordinator
from tests.testkit import Broker, BrokerProcess, RawClient, eventually
from tests.testkit.asking import FETCH_VERSION, create_usable_topic, fetch_request, produce_request
from tests.testkit.transacting import (
    END_VERSIONS,
    PRODUCE_VERSIONS,
    READ_COMMITTED,
    TV1,
    TV2,
    TransactionalProducer,
    a_producer,
    committed_values,
    fetch_committed,
    find_transaction_coordinator,
    init_producer_id,
    open_transactions_of,
    values_without_aborted,
    write_marker,
)

versions = pytest.mark.parametrize("version", [TV1, TV2], ids=["tv1", "tv2"])


@pytest.fixture
def client(broker: BrokerProcess, topic_name: str) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        create_usable_topic(client, topic_name, 2)
        find_transaction_coordinator(client, topic_name)
        eventually(lambda: init_producer_id(client, topic_name).error_code == 0, 20)
        yield client


def assert_is_committed_as_a_whole(
    producer: TransactionalProducer, topic: str, before: list[bytes], mine: bytes
) -> None:
    """Nothing has touched the transaction: it is open, and ends as its producer wants it to."""
    state = producer.state()
    assert (state.transaction_state, state.producer_epoch) == ("Ongoing", producer.producer_epoch)
    assert committed_values(producer.client, topic) == before
    producer.end(commit=True)
    assert committed_values(producer.client, topic) == [*before, mine]


# What comes late


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_given_an_end_that_was_long_under_way_when_the_next_transaction_is_open_then_it_is_fenced(
    client: RawClient, topic_name: str, commit: bool
) -> None:
    producer = a_producer(client, topic_name, TV2)
    producer.write(topic_name, b"first")
    late = producer.end_request(commit=commit)
    producer.end(commit=True)
    producer.write(topic_name, b"second")

    answer = client.exchange(late, END_VERSIONS[TV2], EndTxnResponse)

    assert ErrorCode(answer.error_code) == ErrorCode.PRODUCER_FENCED
    assert_is_committed_as_a_whole(producer, topic_name, [b"first"], b"second")


@versions
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_given_an_end_of_an_earlier_instance_when_its_successor_has_a_transaction_then_it_is_fenced(
    client: RawClient, topic_name: str, version: int, commit: bool
) -> None:
    """With version 1 an end of the same instance cannot be told from the next: only who comes anew is safe from it."""
    producer = a_producer(client, topic_name, version)
    producer.write(topic_name, b"lost")
    late = producer.end_request(commit=commit)
    producer.begin_anew()
    producer.write(topic_name, b"mine")

    answer = client.exchange(late, END_VERSIONS[version], EndTxnResponse)

    assert ErrorCode(answer.error_code) == ErrorCode.PRODUCER_FENCED
    assert_is_committed_as_a_whole(producer, topic_name, [], b"mine")


@versions
def test_given_a_batch_that_was_long_under_way_when_no_transaction_is_open_then_it_opens_none(
    client: RawClient, topic_name: str, version: int
) -> None:
    """Trap C9: nobody would ever end it, and readers of committed data would wait for ever."""
    producer = a_producer(client, topic_name, version)
    producer.write(topic_name, b"first")
    late = producer.batch(topic_name, b"late")
    producer.end(commit=False)

    answer = producer.send(topic_name, late)

    expected = ErrorCode.TRANSACTION_ABORTABLE if version == TV1 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert ErrorCode(answer.error_code) == expected
    assert open_transactions_of(client, topic_name) == set()
    assert is_stable(client, topic_name)


@versions
def test_given_a_batch_that_was_long_under_way_when_the_next_transaction_is_open_then_it_is_no_part_of_it(
    client: RawClient, topic_name: str, version: int
) -> None:
    """With version 1 a producer that lost track of a batch comes anew, as the Java client does."""
    producer = a_producer(client, topic_name, version)
    producer.write(topic_name, b"first")
    late = producer.batch(topic_name, b"late")
    producer.end(commit=False)
    if version == TV1:
        producer.begin_anew(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
    producer.write(topic_name, b"mine")

    answer = producer.send(topic_name, late)

    assert ErrorCode(answer.error_code) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert_is_committed_as_a_whole(producer, topic_name, [], b"mine")


@not_for_kafka  # which opens it at once: no transaction would ever end before
@versions
def test_given_a_batch_that_has_to_be_opened_when_its_transaction_ends_meanwhile_then_no_other_is_left_open(
    broker: BrokerProcess, topic_name: str, version: int
) -> None:
    refused = ErrorCode.TRANSACTION_ABORTABLE if version == TV1 else ErrorCode.INVALID_PRODUCER_EPOCH
    values = [os.urandom(400_000).hex().encode()] * 8
    with RawClient(broker.address) as client, RawClient(broker.address) as sender:
        create_usable_topic(client, topic_name, compression_type="uncompressed", max_message_bytes=16_000_000)
        find_transaction_coordinator(client, topic_name)
        outcomes: set[ErrorCode] = set()
        while refused not in outcomes:
            producer = a_producer(client, topic_name, version)
            producer.write(topic_name, b"first")
            slow = producer.batch(topic_name, *values, codec=Codec.GZIP)
            request = produce_request(topic_name, {0: slow}, transactional_id=topic_name)
            sent = sender.send_request(0, PRODUCE_VERSIONS[version], request.encode(PRODUCE_VERSIONS[version]))
            producer.end(commit=False)
            body = sender.receive_response(ProduceRequest.API_KEY, PRODUCE_VERSIONS[version], sent)
            ((row,),) = (
                each.partition_responses for each in ProduceResponse.decode(body, PRODUCE_VERSIONS[version]).responses
            )
            outcomes.add(ErrorCode(row.error_code))

            assert open_transactions_of(client, topic_name) == set(), ErrorCode(row.error_code)
            assert is_stable(client, topic_name)
    assert outcomes <= {refused, ErrorCode.NONE}


def is_stable(client: RawClient, topic: str, partition: int = 0) -> bool:
    data = fetch_committed(client, topic, partition=partition, min_bytes=0)
    return bool(data.last_stable_offset == data.high_watermark)


# Who has nothing to do with it


def test_given_many_transactional_ids_when_some_are_fenced_aborted_or_time_out_then_the_others_do_not_notice(
    client: RawClient, topic_name: str
) -> None:
    # Among them names that begin alike and names that Java's hash takes for equal.
    suffixes = ["", "-", "-1", "-10", "-11", "Aa", "BB", "AaAa", "BBBB", "AaBB", "\0", "ü"]
    producers = [a_producer(client, topic_name + each, TV1 if at % 2 else TV2) for at, each in enumerate(suffixes)]
    for producer in producers:
        producer.write(topic_name, producer.transactional_id.encode())
    spared, others = producers[::3], [each for at, each in enumerate(producers) if at % 3]

    for at, other in enumerate(others):
        if at % 2:
            other.begin_anew()
        else:
            other.end(commit=False)
    for producer in spared:
        assert producer.state().transaction_state == "Ongoing"
        producer.write(topic_name, b"more")
        producer.end(commit=True)

    assert len({producer.producer_id for producer in producers}) == len(producers)
    expected = [producer.transactional_id.encode() for producer in spared] + [b"more"] * len(spared)
    assert sorted(filter(None, committed_values(client, topic_name))) == sorted(expected)


def test_given_a_transaction_that_nobody_ends_when_its_time_is_up_then_it_is_aborted_and_its_producer_fenced(
    client: RawClient, topic_name: str
) -> None:
    producer = a_producer(client, topic_name, transaction_timeout_ms=2_000)
    producer.write(topic_name, b"left behind")
    other = a_producer(client, f"{topic_name}-other")
    other.write(topic_name, b"behind it")
    other.end(commit=True)

    assert committed_values(client, topic_name) == []
    eventually(lambda: is_stable(client, topic_name), 25)
    codes = [producer.produce(topic_name, b"late").error_code, producer.end_once(commit=True)]

    assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE]
    assert committed_values(client, topic_name) == [b"behind it"]


# Readers


@versions
def test_given_readers_while_transactions_end_then_none_sees_what_is_not_committed_or_half_of_it_in_a_partition(
    broker: BrokerProcess, client: RawClient, topic_name: str, version: int
) -> None:
    """Markers come to the partitions one after another: until then a partition shows nothing of the transaction."""
    topic, partitions, count = f"{topic_name}-many", 8, 24
    create_usable_topic(client, topic, partitions)
    commits_sent: set[bytes] = set()
    complaints: list[str] = []
    is_over = threading.Event()

    def read() -> None:
        with RawClient(broker.address) as reader:
            while not is_over.is_set():
                for partition in range(partitions):
                    values = committed_values(reader, topic, partition=partition)
                    # A commit that is sent may be carried out at any time; one that is not, must not.
                    early = set(values) - commits_sent
                    if early or any(values.count(each) != 2 for each in values):
                        complaints.append(f"partition {partition}: {early} among {values}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        producer = a_producer(client, topic_name, version)
        for number in range(count):
            value = b"%d" % number
            for partition in range(partitions):
                producer.write(topic, value, partition=partition)
                producer.write(topic, value, partition=partition)
            if number % 3:
                commits_sent.add(value)
            producer.end(commit=bool(number % 3))
    finally:
        is_over.set()
        for reader in readers:
            reader.join()

    assert not complaints, complaints[:3]
    assert all(
        len(committed_values(client, topic, partition=each)) == 2 * len(commits_sent) for each in range(partitions)
    )


# The broker dies

TOPIC, GROUP, PARTITIONS = "all-or-nothing", "all-or-nothing", 3
STATE_LOG, OFFSETS_LOG = "__transaction_state-0", "__consumer_offsets-0"
SETTINGS: dict[str, Any] = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}


def log_bytes(broker: Broker, directory: str) -> int:
    return sum(os.stat(path).st_size for path in (broker.data / directory).glob("*.log"))


def killed_when(broker: Broker, is_reached: Callable[[], bool]) -> None:
    """At that moment, and not a pause later; or after a second."""
    deadline = time.monotonic() + 1
    while not is_reached() and time.monotonic() < deadline:
        pass
    broker.kill()


@pytest.mark.timeout(180)
def test_given_an_end_when_the_broker_is_killed_at_any_moment_of_it_then_all_partitions_and_offsets_agree(
    tmp_path: Path,
) -> None:
    grown = [None, STATE_LOG, *(f"{TOPIC}-{each}" for each in range(PARTITIONS)), OFFSETS_LOG]
    with Broker.start(tmp_path / "data", **SETTINGS) as broker:
        with RawClient(broker.address) as client:
            create_usable_topic(client, TOPIC, PARTITIONS)
            find_coordinator(client, GROUP)
            find_transaction_coordinator(client, TOPIC)
            a_producer(client, TOPIC)
        for at, (directory, version) in enumerate(product(grown, (TV1, TV2))):
            is_commit = at % 4 != 3
            was_told = _end_and_kill(broker, version, at, directory, is_commit=is_commit)
            broker.restart()
            _check_outcome(broker, at, is_commit=is_commit, was_told=was_told)


def _end_and_kill(broker: Broker, version: int, number: int, directory: str | None, *, is_commit: bool) -> bool:
    """Kills the broker when the log has grown by the end of a transaction. Whether the producer heard of the end."""
    with RawClient(broker.address) as client:
        find_transaction_coordinator(client, TOPIC)
        producer = a_producer(client, TOPIC, version)
        for partition in range(PARTITIONS):
            producer.write(TOPIC, b"%d" % number, partition=partition)
        if version == TV1:
            assert producer.add_offsets(GROUP) == ErrorCode.NONE
        eventually(lambda: producer.commit_offset(GROUP, TOPIC, number) == ErrorCode.NONE)
        before = 0 if directory is None else log_bytes(broker, directory)
        request = producer.end_request(commit=is_commit)
        sent = client.send_request(EndTxnRequest.API_KEY, END_VERSIONS[version], request.encode(END_VERSIONS[version]))
        killed_when(broker, lambda: directory is None or log_bytes(broker, directory) > before)
        try:
            body = client.receive_response(EndTxnRequest.API_KEY, END_VERSIONS[version], sent)
        except ConnectionError:
            return False
        return bool(EndTxnResponse.decode(body, END_VERSIONS[version]).error_code == 0)


def _check_outcome(broker: Broker, number: int, *, is_commit: bool, was_told: bool) -> None:
    with RawClient(broker.address) as client:
        find_coordinator(client, GROUP)
        find_transaction_coordinator(client, TOPIC)
        a_producer(client, TOPIC)  # ends what is still open
        for partition in range(PARTITIONS):
            eventually(partial(is_stable, client, TOPIC, partition))
        value = b"%d" % number
        shown = {value in committed_values(client, TOPIC, partition=partition) for partition in range(PARTITIONS)}
        eventually(lambda: open_transactions_of(client, OFFSETS_LOG[:-2]) == set())
        shown.add(fetched(client, GROUP, topic=TOPIC) == number)

        assert len(shown) == 1, f"torn: {shown}"
        assert not (was_told and shown != {is_commit}), "told otherwise"
        assert is_commit or shown == {False}, "aborted, but there"


def test_given_transactions_that_a_restart_left_open_when_the_first_ends_then_who_waits_for_it_is_told_at_once(
    tmp_path: Path,
) -> None:
    with Broker.start(tmp_path / "data", **SETTINGS) as broker:
        with RawClient(broker.address) as client:
            create_usable_topic(client, TOPIC)
            find_transaction_coordinator(client, "first")
            first, second = a_producer(client, "first"), a_producer(client, "second")
            first.write(TOPIC, b"x")
            second.write(TOPIC, b"y")
        broker.restart()
        with RawClient(broker.address) as reader, RawClient(broker.address) as client:
            find_transaction_coordinator(client, "first")
            first.client = client
            # For longer than this client has patience: only the end of a transaction can be what it hears of.
            waiting = fetch_request({TOPIC: [(0, 0)]}, max_wait_ms=60_000, min_bytes=60, isolation_level=READ_COMMITTED)
            asked = reader.send_request(waiting.API_KEY, FETCH_VERSION, waiting.encode(FETCH_VERSION))

            first.end(commit=True)

            told = FetchResponse.decode(reader.receive_response(waiting.API_KEY, FETCH_VERSION, asked), FETCH_VERSION)
            ((row,),) = (each.partitions for each in told.responses)
            assert values_without_aborted(row) == [b"x"]


def test_given_a_prepared_commit_when_a_partition_cannot_be_opened_then_it_waits_for_it_and_gets_its_marker_later(
    tmp_path: Path,
) -> None:
    """Taken for deleted, it would have its records and never their outcome."""
    with Broker.start(tmp_path / "data", **SETTINGS) as broker:
        with RawClient(broker.address) as client:
            create_usable_topic(client, "broken")
            create_usable_topic(client, "whole")
            find_transaction_coordinator(client, "waits")
            producer = a_producer(client, "waits")
            producer.write("broken", b"x")
            producer.write("whole", b"x")
        broker.stop()
        prepared = TransactionRecord(
            "waits",
            producer.producer_id,
            producer.producer_epoch + 1,
            60_000,
            TransactionStatus.PREPARE_COMMIT,
            frozenset({TopicPartition("broken", 0), TopicPartition("whole", 0)}),
            time.time_ns() // 1_000_000,
            start_ms=time.time_ns() // 1_000_000,
            client_transaction_version=2,
        )
        append_to_log(broker.data / STATE_LOG, [encode(prepared)])
        segment = broker.data / "broken-0" / f"{0:020}.log"
        segment.rename(tmp_path / "mended")
        segment.mkdir()

        broker.restart()
        with RawClient(broker.address) as client:
            producer.client = client
            find_transaction_coordinator(client, "waits")
            eventually(lambda: committed_values(client, "whole") == [b"x"])
            states = {producer.state().transaction_state for _ in range(50)}
            assert init_producer_id(client, "waits").error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        broker.kill()
        segment.rmdir()
        (tmp_path / "mended").rename(segment)
        broker.restart()
        with RawClient(broker.address) as client:
            producer.client = client
            find_transaction_coordinator(client, "waits")
            producer.until_at_rest()

            assert states == {"PrepareCommit"}
            assert committed_values(client, "broken") == [b"x"]
            assert committed_values(client, "whole") == [b"x"]


def test_given_a_coordinator_with_a_later_epoch_at_a_partition_when_ended_then_it_is_not_said_to_be_complete(
    client: RawClient, broker: BrokerProcess, topic_name: str
) -> None:
    producer = a_producer(client, topic_name, TV1)
    producer.write(topic_name, b"mine")
    later = partial(write_marker, client, topic_name, producer.producer_id, producer.producer_epoch, commit=True)
    assert later(coordinator_epoch=2**31 - 1) is ErrorCode.NONE
    producer.write(topic_name, b"more")

    assert producer.end_once(commit=True) is ErrorCode.NONE

    if isinstance(broker, Broker):
        eventually(lambda: "markers given up" in broker.log_text(), 20)
    assert producer.state().transaction_state == "PrepareCommit"
    assert open_transactions_of(client, topic_name) == {producer.producer_id}
