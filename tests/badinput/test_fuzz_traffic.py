"""What real clients send, with bits flipped on the way, as a broken network card or a broken client would."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.protocol.messages.table import REQUESTS
from tests.badinput.fuzzed_broker import FUZZED_SETTINGS, FuzzedBroker
from tests.badinput.fuzzing import cases, fuzz_timeout, spoilt, told_apart, with_flipped_bits
from tests.badinput.hostile import TOPICS
from tests.badinput.recording_proxy import RecordingProxy
from tests.badinput.rows import not_for_kafka
from tests.badinput.unharmed import MIB, unharmed
from tests.compat.clients.aiokafka_client import AiokafkaAdminClient, AiokafkaClient
from tests.compat.clients.confluent import ConfluentAdminClient, ConfluentClient
from tests.compat.clients.interface import AdminClient, Client, Message
from tests.compat.clients.kafka_python import KafkaPythonAdminClient, KafkaPythonClient
from tests.testkit import Broker, BrokerProcess

pytestmark = [pytest.mark.xdist_group("badinput-fuzz-traffic"), not_for_kafka]

USUAL_CASES = 2_000
TIDY_UP_EVERY = 250
CLIENTS: tuple[type[Client], ...] = (ConfluentClient, KafkaPythonClient, AiokafkaClient)
ADMIN_CLIENTS: tuple[type[AdminClient], ...] = (ConfluentAdminClient, KafkaPythonAdminClient, AiokafkaAdminClient)
# What three clients need for producing, consuming and administering topics, and one for transactions; less was not a
# session.
EXPECTED_APIS = {
    "ApiVersions", "Metadata", "Produce", "Fetch", "ListOffsets", "InitProducerId", "CreateTopics", "DeleteTopics",
    "CreatePartitions", "DescribeConfigs", "DeleteRecords", "FindCoordinator", "AddPartitionsToTxn", "AddOffsetsToTxn",
    "TxnOffsetCommit", "EndTxn",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, RecordingProxy]]:
    """A broker that tells its clients to come through the proxy."""
    data: Path = tmp_path_factory.mktemp("fuzz-traffic") / "data"
    with RecordingProxy() as proxy:
        settings = {**FUZZED_SETTINGS, "advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}"}
        with Broker.start(data, **settings) as broker:
            proxy.forward_to(broker.address)
            yield broker, proxy


def use_every_client(bootstrap: str) -> None:
    for kind in CLIENTS:
        client, topic = kind(bootstrap), TOPICS[0]
        message = Message(b"value", b"key", (("header", b"1"),))
        for codec in ("none", "gzip", "lz4"):
            client.produce(topic, [message] * 3, codec=codec, idempotent=codec == "none")
        low, high = client.bounds(topic)
        client.offset_for_time(topic, 1)
        client.consume(topic, high - low, offset=low)
    for admin_kind in ADMIN_CLIENTS:
        admin, topic = admin_kind(bootstrap), "recorded"
        admin.create_topic(topic, partitions=1, configs={"retention.ms": "1000000"})
        admin.grow_topic(topic, partitions=2)
        admin.topic_configs(topic)
        admin.set_topic_configs(topic, {"retention.ms": "2000000"})
        admin.delete_records(topic, before_offset=0)
        admin.topic_names()
        admin.delete_topic(topic)


def use_transactions(bootstrap: str) -> None:
    """librdkafka asks for all that there is: it knows version 1 only."""
    topic = TOPICS[1]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "recorded"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "recorded"})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 20)
        end(20)
    consumer.close()


@pytest.fixture(scope="module")
def recorded(recorded_broker: tuple[BrokerProcess, RecordingProxy]) -> list[bytes]:
    """One of each kind of request that the clients sent, and some more of those that differ in content."""
    broker, proxy = recorded_broker
    FuzzedBroker(broker).close()  # makes the topics
    use_every_client(proxy.bootstrap)
    use_transactions(proxy.bootstrap)
    by_kind: dict[bytes, list[bytes]] = {}
    for payload in proxy.requests:
        by_kind.setdefault(payload[:4], []).append(payload)
    return [payload for same_kind in by_kind.values() for payload in same_kind[:8]]


@fuzz_timeout
def test_given_recorded_requests_of_real_clients_when_replayed_with_flipped_bits_then_the_broker_lives(
    recorded_broker: tuple[BrokerProcess, RecordingProxy], recorded: list[bytes]
) -> None:
    broker, _ = recorded_broker
    assert {api_name(payload) for payload in recorded} >= EXPECTED_APIS

    with unharmed(broker, growth_bytes=64 * MIB) as vitals:
        vitals.cpu_limit_s = float("inf")
        target = FuzzedBroker(broker)
        for case, random in cases(USUAL_CASES):
            payload = random.choice(recorded)
            change = with_flipped_bits if random.random() < 0.8 else spoilt
            frame = change(payload, random)
            with told_apart(case, api_name(payload), frame):
                target.send(frame)
            if case % TIDY_UP_EVERY == 0:
                target.tidy_up()
        target.tidy_up()
        target.close()

    print(target.tally)
    assert min(target.tally.answered, target.tally.closed) > 0


def api_name(payload: bytes) -> str:
    return REQUESTS[int.from_bytes(payload[:2], "big")].NAME
