"""What every client that administers topics gets done, and is refused."""

import pytest

from tests.compat.clients.interface import AdminClient, Client, Message, Refused
from tests.compat.topics import UNKNOWN_TOPIC_OR_PARTITION, CreateTopic, eventually_known
from tests.testkit import BrokerProcess, eventually

OFFSET_OUT_OF_RANGE = 1
INVALID_TOPIC_EXCEPTION = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40

NODE_ID = 1


def test_given_a_new_topic_when_described_then_every_partition_has_a_leader(
    admin: AdminClient, topic_name: str
) -> None:
    admin.create_topic(topic_name, partitions=3)

    assert eventually(lambda: topic_name in admin.topic_names())
    assert eventually_known(lambda: admin.partition_leaders(topic_name)) == {0: NODE_ID, 1: NODE_ID, 2: NODE_ID}


def test_given_configs_at_creation_when_described_then_they_are_there_beside_the_defaults(
    admin: AdminClient, topic_name: str
) -> None:
    admin.create_topic(topic_name, configs={"retention.ms": "3600000", "compression.type": "gzip"})

    configs = eventually_known(lambda: admin.topic_configs(topic_name))

    assert (configs["retention.ms"], configs["compression.type"]) == ("3600000", "gzip")
    assert configs["message.timestamp.type"] == "CreateTime"


def test_given_a_topic_when_its_configs_are_altered_then_described_as_altered(admin: AdminClient, topic: str) -> None:
    admin.set_topic_configs(topic, {"retention.ms": "7200000", "cleanup.policy": "delete"})

    assert eventually(lambda: admin.topic_configs(topic)["retention.ms"] == "7200000")


def test_given_a_topic_when_partitions_are_added_then_they_can_be_written(
    admin: AdminClient, topic: str, writer: Client
) -> None:
    admin.grow_topic(topic, partitions=4)

    assert eventually(lambda: set(admin.partition_leaders(topic)) == {0, 1, 2, 3})
    assert writer.produce(topic, [Message(b"in the new partition")], partition=3) == [0]


def test_given_records_when_deleted_before_an_offset_then_the_log_starts_there(
    admin: AdminClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"%d" % number) for number in range(10)])

    low_watermark = admin.delete_records(topic, before_offset=4)

    assert low_watermark == 4
    assert writer.bounds(topic) == (4, 10)
    assert [record.message.value for record in writer.consume(topic, 6, offset=4)] == [
        b"4",
        b"5",
        b"6",
        b"7",
        b"8",
        b"9",
    ]


def test_given_a_topic_when_deleted_then_gone_and_its_name_can_be_used_again(
    admin: AdminClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"of the old topic")])

    admin.delete_topic(topic)
    eventually(lambda: topic not in admin.topic_names())
    admin.create_topic(topic)

    eventually_known(lambda: admin.partition_leaders(topic))
    assert writer.bounds(topic) == (0, 0)


def test_given_a_broker_when_the_cluster_is_described_then_its_address_is_the_one_connected_to(
    admin: AdminClient, broker: BrokerProcess
) -> None:
    cluster = admin.cluster()

    assert cluster.nodes == {(NODE_ID, *broker.address)}
    assert cluster.controller_id == NODE_ID
    assert cluster.cluster_id is None or len(cluster.cluster_id) >= 16


def test_given_an_existing_topic_when_created_again_then_refused(admin: AdminClient, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.create_topic(topic)

    assert refusal.value.error_code == TOPIC_ALREADY_EXISTS


def test_given_a_name_with_a_slash_when_created_then_refused(admin: AdminClient) -> None:
    with pytest.raises(Refused) as refusal:
        admin.create_topic("no/slashes")

    assert refusal.value.error_code == INVALID_TOPIC_EXCEPTION


def test_given_no_such_config_when_topic_is_created_then_refused(admin: AdminClient, topic_name: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.create_topic(topic_name, configs={"retention.millis": "1"})

    assert refusal.value.error_code == INVALID_CONFIG


def test_given_a_value_out_of_range_when_configs_are_altered_then_refused(admin: AdminClient, topic: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.set_topic_configs(topic, {"max.message.bytes": "-5"})

    assert refusal.value.error_code == INVALID_CONFIG


def test_given_fewer_partitions_when_a_topic_is_grown_then_refused(
    admin: AdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=3)

    with pytest.raises(Refused) as refusal:
        admin.grow_topic(topic, partitions=2)

    assert refusal.value.error_code == INVALID_PARTITIONS


def test_given_an_unknown_topic_when_deleted_then_refused(admin: AdminClient, topic_name: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.delete_topic(topic_name)

    assert refusal.value.error_code == UNKNOWN_TOPIC_OR_PARTITION
