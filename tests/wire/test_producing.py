"""The producer with a real broker: what it writes, what it keeps in order, what it says when it cannot.

`PENSTOCK_TEST_AGAINST=kafka pytest tests/wire/test_producing.py` runs them against Apache Kafka itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.protocol.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from penstock.wire.errors import NotWritten, RowTooLarge, TimedOut, TopicRecreated, UnknownTopic
from penstock.wire.offsets import latest
from tests.scenarios.test_lost_answers import LosingProxy
from tests.testkit import Broker, BrokerProcess, RawClient, broker_under_test, eventually, lasting_port
from tests.testkit.asking import create_usable_topic, offset_at
from tests.wire.producing import a_producer, numbered, rows, values_in
from tests.wire.reading import COMMITTED, a_client

SMALL_BATCHES: dict[str, Any] = {"batch_size": 400}
LATEST = -1


@pytest.fixture
def topic(broker: BrokerProcess, topic_name: str) -> str:
    create(broker, topic_name, partitions=2)
    return topic_name


def create(broker: BrokerProcess, topic: str, partitions: int = 1) -> None:
    with RawClient(broker.address) as client:
        create_usable_topic(client, topic, partitions=partitions)


# What is written


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_given_any_codec_when_rows_are_written_in_many_batches_then_they_are_there_in_order(
    broker: BrokerProcess, topic: str, codec: str
) -> None:
    wanted = numbered(0, 1_000)
    with (
        a_producer(broker.bootstrap, compression_type=codec, **SMALL_BATCHES) as producer,
        a_client(broker.bootstrap) as cluster,
    ):
        producer.put(topic, 2, rows(*wanted[:500]))
        producer.put(topic, 2, rows(*wanted[500:]))
        producer.flush()

        assert values_in(cluster, topic) == wanted


def test_given_rows_that_nobody_waits_for_when_they_are_put_then_they_are_sent_without_a_flush(
    broker: BrokerProcess, topic: str
) -> None:
    with a_producer(broker.bootstrap) as producer, a_client(broker.bootstrap) as cluster:
        producer.put(topic, 2, rows(b"1"))

        eventually(lambda: values_in(cluster, topic) == [b"1"])


def test_given_many_partitions_when_rows_are_written_then_each_has_its_own(
    broker: BrokerProcess, topic_name: str
) -> None:
    create(broker, topic_name, partitions=40)
    with a_producer(broker.bootstrap, "many", buffer_memory=20_000) as producer, a_client(broker.bootstrap) as cluster:
        producer.fence()
        for number in range(40):
            producer.put(topic_name, 40, rows(*numbered(0, 10, size=100), partition=number))
        producer.commit()

        for number in range(40):
            eventually(lambda number=number: values_in(cluster, topic_name, number) == numbered(0, 10, size=100))  # type: ignore[misc]


# Transactions


def test_given_transactions_one_after_the_other_when_some_are_aborted_then_only_committed_rows_are_read(
    broker: BrokerProcess, topic: str
) -> None:
    with a_client(broker.bootstrap) as cluster:
        with a_producer(broker.bootstrap, "in-turns", **SMALL_BATCHES) as producer:
            producer.fence()
            producer.put(topic, 2, rows(*numbered(0, 100)))
            producer.commit()
            producer.put(topic, 2, rows(*numbered(100, 200)))
            producer.commit()
            producer.put(topic, 2, rows(b"never"))
            producer.flush()
            producer.abort(10)
        with a_producer(broker.bootstrap, "in-turns") as producer:
            producer.fence()
            producer.put(topic, 2, rows(*numbered(200, 300)))
            producer.commit()

        eventually(lambda: values_in(cluster, topic) == numbered(0, 300))
        assert b"never" in values_in(cluster, topic, committed=False)


def test_given_a_producer_when_it_fences_itself_between_transactions_then_it_goes_on_with_a_new_epoch(
    broker: BrokerProcess, topic: str
) -> None:
    with a_producer(broker.bootstrap, "anew", **SMALL_BATCHES) as producer, a_client(broker.bootstrap) as cluster:
        for first in range(0, 300, 100):
            producer.fence()
            producer.put(topic, 2, rows(*numbered(first, first + 100)))
            producer.commit()

        eventually(lambda: values_in(cluster, topic) == numbered(0, 300))


def test_given_nothing_to_write_when_a_transaction_is_ended_then_nobody_is_asked(broker: BrokerProcess) -> None:
    with a_producer(broker.bootstrap, "nothing") as producer:
        producer.fence()

        producer.commit()
        producer.abort(10)


def test_given_a_producer_that_was_fenced_when_it_goes_on_then_it_is_refused_and_nothing_of_it_is_read(
    broker: BrokerProcess, topic: str
) -> None:
    with (
        a_client(broker.bootstrap) as cluster,
        a_producer(broker.bootstrap, "zombie") as zombie,
        a_producer(broker.bootstrap, "zombie") as successor,
    ):
        zombie.fence()
        zombie.put(topic, 2, rows(b"dead"))
        zombie.flush()
        successor.fence()
        successor.put(topic, 2, rows(b"alive"))
        successor.commit()

        with pytest.raises(NotWritten) as refused:
            zombie.put(topic, 2, rows(b"dead again", partition=1))
        with pytest.raises(NotWritten):
            zombie.abort(10)

        assert refused.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        eventually(lambda: values_in(cluster, topic) == [b"alive"])
        assert values_in(cluster, topic, 1) == []


def test_given_a_producer_that_slept_between_two_transactions_when_it_fences_again_then_it_is_refused_not_its_successor(
    broker: BrokerProcess, topic: str
) -> None:
    with (
        a_client(broker.bootstrap) as cluster,
        a_producer(broker.bootstrap, "sleeper") as sleeper,
        a_producer(broker.bootstrap, "sleeper") as successor,
    ):
        sleeper.fence()
        sleeper.put(topic, 2, rows(b"1"))
        sleeper.commit()
        successor.fence()
        successor.put(topic, 2, rows(b"2"))
        successor.commit()

        with pytest.raises(NotWritten, match="fencing earlier producers of sleeper") as refused:
            sleeper.fence()
        successor.put(topic, 2, rows(b"3"))
        successor.commit()

        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        eventually(lambda: values_in(cluster, topic) == [b"1", b"2", b"3"])


def test_given_a_connection_that_is_closed_when_its_transaction_is_aborted_then_it_is(
    broker: BrokerProcess, topic: str
) -> None:
    with a_client(broker.bootstrap) as cluster, a_producer(broker.bootstrap, "cut off") as producer:
        producer.fence()
        producer.put(topic, 2, rows(b"never"))
        eventually(lambda: values_in(cluster, topic, committed=False) == [b"never"])
        (line,) = producer._lines.values()
        assert line.under_way
        line.connection.close()

        producer.abort(10)

        where = TopicPartition(topic, 0)
        eventually(lambda: latest(cluster, [where], COMMITTED)[where] == 2)  # with the end of the transaction
        assert values_in(cluster, topic) == []


# Brokers that go and come back, and answers that do not


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("transactional_id", [None, "restarted"])
def test_given_a_broker_that_restarts_while_batches_are_under_way_when_it_is_back_then_all_are_there_once_in_order(
    tmp_path: Path, topic_name: str, how: str, transactional_id: str | None
) -> None:
    with broker_under_test().start(tmp_path / "data", port=lasting_port()) as broker:
        create(broker, topic_name)
        with a_producer(broker.bootstrap, transactional_id, **SMALL_BATCHES) as producer:
            if transactional_id is not None:
                producer.fence()
            producer.put(topic_name, 1, rows(*numbered(0, 500)))
            getattr(broker, how)()
            broker.restart()
            producer.put(topic_name, 1, rows(*numbered(500, 1_000)))
            producer.flush()
            if transactional_id is not None:
                producer.commit()

            with a_client(broker.bootstrap) as cluster:
                eventually(lambda: values_in(cluster, topic_name) == numbered(0, 1_000))


@pytest.fixture
def proxy() -> Iterator[LosingProxy]:
    with LosingProxy() as proxy:
        yield proxy


@pytest.fixture
def silent(proxy: LosingProxy, tmp_path: Path, topic_name: str) -> Iterator[Broker]:
    """A broker whose answers may get lost."""
    advertised = ["--set", f"advertised.listeners=PLAINTEXT://{proxy.bootstrap}"]
    with Broker.start(tmp_path / "data", arguments=advertised) as broker:
        proxy.forward_to(broker.address)
        create(broker, topic_name)
        yield broker


@pytest.mark.parametrize("transactional_id", [None, "unheard"])
def test_given_batches_whose_answers_are_lost_when_they_are_sent_again_then_they_are_there_once_and_in_order(
    proxy: LosingProxy, silent: Broker, topic_name: str, transactional_id: str | None
) -> None:
    with (
        a_producer(proxy.bootstrap, transactional_id, **SMALL_BATCHES) as producer,
        RawClient(silent.address) as direct,
    ):
        if transactional_id is not None:
            producer.fence()
        producer.put(topic_name, 1, rows(b"heard of"))
        producer.flush()
        proxy.is_losing = True
        producer.put(topic_name, 1, rows(*numbered(0, 200)))
        # All that may be under way is in the log, and nobody knows.
        eventually(lambda: offset_of(direct, topic_name) > 1 + 5 * 10)
        proxy.cut()
        producer.flush()
        if transactional_id is not None:
            producer.commit()

        with a_client(proxy.bootstrap) as cluster:
            eventually(lambda: values_in(cluster, topic_name) == [b"heard of", *numbered(0, 200)])


def offset_of(direct: RawClient, topic: str) -> int:
    return offset_at(direct, topic, LATEST).offset


def test_given_a_commit_whose_answer_is_lost_when_it_is_asked_for_again_then_it_is_committed(
    proxy: LosingProxy, silent: Broker, topic_name: str
) -> None:
    with (
        a_producer(proxy.bootstrap, "twice", {"request_timeout_ms": 2_000}) as producer,
        ThreadPoolExecutor(1) as pool,
        RawClient(silent.address) as direct,
    ):
        producer.fence()
        producer.put(topic_name, 1, rows(b"1"))
        producer.flush()
        proxy.is_losing = True
        committing = pool.submit(producer.commit)
        eventually(lambda: offset_of(direct, topic_name) == 2)  # the marker
        proxy.cut()
        committing.result()

        with a_client(proxy.bootstrap) as cluster:
            assert values_in(cluster, topic_name) == [b"1"]


def test_given_a_fence_whose_answer_is_lost_when_it_is_asked_for_again_then_the_producer_goes_on(
    proxy: LosingProxy, silent: Broker, topic_name: str
) -> None:
    with (
        a_producer(proxy.bootstrap, "bumped", {"request_timeout_ms": 2_000}) as producer,
        ThreadPoolExecutor(1) as pool,
        RawClient(silent.address) as direct,
    ):
        producer.fence()
        producer.put(topic_name, 1, rows(b"1"))
        producer.commit()
        eventually(lambda: offset_of(direct, topic_name) == 2)  # the marker
        proxy.is_losing = True
        fencing = pool.submit(producer.fence)
        eventually(lambda: epoch_of(direct, "bumped") == 1)
        proxy.cut()
        fencing.result()
        producer.put(topic_name, 1, rows(b"2"))
        producer.commit()

        assert epoch_of(direct, "bumped") == 1
        with a_client(proxy.bootstrap) as cluster:
            eventually(lambda: values_in(cluster, topic_name) == [b"1", b"2"])


def epoch_of(direct: RawClient, transactional_id: str) -> int:
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (state,) = direct.exchange(request, 0, DescribeTransactionsResponse).transaction_states
    return state.producer_epoch


def test_given_a_broker_that_never_answers_when_rows_are_put_then_no_more_than_the_buffer_is_sent_before_it_gives_up(
    proxy: LosingProxy, silent: Broker, topic_name: str
) -> None:
    client = {"request_timeout_ms": 600, "socket_connection_setup_timeout_ms": 600}
    limits: dict[str, Any] = {"delivery_timeout_ms": 1_500, "buffer_memory": 20_000, "batch_size": 1_000}
    with a_producer(proxy.bootstrap, None, client, **limits) as producer, RawClient(silent.address) as direct:
        producer.put(topic_name, 1, rows(b"heard of"))
        producer.flush()
        proxy.is_losing = True

        with pytest.raises(TimedOut, match=r"nothing was acknowledged for 1\.5 s \(delivery\.timeout\.ms\): .*"):
            producer.put(topic_name, 1, rows(*numbered(0, 1_000, size=100)))

        assert 0 < offset_of(direct, topic_name) - 1 <= 20_000 // 106


# What cannot be written


def test_given_a_row_larger_than_the_buffer_when_it_is_put_then_size_and_limit_are_told(
    broker: BrokerProcess, topic: str
) -> None:
    with (
        a_producer(broker.bootstrap, max_request_size=1_000) as producer,
        pytest.raises(RowTooLarge, match=r"a record batch of 20\d\d bytes, and 1000 is the limit"),
    ):
        producer.put(topic, 2, rows(b"fits", bytes(2_000)))


def test_given_a_batch_that_the_topic_does_not_take_when_it_is_written_then_code_and_size_are_told(
    broker: BrokerProcess, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_usable_topic(client, topic_name, max_message_bytes=1_000)
    with a_producer(broker.bootstrap) as producer:
        producer.put(topic_name, 1, rows(bytes(2_000)))

        with pytest.raises(NotWritten, match=rf"writing 1 records, 20\d\d bytes, to {topic_name}-0") as refused:
            producer.flush()

    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def delete(broker: BrokerProcess, topic: str) -> None:
    with RawClient(broker.address) as client:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
        (answer,) = client.exchange(request, 5, DeleteTopicsResponse).responses
        assert answer.error_code == 0


def test_given_a_topic_that_is_deleted_while_it_is_written_to_then_that_is_said(
    broker: BrokerProcess, topic: str
) -> None:
    with a_producer(broker.bootstrap, delivery_timeout_ms=1_000) as producer:
        producer.put(topic, 2, rows(b"1"))
        producer.flush()
        delete(broker, topic)

        producer.put(topic, 2, rows(b"2"))
        with pytest.raises((UnknownTopic, TimedOut), match=topic):
            producer.flush()


def test_given_a_topic_that_is_made_anew_while_it_is_written_to_then_that_is_said(
    broker: BrokerProcess, topic: str
) -> None:
    with a_producer(broker.bootstrap) as producer:
        producer.put(topic, 2, rows(b"1"))
        producer.flush()
        delete(broker, topic)
        producer.put(topic, 2, rows(b"2"))
        eventually(lambda: is_created(broker, topic))

        with pytest.raises(TopicRecreated, match=topic):
            producer.flush()


@pytest.mark.parametrize("transactional_id", [None, "anew-between"])
def test_given_a_topic_that_is_made_anew_between_two_batches_then_it_is_not_said_that_both_are_written(
    broker: BrokerProcess, topic: str, transactional_id: str | None
) -> None:
    with a_producer(broker.bootstrap, transactional_id) as producer, a_client(broker.bootstrap) as cluster:
        if transactional_id is not None:
            producer.fence()
        producer.put(topic, 2, rows(b"1"))
        eventually(lambda: values_in(cluster, topic, committed=False) == [b"1"])
        delete(broker, topic)
        eventually(lambda: is_created(broker, topic))
        producer.put(topic, 2, rows(b"2"))

        with pytest.raises(TopicRecreated, match=topic):
            producer.flush() if transactional_id is None else producer.commit()
        if transactional_id is not None:
            producer.abort(10)

        with a_client(broker.bootstrap) as anew:
            eventually(lambda: values_in(anew, topic) == ([b"2"] if transactional_id is None else []))


def test_given_a_topic_that_is_made_anew_between_two_transactions_then_the_second_is_not_committed(
    broker: BrokerProcess, topic: str
) -> None:
    with a_producer(broker.bootstrap, "anew-after") as producer:
        producer.fence()
        producer.put(topic, 2, rows(b"1"))
        producer.commit()
        delete(broker, topic)
        eventually(lambda: is_created(broker, topic))
        producer.fence()
        producer.put(topic, 2, rows(b"2"))

        with pytest.raises(TopicRecreated, match=topic):
            producer.commit()


def is_created(broker: BrokerProcess, topic: str) -> bool:
    try:
        create(broker, topic, partitions=2)
    except AssertionError:
        return False
    return True
