"""What only Kafka's own Java client does, or tells."""

from pathlib import Path

import pytest

from tests.compat.clients.interface import Client, Message, Refused
from tests.compat.clients.java import JavaAdminClient, JavaClient, message_of
from tests.compat.topics import CreateTopic, eventually_known
from tests.testkit import BrokerProcess, eventually, stored_batches
from tests.testkit.java import JavaDriver

NODE_ID = 1
MESSAGE_TOO_LARGE = 10
T0_MS = 1_700_000_000_000


@pytest.fixture
def java(broker: BrokerProcess, java_driver: JavaDriver) -> JavaClient:
    return JavaClient(broker.bootstrap, java_driver)


@pytest.fixture
def java_admin(broker: BrokerProcess, java_driver: JavaDriver) -> JavaAdminClient:
    return JavaAdminClient(broker.bootstrap, java_driver)


def test_given_several_partitions_when_consumed_in_small_fetches_then_one_incremental_session_serves_them(
    java: JavaClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(partitions=4)
    for partition in range(4):
        java.produce(topic, [Message(b"%3d" % number * 300) for number in range(30)], partition=partition)
    log_before = len(java.driver.log_text())

    config = {"max.partition.fetch.bytes": 2_000, "max.poll.records": 10, "fetch.max.wait.ms": 100}
    records = java.call("consume", topic=topic, positions=dict.fromkeys(range(4), -1), count=120, config=config)

    for partition in range(4):
        values = [message_of(record).value for record in records if record["partition"] == partition]
        assert values == [b"%3d" % number * 300 for number in range(30)]
    session_log = java.driver.log_text()[log_before:]
    assert session_log.count("created a new incremental fetch session") <= 2  # the second closes the session
    assert session_log.count("Built incremental fetch (sessionId=") >= 3
    assert "FetchSessionTopicIdError" not in session_log and "INVALID_FETCH_SESSION" not in session_log


def test_given_a_driver_that_runs_a_tool_first_when_a_client_comes_then_it_logs_where_it_can_be_read(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    with JavaDriver(tmp_path / "driver.log") as driver:
        client = JavaClient(broker.bootstrap, driver)
        words = ["--bootstrap-server", broker.bootstrap, "--list"]

        driver.call("run_tool", tool="org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", arguments=words)
        client.produce(topic, [Message(b"a")], partition=0)
        client.call("consume", topic=topic, positions={0: 0}, count=1, config={})

        assert "Built full fetch" in driver.log_text()


def test_given_records_when_offsets_are_listed_then_each_spec_names_its_offset(
    java: JavaClient, java_admin: JavaAdminClient, topic: str
) -> None:
    times_ms = [T0_MS, T0_MS + 5_000, T0_MS + 2_000]
    java.produce(topic, [Message(b"x", timestamp_ms=time_ms) for time_ms in times_ms])

    found = {
        spec: java_admin.call("list_offsets", topic=topic, partition=0, spec=spec)["offset"]
        for spec in ["earliest", "latest", "max_timestamp", "earliest_local", "latest_tiered", str(T0_MS + 1)]
    }

    # Nothing is tiered: the local log is the whole log, and no offset is the latest tiered one.
    assert found == {
        "earliest": 0,
        "latest": 3,
        "max_timestamp": 1,
        "earliest_local": 0,
        "latest_tiered": -1,
        str(T0_MS + 1): 1,
    }
    assert java_admin.call("list_offsets", topic=topic, partition=0, spec="max_timestamp")["timestamp"] == T0_MS + 5_000


def test_given_an_empty_topic_when_offsets_are_listed_then_no_record_has_the_largest_timestamp(
    java_admin: JavaAdminClient, topic: str
) -> None:
    found = java_admin.call("list_offsets", topic=topic, partition=0, spec="max_timestamp")

    assert (found["offset"], found["timestamp"]) == (-1, -1)


def test_given_records_when_log_dirs_are_described_then_the_size_is_that_of_the_log_on_disk(
    java: JavaClient, java_admin: JavaAdminClient, topic: str, broker: BrokerProcess
) -> None:
    java.produce(topic, [Message(b"x" * 10_000)])

    (directory,) = java_admin.call("describe_log_dirs", broker=NODE_ID)

    log_directory = Path(directory["path"]) / f"{topic}-0"
    assert log_directory.parent == broker.data
    assert directory["error"] is None
    assert directory["sizes"][f"{topic}-0"] == sum(log.stat().st_size for log in log_directory.glob("*.log")) > 10_000
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0


def test_given_an_override_when_configs_are_described_then_source_and_type_are_told(
    java_admin: JavaAdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"retention.ms": "1000"})

    configs = java_admin.call("describe_configs", topic=topic)

    described = {name: (configs[name]["source"], configs[name]["type"]) for name in ["retention.ms", "cleanup.policy"]}
    assert described == {
        "retention.ms": ("DYNAMIC_TOPIC_CONFIG", "LONG"),
        "cleanup.policy": ("DEFAULT_CONFIG", "LIST"),
    }
    assert configs["retention.ms"]["synonyms"] >= 1  # the topic's own value comes first of those that would apply
    assert not any(entry["read_only"] or entry["sensitive"] for entry in configs.values())


def test_given_an_override_when_reset_then_the_default_is_back(
    java_admin: JavaAdminClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"max.message.bytes": "5000"})

    java_admin.call("alter_configs", topic=topic, configs={"max.message.bytes": None})

    def entry() -> tuple[str, str]:
        described = java_admin.call("describe_configs", topic=topic)["max.message.bytes"]
        return described["value"], described["source"]

    assert eventually(lambda: entry() == ("1048588", "DEFAULT_CONFIG"))


def test_given_a_broker_when_its_configs_are_described_then_they_are_kafkas_keys(java_admin: JavaAdminClient) -> None:
    configs = java_admin.call("describe_configs", broker=NODE_ID)

    assert configs["node.id"]["value"] == str(NODE_ID)
    assert {"log.segment.bytes", "num.partitions", "message.max.bytes", "auto.create.topics.enable"} <= set(configs)


def test_given_a_recreated_topic_when_described_then_its_topic_id_is_another(
    java_admin: JavaAdminClient, topic_name: str
) -> None:
    def create_and_describe() -> tuple[str, str]:
        created = java_admin.call("create_topic", topic=topic_name, partitions=2)
        assert (created["partitions"], created["replication_factor"]) == (2, 1)
        described = eventually_known(lambda: java_admin.call("describe_topic", topic=topic_name))
        return created["topic_id"], described["topic_id"]

    first = create_and_describe()
    java_admin.delete_topic(topic_name)
    eventually(lambda: topic_name not in java_admin.topic_names())
    second = create_and_describe()

    assert first[0] == first[1] and second[0] == second[1]
    assert first[0] != second[0]


def test_given_log_append_time_when_consumed_then_the_brokers_time_as_acknowledged(
    java: JavaClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    record = {"partition": 0, "key": None, "value": "eA==", "timestamp": T0_MS}

    (acknowledged,) = java.call("produce", topic=topic, records=[record])

    (consumed,) = java.call("consume", topic=topic, positions={0: 0}, count=1)
    assert consumed["timestamp_type"] == "LogAppendTime"
    assert consumed["timestamp"] == acknowledged["timestamp"] > T0_MS


def test_given_a_topics_own_compression_when_produced_uncompressed_then_stored_in_the_topics_codec(
    java: JavaClient, create_topic: CreateTopic, broker: BrokerProcess
) -> None:
    topic = create_topic(configs={"compression.type": "zstd"})
    values = [b"%d" % number * 100 for number in range(50)]

    java.produce(topic, [Message(value) for value in values])

    assert {batch.codec for batch in stored_batches(broker, topic)} == {"zstd"}
    assert [record.message.value for record in java.consume(topic, 50)] == values


def test_given_a_record_over_max_message_bytes_when_produced_then_refused_and_nothing_stored(
    java: JavaClient, create_topic: CreateTopic
) -> None:
    topic = create_topic(configs={"max.message.bytes": "1000"})

    with pytest.raises(Refused) as refusal:
        java.produce(topic, [Message(b"x" * 2_000)])

    assert refusal.value.error_code == MESSAGE_TOO_LARGE
    assert java.bounds(topic) == (0, 0)


def test_given_no_topic_when_produced_to_then_created_with_the_defaults(
    java: JavaClient, java_admin: JavaAdminClient, topic_name: str
) -> None:
    assert java.produce(topic_name, [Message(b"first")]) == [0]

    assert java_admin.partition_leaders(topic_name) == {0: NODE_ID}


def test_given_a_restarted_consumer_when_it_asks_again_then_leader_epochs_come_with_the_records(
    java: JavaClient, topic: str, writer: Client
) -> None:
    writer.produce(topic, [Message(b"x")])

    (record,) = java.call("consume", topic=topic, positions={0: 0}, count=1)

    assert record["leader_epoch"] >= 0


def test_given_metadata_that_is_no_raft_log_when_its_quorum_is_asked_for_then_the_tool_says_that_there_is_none(
    broker: BrokerProcess, java_driver: JavaDriver
) -> None:
    words = ["--bootstrap-server", broker.bootstrap, "describe", "--status"]

    answer = java_driver.call("run_tool", tool="org.apache.kafka.tools.MetadataQuorumCommand", arguments=words)

    assert answer["code"] == 1
    assert "UnsupportedVersionException" in answer["printed"]
    assert "DESCRIBE_QUORUM" in answer["printed"]
