"""Transactions of clients that nobody here wrote: all or nothing, once, and for nobody to see before it is committed.

Java's client speaks transaction version 2: partitions come into a transaction with their records, and every transaction
has an epoch of its own (KIP-890). The others speak version 1.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.compat.clients.aiokafka_transactions import AiokafkaTransactions
from tests.compat.clients.confluent import ConfluentAdminClient
from tests.compat.clients.confluent_transactions import ConfluentTransactions
from tests.compat.clients.interface import Client, Message
from tests.compat.clients.java_transactions import JavaTransactions
from tests.compat.clients.kafka_python_transactions import KafkaPythonTransactions
from tests.compat.clients.transactional import Failed, Fenced, TransactionalClient
from tests.compat.members import group_settings
from tests.compat.topics import CreateTopic, eventually_known
from tests.testkit import BrokerProcess, KafkaBroker, RawClient, broker_under_test, eventually, stored_batches

_PYTHON_CLIENTS: tuple[type[TransactionalClient], ...] = (
    ConfluentTransactions,
    KafkaPythonTransactions,
    AiokafkaTransactions,
)
CLIENT_NAMES = [*(kind.name for kind in _PYTHON_CLIENTS), JavaTransactions.name]
MANY_PARTITIONS = 50
# As short as a client may want it, and still longer than what a test does in between.
SHORT_TIMEOUT_MS = 1_500
LATEST = -1

ClientNamed = Callable[[str], TransactionalClient]
UntilSettled = Callable[..., None]


@pytest.fixture(scope="session")
def transaction_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with small internal topics, which looks often for transactions that have run out of time."""
    settings: dict[str, Any] = group_settings(**{"transaction.state.log.num.partitions": 4})
    if broker_under_test() is KafkaBroker:
        settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = 200
    with broker_under_test().start(tmp_path_factory.mktemp("transaction-broker") / "data", **settings) as shared:
        yield shared


@pytest.fixture
def broker(transaction_broker: BrokerProcess) -> BrokerProcess:
    return transaction_broker


@pytest.fixture
def transactions_of(request: pytest.FixtureRequest, broker: BrokerProcess) -> ClientNamed:
    def make(name: str) -> TransactionalClient:
        if name == JavaTransactions.name:
            return JavaTransactions(broker.bootstrap, request.getfixturevalue("java_driver"))
        return next(kind for kind in _PYTHON_CLIENTS if kind.name == name)(broker.bootstrap)

    return make


@pytest.fixture(params=CLIENT_NAMES)
def transactions(request: pytest.FixtureRequest, transactions_of: ClientNamed) -> TransactionalClient:
    """Each client in turn."""
    return transactions_of(request.param)


@pytest.fixture
def other_topic(broker: BrokerProcess, topic_name: str) -> str:
    """A second topic, of three partitions."""
    name = f"other-{topic_name}"
    admin = ConfluentAdminClient(broker.bootstrap)
    admin.create_topic(name, partitions=3)
    eventually_known(lambda: len(admin.partition_leaders(name)) == 3)
    return name


@pytest.fixture
def until_settled(broker: BrokerProcess) -> UntilSettled:
    """Waits until the markers are written: a commit is answered as soon as it is decided, here as in Kafka."""

    def wait(topic: str, partitions: int = 1) -> None:
        with RawClient(broker.address) as client:
            eventually(lambda: _ends(client, topic, partitions, 0) == _ends(client, topic, partitions, 1))

    return wait


def _ends(client: RawClient, topic: str, partitions: int, isolation_level: int) -> list[int]:
    asked = [ListOffsetsPartition(partition_index=each, timestamp=LATEST) for each in range(partitions)]
    request = ListOffsetsRequest(
        isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=asked)]
    )
    (found,) = client.exchange(request, 7, ListOffsetsResponse).topics
    return [partition.offset for partition in found.partitions]


# All or nothing


def test_given_several_topics_and_partitions_when_committed_then_all_of_it_is_visible_at_once(
    transactions: TransactionalClient, create_topic: CreateTopic, other_topic: str, until_settled: UntilSettled
) -> None:
    topic = create_topic(partitions=2)

    with transactions.producer(topic) as producer:
        producer.begin()
        for partition in range(2):
            producer.send(topic, [b"a-%d" % partition, b"b-%d" % partition], partition=partition)
        producer.send(other_topic, [b"c"], partition=2)
        before = transactions.read(topic, partitions=2), transactions.read(other_topic, partitions=3)
        producer.commit()

    assert before == ([[], []], [[], [], []])
    until_settled(topic, 2)
    until_settled(other_topic, 3)
    assert transactions.read(topic, partitions=2) == [[b"a-0", b"b-0"], [b"a-1", b"b-1"]]
    assert transactions.read(other_topic, partitions=3) == [[], [], [b"c"]]


def test_given_several_topics_and_partitions_when_aborted_then_only_uncommitted_readers_see_it(
    transactions: TransactionalClient, create_topic: CreateTopic, other_topic: str, until_settled: UntilSettled
) -> None:
    topic = create_topic(partitions=2)

    with transactions.producer(topic) as producer:
        producer.begin()
        producer.send(topic, [b"a"], partition=0)
        producer.send(topic, [b"b"], partition=1)
        producer.send(other_topic, [b"c"], partition=2)
        producer.abort()

    until_settled(topic, 2)
    until_settled(other_topic, 3)
    assert transactions.read(topic, partitions=2) == [[], []]
    assert transactions.read(other_topic, partitions=3) == [[], [], []]
    assert transactions.read(topic, partitions=2, committed=False) == [[b"a"], [b"b"]]
    assert transactions.read(other_topic, partitions=3, committed=False) == [[], [], [b"c"]]


def test_given_commits_and_aborts_of_one_client_when_others_read_then_all_see_the_same(
    transactions: TransactionalClient, transactions_of: ClientNamed, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic) as producer:
        for number in range(6):
            values = [b"%d-%d" % (number, at) for at in range(3)]
            producer.transact(topic, values, commit=number % 3 != 1)

    until_settled(topic)
    committed = [b"%d-%d" % (number, at) for number in (0, 2, 3, 5) for at in range(3)]
    everything = [b"%d-%d" % (number, at) for number in range(6) for at in range(3)]
    for name in CLIENT_NAMES:
        reader = transactions_of(name)
        assert reader.read(topic) == [committed], name
        assert reader.read(topic, committed=False) == [everything], name


def test_given_an_open_transaction_when_others_write_behind_it_then_it_holds_the_last_stable_offset(
    transactions: TransactionalClient, topic: str, writer: Client, until_settled: UntilSettled
) -> None:
    writer.produce(topic, [Message(b"before")])
    with transactions.producer(topic) as producer, transactions.producer(f"{topic}-other") as other:
        producer.begin()
        producer.send(topic, [b"open"])
        writer.produce(topic, [Message(b"behind")])
        other.transact(topic, [b"committed behind"])

        eventually(lambda: transactions.end(topic, committed=False) == 5, message="no marker of the other")
        assert transactions.end(topic) == 1
        assert transactions.read(topic) == [[b"before"]]
        assert transactions.read(topic, committed=False) == [[b"before", b"open", b"behind", b"committed behind"]]

        producer.commit()
        until_settled(topic)
        assert transactions.read(topic) == [[b"before", b"open", b"behind", b"committed behind"]]
        assert (transactions.end(topic), transactions.end(topic, committed=False)) == (6, 6)


def test_given_one_producer_when_many_transactions_follow_each_other_then_each_counts_once_in_order(
    transactions: TransactionalClient, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic) as producer:
        for number in range(50):
            producer.transact(topic, [b"%d" % number], commit=number % 5 != 4)

    until_settled(topic)
    assert transactions.read(topic) == [[b"%d" % number for number in range(50) if number % 5 != 4]]


def test_given_thousands_of_records_when_committed_in_one_transaction_then_all_are_there_in_order(
    transactions: TransactionalClient, create_topic: CreateTopic, until_settled: UntilSettled
) -> None:
    topic = create_topic(partitions=3)
    values = [b"value-%d " % number * 5 for number in range(1_500)]

    with transactions.producer(topic) as producer:
        producer.begin()
        for partition in range(3):
            producer.send(topic, values, partition=partition)
        producer.commit()

    until_settled(topic, 3)
    assert transactions.read(topic, partitions=3) == [values] * 3


def test_given_a_topic_of_fifty_partitions_when_written_in_one_transaction_then_all_or_nothing_of_it(
    transactions: TransactionalClient, create_topic: CreateTopic, until_settled: UntilSettled
) -> None:
    topic = create_topic(partitions=MANY_PARTITIONS)

    with transactions.producer(topic) as producer:
        for value, is_commit in ((b"first", True), (b"second", False), (b"third", True)):
            producer.begin()
            for partition in range(MANY_PARTITIONS):
                producer.send(topic, [value], partition=partition)
            if is_commit:
                producer.commit()
            else:
                producer.abort()

    until_settled(topic, MANY_PARTITIONS)
    assert transactions.read(topic, partitions=MANY_PARTITIONS) == [[b"first", b"third"]] * MANY_PARTITIONS


def test_given_a_transaction_version_when_transactions_follow_each_other_then_their_epochs_are_those_of_it(
    transactions: TransactionalClient, broker: BrokerProcess, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic) as producer:
        for number in range(4):
            producer.transact(topic, [b"%d" % number], commit=number % 2 == 0)

    until_settled(topic)
    batches = stored_batches(broker, topic)
    epochs = [batch.producer_epoch - batches[0].producer_epoch for batch in batches]
    assert len({batch.producer_id for batch in batches}) == 1
    # A record and a marker each; the marker of version 2 has the epoch that comes next.
    assert epochs == ([0, 1, 1, 2, 2, 3, 3, 4] if transactions.raises_epochs else [0] * 8)


# Offsets


def until_committed(reader: TransactionalClient, topic: str, position: int) -> None:
    """The group has the name of its topic."""
    eventually(lambda: reader.committed(topic, topic) == position, message=f"{topic} was never at {position}")


def test_given_a_copy_when_its_transaction_is_aborted_then_neither_records_nor_positions_count(
    transactions: TransactionalClient, topic: str, other_topic: str, writer: Client, until_settled: UntilSettled
) -> None:
    writer.produce(topic, [Message(b"%d" % number) for number in range(5)])

    with transactions.producer(topic) as producer:
        producer.begin()
        producer.copy(topic, other_topic, topic, count=5)
        producer.abort()

        until_settled(other_topic)
        assert transactions.committed(topic, topic) is None
        assert transactions.read(other_topic) == [[]]

        producer.begin()
        producer.copy(topic, other_topic, topic, count=5)
        producer.commit()

    until_settled(other_topic)
    until_committed(transactions, topic, 5)
    assert transactions.read(other_topic) == [[b"%d" % number for number in range(5)]]


def test_given_copies_by_one_member_after_the_other_when_committed_then_each_goes_on_where_the_last_ended(
    transactions: TransactionalClient, topic: str, other_topic: str, writer: Client, until_settled: UntilSettled
) -> None:
    writer.produce(topic, [Message(b"%d" % number) for number in range(9)])

    with transactions.producer(topic) as producer:
        for _ in range(3):
            producer.begin()
            producer.copy(topic, other_topic, topic, count=3)
            producer.commit()

    until_settled(other_topic)
    until_committed(transactions, topic, 9)
    assert transactions.read(other_topic) == [[b"%d" % number for number in range(9)]]


def test_given_pending_offsets_when_asked_for_stable_ones_then_the_reader_waits_until_the_transaction_ends(
    transactions: TransactionalClient, topic: str
) -> None:
    if not transactions.asks_for_stable_offsets:
        pytest.skip(f"{transactions.name} cannot ask for stable offsets")
    with transactions.producer(topic) as producer:
        producer.begin()
        producer.send_offsets(topic, {(topic, 0): 7})
        with pytest.raises(TimeoutError):
            transactions.committed(topic, topic, timeout_s=0.7)
        producer.commit()
        assert transactions.committed(topic, topic) == 7

        producer.begin()
        producer.send_offsets(topic, {(topic, 0): 8})
        with pytest.raises(TimeoutError):
            transactions.committed(topic, topic, timeout_s=0.7)
        producer.abort()
        assert transactions.committed(topic, topic) == 7


def test_given_pending_offsets_when_asked_by_a_client_that_does_not_wait_then_the_last_committed_ones(
    transactions_of: ClientNamed, transactions: TransactionalClient, topic: str
) -> None:
    reader = transactions_of(AiokafkaTransactions.name)
    with transactions.producer(topic) as producer:
        producer.begin()
        producer.send_offsets(topic, {(topic, 0): 7})
        producer.commit()
        until_committed(reader, topic, 7)
        producer.begin()
        producer.send_offsets(topic, {(topic, 0): 8})

        assert reader.committed(topic, topic) == 7

        producer.commit()
    until_committed(reader, topic, 8)


# Fencing and time


def test_given_an_open_transaction_when_a_newer_producer_takes_the_id_then_the_older_is_fenced_and_its_work_undone(
    transactions: TransactionalClient, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic) as older:
        older.transact(topic, [b"older, committed"])
        older.begin()
        older.send(topic, [b"older, open"])
        with transactions.producer(topic) as newer:
            assert transactions.read(topic) == [[b"older, committed"]]
            newer.transact(topic, [b"newer"])
            with pytest.raises(Fenced):
                older.commit()
            newer.transact(topic, [b"newer again"])

    until_settled(topic)
    assert transactions.read(topic) == [[b"older, committed", b"newer", b"newer again"]]


def test_given_an_idle_producer_when_a_newer_one_takes_its_id_then_the_older_cannot_write(
    transactions: TransactionalClient, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic) as older:
        older.transact(topic, [b"older"])
        with transactions.producer(topic) as newer:
            with pytest.raises(Fenced):
                older.transact(topic, [b"zombie"])
            newer.transact(topic, [b"newer"])

    until_settled(topic)
    assert transactions.read(topic) == [[b"older", b"newer"]]


def test_given_several_transactional_ids_when_their_transactions_interleave_then_nobody_is_fenced(
    transactions: TransactionalClient, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(f"{topic}-a") as a, transactions.producer(f"{topic}-b") as b:
        for number in range(5):
            a.begin()
            b.begin()
            a.send(topic, [b"a%d" % number])
            b.send(topic, [b"b%d" % number])
            a.commit()
            a.transact(topic, [b"a%d again" % number])
            if number % 2:
                b.abort()
            else:
                b.commit()

    until_settled(topic)
    expected = [(b"a%d" % n, *([] if n % 2 else [b"b%d" % n]), b"a%d again" % n) for n in range(5)]
    assert transactions.read(topic) == [list(itertools.chain(*expected))]


def test_given_a_client_that_is_silent_when_its_timeout_passes_then_its_transaction_is_aborted(
    transactions: TransactionalClient, topic: str, until_settled: UntilSettled
) -> None:
    with transactions.producer(topic, timeout_ms=SHORT_TIMEOUT_MS) as silent:
        silent.begin()
        silent.send(topic, [b"too slow"])
        silent.send_offsets(topic, {(topic, 0): 1})
        assert transactions.end(topic) == 0

        eventually(lambda: transactions.end(topic) == 2, 15, "the transaction was not ended")
        assert transactions.read(topic) == [[]]
        assert transactions.committed(topic, topic) is None
        with pytest.raises(Failed):
            silent.commit()

    with transactions.producer(topic) as next_one:
        next_one.transact(topic, [b"in time"])
    until_settled(topic)
    assert transactions.read(topic) == [[b"in time"]]
