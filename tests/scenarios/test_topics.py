"""Topics over the wire: created, described, grown, deleted and created anew."""

from __future__ import annotations

import pytest

from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicId
from penstock.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    Cursor,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tests.testkit import Broker, RawClient
from tests.testkit.asking import a_batch, create_topic, fetch, offset_at, produce, values_of

EARLIEST, LATEST = -2, -1
UNKNOWN_ID = TopicId(b"no such topic id")


def create(client: RawClient, *topics: CreatableTopic, version: int = 7, **options: bool) -> list[CreatableTopicResult]:
    return client.exchange(CreateTopicsRequest(topics=list(topics), **options), version, CreateTopicsResponse).topics


def a_topic(name: str, partitions: int = 1, replicas: int = 1) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)


def described(client: RawClient, *topics: str | TopicId, version: int = 13, create: bool = False) -> MetadataResponse:
    asked = [
        MetadataRequestTopic(name=topic) if isinstance(topic, str) else MetadataRequestTopic(topic_id=topic, name=None)
        for topic in topics
    ]
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=create)
    return client.exchange(request, version, MetadataResponse)


def describe(client: RawClient, topic: str | TopicId, version: int = 13) -> MetadataResponseTopic:
    (row,) = described(client, topic, version=version).topics
    return row


def delete(client: RawClient, *topics: DeleteTopicState) -> list[DeletableTopicResult]:
    return client.exchange(DeleteTopicsRequest(topics=list(topics)), 6, DeleteTopicsResponse).responses


@pytest.mark.parametrize("version", range(2, 8))
def test_given_any_version_when_a_topic_is_created_then_metadata_has_it_at_once(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        topic = a_topic(topic_name, 3)
        topic.configs = [CreatableTopicConfig(name="retention.ms", value="777")]

        (result,) = create(client, topic, version=version)

        row = describe(client, topic_name)
        assert (result.name, result.error_code) == (topic_name, 0)
        assert [partition.partition_index for partition in row.partitions] == [0, 1, 2]
        assert {partition.leader_id for partition in row.partitions} == {1}
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            assert result.configs is not None
            assert {config.name: config.value for config in result.configs}["retention.ms"] == "777"
        if version >= 7:
            assert result.topic_id == row.topic_id != NO_TOPIC_ID


def test_given_a_created_topic_when_produced_to_at_once_then_it_takes_records(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=20)

        codes = [produce(client, topic_name, a_batch(b"x"), partition=partition).error_code for partition in range(20)]

        assert codes == [0] * 20


def test_given_defaults_when_a_topic_is_created_then_the_brokers_settings_count(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        (result,) = create(client, a_topic(topic_name, -1, -1))

        assert (result.num_partitions, result.replication_factor) == (1, 1)


def test_given_assignments_when_a_topic_is_created_then_they_are_used_or_refused(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        good, bad = a_topic(topic_name, -1, -1), a_topic(topic_name + "-bad", -1, -1)
        good.assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in (1, 0)]
        bad.assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[99])]

        created, refused = create(client, good, bad)

        assert (created.error_code, created.num_partitions) == (0, 2)
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_given_validate_only_when_asked_then_nothing_is_created(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        (result,) = create(client, a_topic(topic_name), validate_only=True)

        assert result.error_code == 0
        assert describe(client, topic_name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_given_bad_topics_when_created_then_each_gets_its_code_and_a_message(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name + ".a")
        unknown_key = a_topic(topic_name + "-c")
        unknown_key.configs = [CreatableTopicConfig(name="retention.msec", value="1")]
        results = create(
            client,
            a_topic(topic_name + ".a"),
            a_topic(topic_name + "_a"),
            a_topic("../../etc/x"),
            a_topic(topic_name + "-b", partitions=0),
            a_topic(topic_name + "-b2", partitions=10**9),
            a_topic(topic_name + "-b3", replicas=2),
            unknown_key,
            a_topic(topic_name + "-twice"),
            a_topic(topic_name + "-twice"),
        )

        assert [result.error_code for result in results] == [
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_CONFIG,
            ErrorCode.INVALID_REQUEST,
        ]
        assert all(result.error_message for result in results)
        assert "retention.ms" in str(results[6].error_message)


def test_given_a_topic_when_recreated_then_it_is_empty_and_has_another_id(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"old"))
        old_id = describe(client, topic_name).topic_id
        (deleted,) = delete(client, DeleteTopicState(name=topic_name))
        create_topic(client, topic_name)

        produce(client, topic_name, a_batch(b"new"))

        assert (deleted.error_code, deleted.topic_id) == (0, old_id)
        assert describe(client, topic_name).topic_id not in (old_id, NO_TOPIC_ID)
        assert describe(client, old_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert values_of(fetch(client, topic_name, 0)) == [b"new"]


@pytest.mark.parametrize("version", range(1, 7))
def test_given_any_version_when_a_topic_is_deleted_then_it_is_gone_at_once(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic_name)], topic_names=[topic_name])

        (result,) = client.exchange(request, version, DeleteTopicsResponse).responses

        assert (result.name, result.error_code) == (topic_name, 0)
        assert describe(client, topic_name).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert produce(client, topic_name, a_batch(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_given_ids_and_unknown_topics_when_deleted_then_each_gets_its_answer(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        topic_id = describe(client, topic_name).topic_id

        by_id, unknown_id, unknown_name, both = delete(
            client,
            DeleteTopicState(name=None, topic_id=topic_id),
            DeleteTopicState(name=None, topic_id=UNKNOWN_ID),
            DeleteTopicState(name="no-such-topic"),
            DeleteTopicState(name=topic_name, topic_id=topic_id),
        )

        assert (by_id.error_code, by_id.name, by_id.topic_id) == (0, topic_name, topic_id)
        assert (unknown_id.error_code, unknown_id.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
        assert unknown_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert both.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4))
def test_given_any_version_when_partitions_are_added_then_they_take_records_at_once(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        produce(client, topic_name, a_batch(b"kept"))
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name=topic_name, count=3, assignments=None),
                CreatePartitionsTopic(name="no-such-topic", count=3, assignments=None),
            ]
        )

        added, unknown = client.exchange(request, version, CreatePartitionsResponse).results

        assert (added.error_code, unknown.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert len(describe(client, topic_name).partitions) == 3
        assert produce(client, topic_name, a_batch(b"x"), partition=2).error_code == 0
        assert values_of(fetch(client, topic_name, 0)) == [b"kept"]


def test_given_fewer_partitions_or_bad_assignments_when_asked_then_refused(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name, partitions=2)

        def ask(count: int, *assignments: int) -> int:
            rows = [CreatePartitionsAssignment(broker_ids=[broker_id]) for broker_id in assignments]
            topic = CreatePartitionsTopic(name=topic_name, count=count, assignments=rows or None)
            request = CreatePartitionsRequest(topics=[topic], validate_only=True)
            return client.exchange(request, 3, CreatePartitionsResponse).results[0].error_code

        assert ask(1) == ask(2) == ask(10**9) == ErrorCode.INVALID_PARTITIONS
        assert ask(4, 1) == ask(3, 77) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert ask(3, 1) == 0


@pytest.mark.parametrize("version", range(14))
def test_given_any_version_when_metadata_is_asked_then_it_names_broker_leader_and_what_it_does_not_know(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)

        response = described(client, topic_name, "no-such-topic", "no/topic", version=version, create=version < 4)

        known, unknown, illegal = response.topics
        assert [(each.node_id, each.host, each.port) for each in response.brokers] == [(1, *broker.address)]
        assert (known.error_code, known.name, len(known.partitions)) == (0, topic_name, 1)
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        if version >= 4:
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= 7:
            assert known.partitions[0].leader_epoch >= 0
        if version >= 1:
            assert response.controller_id == 1
        if version >= 10:
            assert known.topic_id != NO_TOPIC_ID
    if version < 4:
        with RawClient(broker.address) as client:
            delete(client, DeleteTopicState(name="no-such-topic"))


def test_given_no_topics_when_metadata_is_asked_then_it_means_all_or_none_by_version(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)

        all_in_v0 = client.exchange(MetadataRequest(topics=[]), 0, MetadataResponse)
        none_in_v1 = client.exchange(MetadataRequest(topics=[]), 1, MetadataResponse)
        all_in_v1 = client.exchange(MetadataRequest(topics=None), 1, MetadataResponse)

        assert topic_name in [topic.name for topic in all_in_v0.topics]
        assert none_in_v1.topics == []
        assert topic_name in [topic.name for topic in all_in_v1.topics]


def test_given_an_unknown_topic_when_auto_creation_is_allowed_then_it_is_ready_to_use(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        (row,) = described(client, topic_name, create=True).topics

        assert (row.error_code, len(row.partitions)) == (0, 1)
        assert produce(client, topic_name, a_batch(b"x")).error_code == 0


def test_given_a_broker_without_auto_creation_or_deletion_when_asked_then_it_does_neither(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("strict") / "data"
    with (
        Broker.start(data, auto_create_topics_enable=False, delete_topic_enable=False) as strict,
        RawClient(strict.address) as client,
    ):
        (row,) = described(client, "orders", create=True).topics
        create_topic(client, "orders")
        (refused,) = delete(client, DeleteTopicState(name="orders"))
        old = DeleteTopicsRequest(topic_names=["orders"])
        (refused_v1,) = client.exchange(old, 1, DeleteTopicsResponse).responses

        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused.error_code == ErrorCode.TOPIC_DELETION_DISABLED
        assert refused_v1.error_code == ErrorCode.INVALID_REQUEST
        assert describe(client, "orders").error_code == 0


def test_given_topic_ids_when_metadata_is_asked_then_names_come_back(broker: Broker, topic_name: str) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        topic_id = describe(client, topic_name).topic_id

        known, unknown = described(client, topic_id, UNKNOWN_ID).topics
        too_old = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=topic_name)])
        (refused,) = client.exchange(too_old, 11, MetadataResponse).topics

        assert (known.error_code, known.name) == (0, topic_name)
        assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, UNKNOWN_ID)
        assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_given_authorized_operations_when_asked_for_then_they_are_told_and_otherwise_not(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic_name)],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )

        told = client.exchange(asked, 10, MetadataResponse)

        assert told.topics[0].topic_authorized_operations == 0b110111111000
        assert told.cluster_authorized_operations == 0b1111110100000
        assert describe(client, topic_name).topic_authorized_operations == -(2**31)


def page(
    client: RawClient, names: list[str], limit: int, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit, cursor=cursor
    )
    return client.exchange(request, 0, DescribeTopicPartitionsResponse)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 2000])
def test_given_a_small_page_when_described_page_by_page_then_every_partition_comes_once(
    broker: Broker, topic_name: str, limit: int
) -> None:
    names = [f"{topic_name}-{letter}" for letter in "bca"]
    with RawClient(broker.address) as client:
        for name, partitions in zip(names, (3, 2, 2), strict=True):
            create_topic(client, name, partitions=partitions)

        seen: list[tuple[str, int]] = []
        cursor: Cursor | None = None
        for _ in range(8):
            answer = page(client, names, limit, cursor)
            rows = [(str(topic.name), each.partition_index) for topic in answer.topics for each in topic.partitions]
            assert len(rows) <= limit
            seen += rows
            cursor = answer.next_cursor
            if cursor is None:
                break

        expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]
        assert seen == [(f"{topic_name}-{letter}", index) for letter, index in expected]


def test_given_unknown_topics_or_a_bad_cursor_when_described_then_rows_with_codes(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)

        answer = page(client, [topic_name, "no/topic", "no-such-topic"], 0)
        bad = page(client, [topic_name], 10, Cursor(topic_name=topic_name, partition_index=-5))
        beyond = page(client, [topic_name], 10, Cursor(topic_name=topic_name, partition_index=50))
        everything = page(client, [], 2000)

        codes = {topic.name: topic.error_code for topic in answer.topics}
        assert codes == {
            topic_name: 0,
            "no/topic": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "no-such-topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert bad.topics[0].error_code == ErrorCode.INVALID_REQUEST
        assert (beyond.topics[0].partitions, beyond.next_cursor) == ([], None)
        assert topic_name in [topic.name for topic in everything.topics]


def delete_before(
    client: RawClient, topic: str, offset: int, partition: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)]
            )
        ],
        timeout_ms=1000,
    )
    return client.exchange(request, version, DeleteRecordsResponse).topics[0].partitions[0]


@pytest.mark.parametrize("version", range(3))
def test_given_records_when_deleted_before_an_offset_then_the_log_starts_there(
    broker: Broker, topic_name: str, version: int
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        for value in (b"a", b"b", b"c"):
            produce(client, topic_name, a_batch(value))

        result = delete_before(client, topic_name, 2, version=version)

        assert (result.error_code, result.low_watermark) == (0, 2)
        assert offset_at(client, topic_name, EARLIEST).offset == 2
        assert values_of(fetch(client, topic_name, 2)) == [b"c"]
        assert fetch(client, topic_name, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_given_minus_one_or_impossible_offsets_when_records_are_deleted_then_as_kafka_does(
    broker: Broker, topic_name: str
) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, topic_name)
        create_topic(client, topic_name + "-compacted", cleanup_policy="compact")
        produce(client, topic_name, a_batch(b"a", b"b"))

        beyond = delete_before(client, topic_name, 3)
        negative = delete_before(client, topic_name, -7)
        everything = delete_before(client, topic_name, -1)

        assert (beyond.error_code, beyond.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
        assert negative.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (everything.error_code, everything.low_watermark) == (0, 2)
        assert offset_at(client, topic_name, LATEST).offset == 2
        assert delete_before(client, "no-such-topic", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert delete_before(client, topic_name, 0, partition=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert delete_before(client, topic_name + "-compacted", 0).error_code == ErrorCode.POLICY_VIOLATION


def test_given_a_broker_that_was_killed_when_started_again_then_topics_ids_and_epochs_are_right(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Broker.start(tmp_path_factory.mktemp("killed") / "data") as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "kept", partitions=2, retention_ms=12345)
            create_topic(client, "deleted")
            delete(client, DeleteTopicState(name="deleted"))
            before = describe(client, "kept")
        broker.kill()
        broker.restart()

        with RawClient(broker.address) as client:
            after = describe(client, "kept")
            assert after.topic_id == before.topic_id
            assert [each.leader_epoch for each in after.partitions] == [
                each.leader_epoch + 1 for each in before.partitions
            ]
            assert describe(client, "deleted").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
