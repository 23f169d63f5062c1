"""What confluent-kafka does beyond what every client does: long-lived clients, and the rest of its admin."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as Record
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tests.compat.clients.confluent import ConfluentAdminClient, ConfluentClient
from tests.compat.clients.interface import Client, Message
from tests.compat.topics import CreateTopic, eventually_known
from tests.testkit import BrokerProcess, eventually

T0_MS = 1_700_000_000_000


@pytest.fixture
def confluent(broker: BrokerProcess) -> ConfluentClient:
    return ConfluentClient(broker.bootstrap)


@pytest.fixture
def admin(broker: BrokerProcess) -> ConfluentAdminClient:
    return ConfluentAdminClient(broker.bootstrap)


@pytest.fixture
def consumer(confluent: ConfluentClient) -> Iterator[Consumer]:
    with closing(confluent.consumer()) as consumer:
        yield consumer


def next_record(consumer: Consumer) -> Record:
    record = eventually(lambda: consumer.poll(0.2), timeout=20, message="no record came")
    assert record.error() is None, record.error()
    return record


def test_given_five_requests_in_flight_when_idempotent_producer_sends_many_then_each_once_and_in_order(
    confluent: ConfluentClient, broker: BrokerProcess, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=3)
    config = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 50, "compression.type": "lz4"}
    producer = Producer({"bootstrap.servers": broker.bootstrap, **config})

    for number in range(9_000):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(30) == 0

    for partition in range(3):
        received = confluent.consume(topic, 3_000, partition=partition)
        assert [record.offset for record in received] == list(range(3_000))
        assert [record.message.value for record in received] == [
            b"%d" % number for number in range(partition, 9_000, 3)
        ]


def test_given_a_consumer_at_the_end_when_a_record_is_appended_then_its_long_poll_wakes(
    confluent: ConfluentClient, topic: str, writer: Client
) -> None:
    # The poll may wait longer than the test does: only the append can end it in time.
    with closing(confluent.consumer(**{"fetch.wait.max.ms": 60_000, "socket.timeout.ms": 90_000})) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        writer.produce(topic, [Message(b"first")])
        assert next_record(consumer).value() == b"first"

        writer.produce(topic, [Message(b"second")])

        assert next_record(consumer).value() == b"second"


def test_given_a_consumer_when_it_seeks_back_and_forth_then_records_come_from_there(
    consumer: Consumer, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"%d" % number) for number in range(10)])
    consumer.assign([TopicPartition(topic, 0, 5)])
    assert next_record(consumer).value() == b"5"

    seen = []
    for offset in (2, 9, 0):
        consumer.seek(TopicPartition(topic, 0, offset))
        seen.append(next_record(consumer).value())

    assert seen == [b"2", b"9", b"0"]


def test_given_a_consumer_from_the_end_when_a_record_is_appended_then_only_that_one(
    consumer: Consumer, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"old")])
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    # Only a consumer that has found the end knows the high watermark: what comes after that is new.
    partition = TopicPartition(topic, 0)
    eventually(lambda: consumer.poll(0.05) is None and consumer.get_watermark_offsets(partition, cached=True)[1] == 1)

    writer.produce(topic, [Message(b"new")])

    assert next_record(consumer).value() == b"new"


def test_given_deleted_records_when_consumed_from_before_then_reset_to_the_log_start(
    confluent: ConfluentClient, admin: ConfluentAdminClient, topic: str
) -> None:
    confluent.produce(topic, [Message(b"%d" % number) for number in range(10)])
    admin.delete_records(topic, before_offset=7)

    with closing(confluent.consumer(**{"auto.offset.reset": "earliest"})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 2)])
        record = next_record(consumer)

    assert (record.offset(), record.value()) == (7, b"7")


def test_given_an_offset_past_the_end_when_consumed_without_reset_then_offset_out_of_range(
    consumer: Consumer, topic: str
) -> None:
    consumer.assign([TopicPartition(topic, 0, 100)])

    error = eventually(lambda: consumer.poll(0.2), timeout=20).error()

    assert error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in error.str()


def test_given_a_living_producer_when_its_topic_is_recreated_then_it_writes_to_the_new_one(
    confluent: ConfluentClient, admin: ConfluentAdminClient, broker: BrokerProcess, topic: str
) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.fast.interval.ms": 50})

    def produce(value: bytes) -> None:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
        assert producer.flush(20) == 0

    produce(b"old")
    old_id = admin.topic_id(topic)
    admin.delete_topic(topic)
    eventually(lambda: topic not in admin.topic_names())
    admin.create_topic(topic)
    new_id = eventually_known(lambda: admin.topic_id(topic))
    produce(b"new")

    assert new_id != old_id
    assert failures == []
    assert [record.message.value for record in confluent.consume(topic, 1)] == [b"new"]


def test_given_older_alter_configs_when_sent_then_it_replaces_every_override(
    admin: ConfluentAdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"max.message.bytes": "5000"})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "60000"})

    with pytest.warns(DeprecationWarning):
        (future,) = admin.admin.alter_configs([resource]).values()
    future.result(10)

    def overridden() -> tuple[str | None, str | None]:
        configs = admin.topic_configs(topic)
        return configs["segment.ms"], configs["max.message.bytes"]

    assert eventually(lambda: overridden() == ("60000", "1048588"))


def test_given_a_list_config_when_appended_to_and_subtracted_from_then_the_list_changes(
    admin: ConfluentAdminClient, topic: str
) -> None:
    def change(operation: AlterConfigOpType, value: str) -> None:
        entry = ConfigEntry("cleanup.policy", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (future,) = admin.admin.incremental_alter_configs([resource]).values()
        future.result(10)

    change(AlterConfigOpType.APPEND, "compact")
    assert eventually(lambda: admin.topic_configs(topic)["cleanup.policy"] == "delete,compact")

    change(AlterConfigOpType.SUBTRACT, "compact")
    assert eventually(lambda: admin.topic_configs(topic)["cleanup.policy"] == "delete")


def test_given_validate_only_when_topics_are_created_then_none_is(admin: ConfluentAdminClient, topic_name: str) -> None:
    (future,) = admin.admin.create_topics([NewTopic(topic_name, 1)], validate_only=True).values()
    future.result(10)

    assert topic_name not in admin.topic_names()


def test_given_records_when_admin_lists_offsets_then_earliest_latest_and_by_timestamp(
    admin: ConfluentAdminClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x", timestamp_ms=T0_MS + number) for number in range(5)])

    def listed(spec: OffsetSpec) -> int:
        (future,) = admin.admin.list_offsets({TopicPartition(topic, 0): spec}).values()
        offset: int = future.result(10).offset
        return offset

    found = [
        listed(spec)
        for spec in (
            OffsetSpec.earliest(),
            OffsetSpec.latest(),
            OffsetSpec.max_timestamp(),
            OffsetSpec.for_timestamp(T0_MS + 3),
        )
    ]

    assert found == [0, 5, 4, 3]
