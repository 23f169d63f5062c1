"""What kafka-python asks beyond what every client does: the newer APIs, by name."""

import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, OffsetSpec

from tests.compat.clients.interface import Client, Message, Refused
from tests.compat.clients.kafka_python import KafkaPythonAdminClient
from tests.compat.topics import CreateTopic
from tests.testkit import BrokerProcess, eventually

NODE_ID = 1
T0_MS = 1_700_000_000_000


@pytest.fixture
def admin(broker: BrokerProcess) -> KafkaPythonAdminClient:
    return KafkaPythonAdminClient(broker.bootstrap)


def test_given_more_partitions_than_the_limit_when_topic_partitions_are_described_then_pages_with_a_cursor(
    admin: KafkaPythonAdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=5)

    first = admin.run("describe_topic_partitions", [topic], response_partition_limit=3)
    second = admin.run("describe_topic_partitions", [topic], response_partition_limit=3, cursor=first["next_cursor"])

    pages = [
        [partition["partition_index"] for partition in page["topics"][0]["partitions"]] for page in (first, second)
    ]
    assert pages == [[0, 1, 2], [3, 4]]
    assert first["next_cursor"] == {"topic_name": topic, "partition_index": 3}
    assert second["next_cursor"] is None


def test_given_records_when_partition_offsets_are_listed_then_each_spec_names_its_offset(
    admin: KafkaPythonAdminClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x", timestamp_ms=T0_MS + number) for number in range(5)])
    partition = TopicPartition(topic, 0)

    found = [
        admin.run("list_partition_offsets", {partition: spec})[partition].offset
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.MAX_TIMESTAMP, T0_MS + 2)
    ]

    assert found == [0, 5, 4, 2]


def test_given_records_when_log_dirs_are_described_then_this_partition_has_a_size(
    admin: KafkaPythonAdminClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x" * 5_000)])

    described = admin.run("describe_log_dirs", topic_partitions={topic: [0]}, brokers=[NODE_ID])

    (broker,) = described
    (log_dir,) = broker["log_dirs"]
    (listed,) = log_dir["topics"]
    (partition,) = listed["partitions"]
    assert (broker["broker"], log_dir["error_code"], listed["name"]) == (NODE_ID, 0, topic)
    assert partition["partition_size"] > 5_000


def test_given_an_override_when_configs_are_reset_then_the_default_is_back(
    admin: KafkaPythonAdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"max.message.bytes": "5000"})

    admin.run("reset_configs", [ConfigResource("TOPIC", topic, configs={"max.message.bytes": None})])

    assert eventually(lambda: admin.topic_configs(topic)["max.message.bytes"] == "1048588")


def test_given_a_broker_when_asked_for_its_api_versions_then_produce_from_zero_and_topic_ids_in_fetch(
    admin: KafkaPythonAdminClient,
) -> None:
    versions = admin.run("api_versions")

    by_name = {getattr(api, "name", str(api)): tuple(supported) for api, supported in versions.items()}
    # librdkafka before 2.11.1 sends uncompressed to a broker that does not offer Produce from version 0 (KAFKA-18659).
    assert by_name["Produce"] == (0, 13)
    assert by_name["Fetch"] == (4, 18)


def test_given_metadata_that_is_no_raft_log_when_its_quorum_is_asked_for_then_the_client_says_that_there_is_none(
    admin: KafkaPythonAdminClient,
) -> None:
    with pytest.raises(Refused, match=r"does not support .*DescribeQuorum"):
        admin.run("describe_metadata_quorum")
