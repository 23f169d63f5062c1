"""Creating topics and publishing to them, against a real broker."""

import time

import pytest
from confluent_kafka.admin import AdminClient
from kafka.partitioner.default import murmur2

from penstock.sdk import (
    BadConfig,
    BrokerUnreachable,
    Client,
    ClientClosed,
    Delivery,
    MessageTooLarge,
    PartlyPublished,
    Published,
    Refused,
    TopicExists,
    UnknownTopic,
)
from tests.sdk.reading import payloads, read
from tests.testkit import BrokerProcess, broker_under_test, eventually, free_port

TOO_LARGE = b"x" * 2_000_000


def test_given_partitions_when_a_topic_is_created_then_it_has_them(
    broker: BrokerProcess, client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name, partitions=3, replication_factor=1, config={"retention.ms": "12345678"})

    described = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic_name, timeout=10)
    assert len(described.topics[topic_name].partitions) == 3


def test_given_nothing_but_a_name_when_a_topic_is_created_then_the_broker_decides(
    client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name)

    assert client.publish(topic_name, None, "first").offset == 0


def test_given_a_topic_when_it_is_created_again_then_that_is_refused_unless_it_is_fine(
    client: Client, topic: str
) -> None:
    with pytest.raises(TopicExists, match=topic):
        client.create_topic(topic)

    client.create_topic(topic, exist_ok=True)


def test_given_too_few_brokers_when_a_topic_is_created_then_the_brokers_reason_is_told(
    client: Client, topic_name: str
) -> None:
    with pytest.raises(Refused, match=f"{topic_name}.*9") as refusal:
        client.create_topic(topic_name, partitions=1, replication_factor=9)

    assert refusal.value.code == "INVALID_REPLICATION_FACTOR"


def test_given_no_keys_when_published_then_the_partitions_take_turns(client: Client, topic_name: str) -> None:
    client.create_topic(topic_name, partitions=3)

    landed = [client.publish(topic_name, None, str(number)) for number in range(6)]

    assert landed == [Published(topic_name, number % 3, number // 3) for number in range(6)]


def test_given_a_key_when_published_then_it_goes_where_kafkas_java_clients_put_it(
    client: Client, topic_name: str
) -> None:
    client.create_topic(topic_name, partitions=7)
    keys = [f"key-{number}" for number in range(20)]

    landed = client.publish_many(topic_name, [(key, "payload") for key in keys])

    expected = [(murmur2(key.encode()) & 0x7FFFFFFF) % 7 for key in keys]
    assert [one.partition for one in landed] == expected


def test_given_everything_a_message_can_have_when_published_then_it_arrives_so(
    client: Client, topic: str, group: str
) -> None:
    before_ms = time.time_ns() // 1_000_000

    client.publish(topic, "clé", "décrit", headers=[("trace", "42"), ("trace", b"\x00"), ("empty", None)])

    (message,) = read(client, topic, group, 1)
    assert (message.topic, message.partition, message.offset) == (topic, 0, 0)
    assert (message.key, message.payload) == ("clé".encode(), "décrit".encode())
    assert message.headers == (("trace", b"42"), ("trace", b"\x00"), ("empty", None))
    assert before_ms <= message.timestamp_ms <= time.time_ns() // 1_000_000


def test_given_a_tombstone_and_empty_bytes_when_published_then_they_stay_apart(
    client: Client, topic: str, group: str
) -> None:
    client.publish_many(topic, [("gone", None), (b"", b"", {"why": "empty"})])

    tombstone, empty = read(client, topic, group, 2)
    assert (tombstone.key, tombstone.payload) == (b"gone", None)
    assert (empty.key, empty.payload, empty.headers) == (b"", b"", (("why", b"empty"),))


def test_given_many_messages_when_published_then_all_land_in_order(client: Client, topic: str, group: str) -> None:
    count = 5_000

    landed = client.publish_many(topic, ((None, str(number)) for number in range(count)))

    assert [one.offset for one in landed] == list(range(count))
    assert payloads(read(client, topic, group, count, max_batch_size=1_000)) == [str(each) for each in range(count)]


def test_given_one_bad_message_among_many_when_published_then_the_error_says_which(client: Client, topic: str) -> None:
    with pytest.raises(PartlyPublished, match=r"1 of 3 .* number 1: a message of 2000000 bytes") as refusal:
        client.publish_many(topic, [(None, "a"), (None, TOO_LARGE), (None, "c")])

    assert [landed is not None for landed in refusal.value.published] == [True, False, True]
    assert isinstance(refusal.value.failures[1], MessageTooLarge)


def test_given_a_message_that_is_too_large_when_published_then_that_is_said_and_the_next_one_passes(
    client: Client, topic: str
) -> None:
    with pytest.raises(MessageTooLarge, match=f"2000000 bytes .*{topic}"):
        client.publish(topic, None, TOO_LARGE)

    assert client.publish(topic, None, "small").offset == 0


def test_given_no_such_topic_when_published_then_that_is_said_and_none_is_made(client: Client, topic_name: str) -> None:
    for _ in range(2):
        with pytest.raises(UnknownTopic, match=f"no topic '{topic_name}'"):
            client.publish(topic_name, None, "lost")


def test_given_at_most_once_when_published_then_it_lands_and_the_broker_is_not_asked_where(
    broker: BrokerProcess, client: Client, topic: str, group: str
) -> None:
    with Client(broker.bootstrap, delivery=Delivery.AT_MOST_ONCE) as careless:
        landed = careless.publish(topic, None, "a reading")

    assert landed == Published(topic, 0, None)
    assert payloads(read(client, topic, group, 1)) == ["a reading"]


def test_given_no_broker_when_anything_is_asked_then_the_error_says_where_how_long_and_why() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Client(address, timeout_s=0.5) as client:
        for ask in (
            lambda: client.publish("topic", None, "payload"),
            lambda: client.create_topic("topic"),
            lambda: client.consume("topic", "group"),
            lambda: client.commit_offset("topic", "another group", 0, 1),
        ):
            with pytest.raises(BrokerUnreachable, match=rf"{address} within 0\.5 s: .*Connection refused") as failure:
                ask()
            assert (failure.value.address, failure.value.tried_s) == (address, 0.5)


def test_given_a_broker_that_goes_away_when_asked_then_that_is_said_and_when_it_is_back_all_goes_on(
    tmp_path_factory: pytest.TempPathFactory, topic_name: str
) -> None:
    data = tmp_path_factory.mktemp("restarted") / "data"
    with (
        broker_under_test().start(data, port=free_port(), group_initial_rebalance_delay_ms=0) as broker,
        Client(broker.bootstrap, timeout_s=2, config={"reconnect.backoff.max.ms": 200}) as client,
    ):
        client.create_topic(topic_name, partitions=1)
        client.publish(topic_name, None, "before")
        assert payloads(read(client, topic_name, "group", 1)) == ["before"]

        broker.kill()
        with pytest.raises(BrokerUnreachable):
            client.publish(topic_name, None, "nowhere")
        with pytest.raises(BrokerUnreachable):
            client.consume(topic_name, "group", wait_s=0.5)

        broker.restart(same_port=True)
        received: list[str] = []

        def goes_on() -> bool:
            try:
                received.extend(payloads(list(client.consume(topic_name, "group"))))
            except BrokerUnreachable:
                return False  # the group's coordinator takes its time
            return bool(received)

        client.publish(topic_name, None, "after")
        eventually(goes_on, 60, "the consumer goes on")
        assert received == ["after"]


def test_given_settings_that_the_promise_rests_on_when_a_client_is_made_then_they_are_refused() -> None:
    with pytest.raises(ValueError, match=r"may not set acks, enable\.auto\.commit"):
        Client(config={"acks": "1", "enable.auto.commit": True, "client.id": "mine"})


def test_given_a_setting_that_does_not_exist_when_it_is_needed_then_it_is_named(broker: BrokerProcess) -> None:
    with Client(broker.bootstrap, config={"nonsense": "1"}) as client:
        for ask in (
            lambda: client.publish("orders", None, "x"),
            lambda: client.create_topic("orders"),
            lambda: client.consume("orders", "group"),
        ):
            with pytest.raises(BadConfig, match="nonsense"):
                ask()


def test_given_a_closed_client_when_asked_then_it_says_so(broker: BrokerProcess) -> None:
    client = Client(broker.bootstrap)
    client.close()
    client.close()

    for ask in (
        lambda: client.publish("topic", None, "payload"),
        lambda: client.create_topic("topic"),
        lambda: client.consume("topic", "group"),
    ):
        with pytest.raises(ClientClosed):
            ask()
