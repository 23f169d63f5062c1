"""`penstock transaction` and `penstock producers` against a real broker, with transactions that hang as well.

One hangs when a partition takes a transactional batch that its coordinator knows nothing of, such as one that was on
its way while its transaction ended. Brokers refuse that unless they are told not to ask (KIP-890).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.cli.conftest import QuickTools, Tools
from tests.testkit.asking import a_batch, create_usable_topic, produce
from tests.testkit.broker import Broker
from tests.testkit.broker_process import BrokerProcess
from tests.testkit.kafka_broker import KafkaBroker
from tests.testkit.raw_client import RawClient
from tests.testkit.waiting import eventually, free_port
from typer.testing import CliRunner

from penstock.cli.app import build_app
from penstock.cli.client import connected
from penstock.cli.group_offsets import Selection
from penstock.cli.transaction_client import TransactionClient
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)

LONE_PRODUCER_ID = 4711


@pytest.fixture(scope="module")
def lax_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Takes transactional batches without asking their coordinator."""
    kind = KafkaBroker if os.environ.get("PENSTOCK_TEST_BROKER") == "kafka" else Broker
    with kind.start(tmp_path_factory.mktemp("lax") / "data", transaction_partition_verification_enable=False) as broker:
        yield broker


@pytest.fixture
def lax_tools(lax_broker: BrokerProcess) -> Tools:
    return QuickTools(lax_broker.bootstrap)


def create(broker: BrokerProcess, topic: str, partitions: int = 2) -> None:
    with RawClient(broker.address) as client:
        create_usable_topic(client, topic, partitions)


def a_producer(broker: BrokerProcess, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "log_level": 0, "linger.ms": 0}
    )
    producer.init_transactions(30)
    return producer


def write(producer: Producer, topic: str, *partitions: int, value: bytes = b"in a transaction") -> None:
    """In a new transaction, which stays open."""
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def write_late(
    broker: BrokerProcess, topic: str, producer_id: int, partition: int = 0, *, epoch: int = 0, sequence: int = 0
) -> None:
    """A transactional batch that no coordinator was told of."""
    batch = a_batch(
        b"late",
        timestamp=time.time_ns() // 1_000_000,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    with RawClient(broker.address) as client:
        # v12 would be told of.
        answer = produce(client, topic, batch, partition=partition, transactional_id="any", version=11)
    assert answer.error_code == 0, answer


def join_transaction(broker: BrokerProcess, topic: str, producer_id: int) -> None:
    """The coordinator of the id, which is the topic's name, is told of partition 0: it will end what is open there."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=topic,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    with RawClient(broker.address) as client:
        (answered,) = client.exchange(request, 3, AddPartitionsToTxnResponse).results_by_topic_v3_and_below
    assert [row.partition_error_code for row in answered.results_by_partition] == [0]


def committed_values(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        found: list[bytes | None] = []

        def has_all() -> bool:
            found.extend(message.value() for message in consumer.consume(count, 0.1))
            return len(found) >= count

        eventually(has_all, 20)
        return found
    finally:
        consumer.close()


def documents(tools: Tools, *arguments: object) -> list[dict[str, Any]]:
    return json.loads(tools.output(*arguments, "--json"))  # type: ignore[no-any-return]


def described(tools: Tools, transactional_id: str) -> dict[str, Any]:
    (document,) = documents(tools, "transaction", "describe", transactional_id)
    return document


def hanging(tools: Tools, topic: str, *options: object) -> list[tuple[int, int, int]]:
    found = documents(tools, "transaction", "list", "--hanging", "--older-than", 0, "-t", topic, *options)
    return [(row["partition"], row["producer_id"], row["current_transaction_start_offset"]) for row in found]


def cells(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_given_an_open_and_an_ended_transaction_when_listed_and_described_then_states_and_partitions_are_shown(
    broker: BrokerProcess, quick: Tools, topic: str
) -> None:
    create(broker, topic)
    first, second = f"a-{topic}", f"b-{topic}"
    still_open, ended = a_producer(broker, first), a_producer(broker, second)
    write(still_open, topic, 0, 1)
    write(ended, topic, 0)
    ended.commit_transaction(30)
    producer_ids = [described(quick, name)["producer_id"] for name in (first, second)]

    listed, ongoing, of_second, old, text, shown = quick.each_lines(
        ("transaction", "list", "--matching", f".-{topic}"),
        ("transaction", "list", "--state", "ongoing", "--older-than", 0, "--matching", f".-{topic}"),
        ("transaction", "list", "--producer-id", producer_ids[1]),
        ("transaction", "list", "--older-than", 3600, "--matching", f".-{topic}"),
        ("transaction", "describe", first, second),
        ("transaction", "describe", first, "--json"),
    )
    still_open.abort_transaction(30)

    header = ["TRANSACTIONAL-ID", "STATE", "PRODUCER", "COORDINATOR"]
    first_row = [first, "Ongoing", str(producer_ids[0]), "1"]
    second_row = [second, "CompleteCommit", str(producer_ids[1]), "1"]
    assert cells(listed) == [header, first_row, second_row]
    assert cells(ongoing) == [header, first_row]
    assert cells(of_second) == [header, second_row]
    assert cells(old) == [header]
    host, port = broker.address
    assert text[0] == f"{first}  Ongoing  producer {producer_ids[0]}, epoch 0  coordinator 1 at {host}:{port}"
    assert text[1].startswith("timeout 60000 ms, running for ")
    assert text[2] == f"partitions {topic}:0,1"
    assert text[3:] == [
        "",
        f"{second}  CompleteCommit  producer {producer_ids[1]}, epoch 0  coordinator 1 at {host}:{port}",
        "timeout 60000 ms, no transaction open",
    ]
    (document,) = json.loads("\n".join(shown))
    assert abs(document.pop("start_time_ms") - time.time() * 1_000) < 60_000
    assert document == {
        "transactional_id": first,
        "state": "Ongoing",
        "producer_id": producer_ids[0],
        "producer_epoch": 0,
        "coordinator": {"id": 1, "host": host, "port": port},
        "timeout_ms": 60_000,
        "partitions": [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}],
    }


def test_given_an_id_without_a_transaction_when_those_running_are_listed_then_it_is_left_out(
    broker: BrokerProcess, quick: Tools, topic: str
) -> None:
    a_producer(broker, topic)

    running, empty = quick.each_lines(
        ("transaction", "list", "--older-than", 0, "--matching", topic),
        ("transaction", "list", "--state", "Empty", "--matching", topic),
    )

    refused = quick.refusal("transaction", "list", "--matching", "(", exit_code=2)

    assert (len(running), len(empty)) == (1, 2)
    assert refused == 'penstock: --matching "(" is not a regular expression of RE2\n'


def test_given_an_open_transaction_when_it_is_aborted_then_its_records_are_never_seen_and_its_producer_is_fenced(
    broker: BrokerProcess, tools: Tools, topic: str
) -> None:
    create(broker, topic)
    producer = a_producer(broker, topic)
    write(producer, topic, 0, value=b"unwanted")

    unasked = tools.refusal("transaction", "abort", topic)
    no = tools.refusal("transaction", "abort", topic, stdin=b"no\n")
    before = described(tools, topic)
    done = tools.run("transaction", "abort", topic, stdin=b"y\n")

    assert "nobody answered, nothing was aborted: --yes aborts without asking" in unasked
    assert no.endswith("nothing was aborted\n")
    assert before["state"] == "Ongoing"
    assert (done.returncode, done.stdout.decode()) == (0, f"aborted {topic}\n")
    assert done.stderr.decode() == f"Abort the transaction and fence the producer of {topic}? [y/N] "
    after = described(tools, topic)
    assert (after["state"], after["timeout_ms"], after["partitions"]) == ("Empty", before["timeout_ms"], [])
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(30)
    assert fenced.value.args[0].fatal()
    next_one = a_producer(broker, topic)
    write(next_one, topic, 0, value=b"wanted")
    next_one.commit_transaction(30)
    assert committed_values(broker, topic, 1) == [b"wanted"]


def test_given_nothing_open_or_an_unknown_id_when_it_is_aborted_then_refused_and_no_id_is_made(
    broker: BrokerProcess, quick: Tools, topic: str
) -> None:
    create(broker, topic)
    producer, other = a_producer(broker, topic), a_producer(broker, f"open-{topic}")
    write(producer, topic, 0)
    producer.commit_transaction(30)
    write(other, topic, 0)

    ended, unknown, undescribed = quick.each_refusal(
        ("transaction", "abort", f"open-{topic}", topic, "--yes"),
        ("transaction", "abort", f"open-{topic}", f"no-{topic}", "--yes"),
        ("transaction", "describe", f"no-{topic}", f"nor-{topic}"),
    )

    assert ended == f'penstock: transactional id "{topic}" has no transaction open, it is in CompleteCommit\n'
    assert unknown == f'penstock: no transactional id "no-{topic}"\n'
    assert undescribed == f'penstock: no transactional id "no-{topic}"; no transactional id "nor-{topic}"\n'
    assert [row["transactional_id"] for row in documents(quick, "transaction", "list", "--matching", f".*{topic}")] == [
        f"open-{topic}",
        topic,
    ]
    other.commit_transaction(30)


def test_given_producers_of_every_kind_when_they_are_shown_then_each_partition_has_those_that_wrote_to_it(
    broker: BrokerProcess, quick: Tools, topic: str
) -> None:
    create(broker, topic, 3)
    producer = a_producer(broker, topic)
    write(producer, topic, 0, 1)
    producer.commit_transaction(30)
    write(producer, topic, 1)
    producer_id = described(quick, topic)["producer_id"]
    idempotent = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    for _ in range(3):
        idempotent.produce(topic, b"alone", partition=2)
        assert idempotent.flush(30) == 0

    table, some, everything = quick.each_lines(
        ("producers", topic), ("producers", f"{topic}:0,1"), ("producers", topic, "--json")
    )
    producer.abort_transaction(30)

    rows = cells(table)
    assert rows[0] == [
        "TOPIC",
        "PARTITION",
        "PRODUCER",
        "EPOCH",
        "COORDINATOR-EPOCH",
        "SEQUENCE",
        "WRITTEN",
        "OPEN-FROM",
    ]
    without_time = [[*row[:6], row[7]] for row in rows[1:]]
    assert without_time[:2] == [
        [topic, "0", str(producer_id), "0", "0", "0", "-"],
        [topic, "1", str(producer_id), "0", "0", "1", "2"],
    ]
    alone = json.loads("\n".join(everything))[2]
    assert without_time[2] == [topic, "2", str(alone["producer_id"]), "0", "-", "2", "-"]
    assert some == table[:3]
    assert abs(alone.pop("last_timestamp") - time.time() * 1_000) < 60_000
    assert alone == {
        "topic": topic,
        "partition": 2,
        "producer_id": alone["producer_id"],
        "producer_epoch": 0,
        "coordinator_epoch": None,
        "last_sequence": 2,
        "current_transaction_start_offset": None,
    }


def test_given_a_batch_that_nobody_knows_of_when_what_hangs_is_aborted_then_readers_go_on(
    lax_broker: BrokerProcess, lax_tools: Tools, topic: str
) -> None:
    create(lax_broker, topic)
    write_late(lax_broker, topic, LONE_PRODUCER_ID)
    plain = Producer({"bootstrap.servers": lax_broker.bootstrap, "linger.ms": 0})
    plain.produce(topic, b"behind it", partition=0)
    assert plain.flush(30) == 0
    abort = ("transaction", "abort", "--hanging", "--topic", topic, "--older-than", 0)

    found = lax_tools.run("transaction", "list", "--hanging", "--older-than", 0, "-t", topic)
    no = lax_tools.run(*abort, stdin=b"n\n")
    kept = hanging(lax_tools, topic)
    done = lax_tools.run(*abort, stdin=b"y\n")

    assert cells(found.stdout.decode().splitlines())[1][:5] == [topic, "0", str(LONE_PRODUCER_ID), "0", "-"]
    assert (no.returncode, no.stdout) == (1, found.stdout)
    assert no.stderr.decode() == "Abort this transaction? [y/N] penstock: nothing was aborted\n"
    assert kept == [(0, LONE_PRODUCER_ID, 0)]
    aborted = f"aborted {topic}-0, producer {LONE_PRODUCER_ID}, from offset 0\n"
    assert (done.returncode, done.stdout.decode()) == (0, found.stdout.decode() + aborted)
    assert committed_values(lax_broker, topic, 1) == [b"behind it"]
    assert lax_tools.refusal(*abort, "--yes") == "penstock: nothing hangs in 2 partitions\n"
    assert hanging(lax_tools, topic) == []
    (remembered,) = documents(lax_tools, "producers", f"{topic}:0")
    # A coordinator's first epoch: any that there is may still write markers of this producer.
    assert (remembered["current_transaction_start_offset"], remembered["coordinator_epoch"]) == (None, 0)


def test_given_batches_that_came_after_their_transaction_then_they_hang_and_open_transactions_do_not(
    lax_broker: BrokerProcess, lax_tools: Tools, topic: str
) -> None:
    create(lax_broker, topic, 3)
    producer, other = a_producer(lax_broker, topic), a_producer(lax_broker, f"open-{topic}")
    write(producer, topic, 0, 1)
    producer.commit_transaction(30)
    write(other, topic, 0)
    producer_id = described(lax_tools, topic)["producer_id"]
    write_late(lax_broker, topic, producer_id, 0, sequence=1)
    write_late(lax_broker, topic, producer_id, 2)
    ended = hanging(lax_tools, topic)
    # The next transaction ends what hangs in its own partitions; nobody ends the rest.
    write(producer, topic, 1)

    during_the_next = hanging(lax_tools, topic)
    chosen = hanging(lax_tools, f"{topic}:1,2"), hanging(lax_tools, topic, "--producer-id", LONE_PRODUCER_ID)
    done = lax_tools.lines(
        "transaction", "abort", "--hanging", "-t", f"{topic}:2", "--producer-id", producer_id, "--older-than", 0, "-y"
    )

    assert ended == during_the_next == [(0, producer_id, 3), (2, producer_id, 0)]
    assert chosen == ([(2, producer_id, 0)], [])
    assert done[2:] == [f"aborted {topic}-2, producer {producer_id}, from offset 0"]
    assert hanging(lax_tools, topic) == [(0, producer_id, 3)]
    other.commit_transaction(30)
    producer.commit_transaction(30)
    assert committed_values(lax_broker, topic, 2, partition=1) == [b"in a transaction"] * 2


def test_given_a_question_that_waits_when_the_producer_goes_on_meanwhile_then_its_transaction_is_not_torn(
    lax_broker: BrokerProcess, topic: str
) -> None:
    create(lax_broker, topic)
    lax_tools = Tools(lax_broker.bootstrap)
    producer = a_producer(lax_broker, topic)
    write(producer, topic, 1)
    producer.commit_transaction(30)
    producer_id = described(QuickTools(lax_broker.bootstrap), topic)["producer_id"]
    write_late(lax_broker, topic, producer_id)
    abort = lax_tools.command("transaction", "abort", "--hanging", "-t", topic, "--older-than", 0)
    pipe = subprocess.PIPE

    with subprocess.Popen(abort, env=lax_tools.environment, stdin=pipe, stdout=pipe, stderr=pipe) as asking:
        assert asking.stderr is not None
        question = asking.stderr.read(len("Abort this transaction? [y/N] "))
        join_transaction(lax_broker, topic, producer_id)
        _, said = asking.communicate(b"y\n", 30)

    assert (question, asking.returncode) == (b"Abort this transaction? [y/N] ", 1)
    assert said.decode() == f"penstock: {topic}-0, producer {producer_id}, from offset 0: it does not hang any more\n"
    assert [row["current_transaction_start_offset"] for row in documents(lax_tools, "producers", f"{topic}:0")] == [0]


def test_given_a_batch_of_a_moment_ago_when_nothing_else_is_said_then_it_is_left_out_and_counted(
    lax_broker: BrokerProcess, lax_tools: Tools, topic: str
) -> None:
    create(lax_broker, topic)
    write_late(lax_broker, topic, LONE_PRODUCER_ID)

    listed = lax_tools.run("transaction", "list", "--hanging", "-t", topic, "--json")
    refused = lax_tools.refusal("transaction", "abort", "--hanging", "-t", f"{topic}:0", "--yes")

    left_out = "1 transaction written to of late left out: --older-than 0 takes all"
    assert (listed.returncode, listed.stdout) == (0, b"[]\n")
    assert listed.stderr.decode() == f"penstock: nothing hangs in 2 partitions; {left_out}\n"
    assert refused == f"penstock: nothing hangs in 1 partition; {left_out}\n"
    assert hanging(lax_tools, topic) == [(0, LONE_PRODUCER_ID, 0)]


def test_given_transactions_that_end_while_it_is_looked_for_what_hangs_then_none_seems_to(
    broker: BrokerProcess, topic: str
) -> None:
    create(broker, topic)
    producer = a_producer(broker, topic)
    enough, ended = Event(), []

    def many_transactions() -> None:
        while not enough.is_set():
            write(producer, topic, 0, 1)
            producer.commit_transaction(30)
            ended.append(1)

    writer = Thread(target=many_transactions)
    writer.start()
    try:
        client = TransactionClient(connected(broker.bootstrap, 30))
        searches = [client.hanging([Selection(topic, None)], (), 0) for _ in range(300)]
        eventually(lambda: len(ended) >= 3)
    finally:
        enough.set()
        writer.join()

    assert [search.found for search in searches if search.found] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("transaction abort", "either transactional ids or --hanging"),
        ("transaction abort an-id --hanging", "either transactional ids or --hanging"),
        ("transaction abort an-id --topic orders", "--topic, --producer-id and --older-than go with --hanging"),
        ("transaction list --topic orders", "--topic goes with --hanging"),
        ("transaction list --hanging --state Ongoing", "it goes with --topic, --producer-id and --older-than"),
        ("transaction list --state Stable", '--state: there is no "Stable", only Empty, Ongoing'),
        ("transaction list --hanging --topic orders:x", '--topic "orders:x": expected TOPIC'),
        ("transaction describe ''", "a transactional id cannot be empty"),
        ("producers orders:x", '"orders:x": expected TOPIC'),
    ],
)
def test_given_mistakes_in_the_command_then_no_broker_is_asked_and_the_exit_code_is_2(command: str, said: str) -> None:
    finished = CliRunner().invoke(build_app(), [*shlex.split(command), "-b", "127.0.0.1:1"])

    assert (finished.exit_code, finished.stdout) == (2, "")
    assert said in finished.stderr


def test_given_topics_and_partitions_that_are_not_there_then_all_are_named(
    broker: BrokerProcess, quick: Tools, topic: str
) -> None:
    create(broker, topic)

    of_producers, of_hanging = quick.each_refusal(
        ("producers", f"{topic}:0,7", "no-such-topic"),
        ("transaction", "list", "--hanging", "-t", f"{topic}:7", "-t", "no-such-topic"),
    )

    assert of_producers == of_hanging == f'penstock: no partition {topic}-7; no topic "no-such-topic"\n'


def test_given_a_port_that_is_no_broker_then_it_is_said_and_nothing_waits_for_the_timeout(
    broker: BrokerProcess,
) -> None:
    if not isinstance(broker, Broker):
        pytest.skip("Kafka has no HTTP port")

    nobody = QuickTools(f"127.0.0.1:{free_port()}").refusal("transaction", "list")
    http = QuickTools(broker.http).refusal("producers", "orders")

    assert "no broker there, is it running?" in nobody
    assert f"the broker at {broker.http} does not answer as brokers do without TLS and logins" in http
