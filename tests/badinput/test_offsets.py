"""Rows 55 to 57: offsets, times and epochs that are nowhere, and APIs that are for brokers only."""

from typing import Any

import pytest

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.badinput.batches import a_batch
from tests.badinput.rows import row
from tests.badinput.unharmed import ANSWER_TIMEOUT_S
from tests.badinput.wire import NO_TAGS, framed, header
from tests.testkit import BrokerProcess, RawClient
from tests.testkit.asking import create_usable_topic, fetch, produce

pytestmark = pytest.mark.xdist_group("badinput-offsets")

TOPIC = "asked-about"
EMPTY_TOPIC = "never-written-to"
RECORDS = 3
INT32_MAX = 2**31 - 1
INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.fixture(scope="module", autouse=True)
def topics_are_there(module_broker: BrokerProcess) -> None:
    # Not called `topic`: a parameter of that name would take its place.
    with RawClient(module_broker.address, timeout=ANSWER_TIMEOUT_S) as client:
        create_usable_topic(client, EMPTY_TOPIC)
        create_usable_topic(client, TOPIC)
        produce(client, TOPIC, a_batch(*[b"record"] * RECORDS))


# Row 55


@pytest.mark.parametrize(
    "offset",
    [
        row(55, "one past the high watermark", RECORDS + 1),
        row(55, "largest offset", INT64_MAX),
        row(55, "minus two", -2),
        row(55, "smallest offset", INT64_MIN),
    ],
)
def test_given_an_offset_that_is_not_there_when_records_are_deleted_before_it_then_it_is_out_of_range(
    client: RawClient, offset: int
) -> None:
    answer = delete_records(client, TOPIC, 0, offset)

    assert ErrorCode(answer) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch(client, TOPIC).log_start_offset == 0


@pytest.mark.parametrize(
    ("topic", "partition"),
    [row(55, "unknown topic", "never-made", 0), row(55, "unknown partition", TOPIC, 7), row(55, "negative", TOPIC, -1)],
)
def test_given_a_partition_that_does_not_exist_when_its_records_are_deleted_then_it_is_unknown(
    client: RawClient, topic: str, partition: int
) -> None:
    answer = delete_records(client, topic, partition, 0)

    assert ErrorCode(answer) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def delete_records(client: RawClient, topic: str, partition: int, offset: int) -> int:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=5_000)
    ((row,),) = (each.partitions for each in client.exchange(request, 2, DeleteRecordsResponse).topics)
    return row.error_code


# Row 56


@pytest.mark.parametrize(
    ("version", "timestamp", "codes"),
    [
        row(56, "latest tiered before its version", 1, -5, {ErrorCode.UNSUPPORTED_VERSION}),
        row(56, "latest tiered", 9, -5, {ErrorCode.NONE}),
        row(56, "no such special time", 9, -99, {ErrorCode.UNSUPPORTED_VERSION}),
        row(56, "smallest time", 9, INT64_MIN, {ErrorCode.UNSUPPORTED_VERSION}),
        row(56, "end of time", 9, INT64_MAX, {ErrorCode.NONE}),
    ],
)
def test_given_an_odd_time_when_its_offset_is_asked_then_the_partition_is_answered(
    client: RawClient, version: int, timestamp: int, codes: set[ErrorCode]
) -> None:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)

    answer = list_offsets(client, version, [asked])

    assert {ErrorCode(each.error_code) for each in answer} <= codes
    assert [each.offset for each in answer] == [-1]


def test_row56_given_a_hundred_thousand_partitions_when_their_offsets_are_asked_then_each_is_answered(
    client: RawClient,
) -> None:
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(1, 100_001)]

    answer = list_offsets(client, 7, asked)

    assert {each.error_code for each in answer} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(answer) == len(asked)


def list_offsets(client: RawClient, version: int, asked: list[ListOffsetsPartition]) -> list[Any]:
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)])
    (topic,) = client.exchange(request, version, ListOffsetsResponse).topics
    return topic.partitions


@pytest.mark.parametrize(
    ("topic", "epoch", "current_epoch", "code", "end"),
    [
        row(56, "largest epoch", TOPIC, INT32_MAX, -1, ErrorCode.NONE, (-1, -1)),
        row(56, "epoch before the first", TOPIC, -7, -1, ErrorCode.NONE, (-7, 0)),
        row(56, "current epoch from the future", TOPIC, 0, INT32_MAX, ErrorCode.UNKNOWN_LEADER_EPOCH, (-1, -1)),
        row(56, "largest epoch of an empty log", EMPTY_TOPIC, INT32_MAX, -1, ErrorCode.NONE, (-1, -1)),
        # Kafka notes the epoch of a leader before its first record.
        row(56, "negative epoch of an empty log", EMPTY_TOPIC, -7, -1, ErrorCode.NONE, (-1, -1), only_ours=True),
    ],
)
def test_given_an_epoch_that_never_was_when_its_end_is_asked_then_the_partition_is_answered(
    client: RawClient, topic: str, epoch: int, current_epoch: int, code: ErrorCode, end: tuple[int, int]
) -> None:
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current_epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])])

    ((answer,),) = (each.partitions for each in client.exchange(request, 4, OffsetForLeaderEpochResponse).topics)

    assert ErrorCode(answer.error_code) == code
    assert (answer.leader_epoch, answer.end_offset) == end


# Row 57

BROKER_APIS = {
    "LeaderAndIsr": (4, 5),
    "StopReplica": (5, 3),
    "UpdateMetadata": (6, 7),
    "ControlledShutdown": (7, 3),
    "WriteTxnMarkers": (27, 1),
    "Vote": (52, 0),
    "BeginQuorumEpoch": (53, 0),
    "AlterPartition": (56, 2),
    "Envelope": (58, 0),
    "FetchSnapshot": (59, 0),
    "BrokerRegistration": (62, 0),
    "BrokerHeartbeat": (63, 0),
    "AllocateProducerIds": (67, 0),
    "ControllerRegistration": (70, 0),
    "AssignReplicasToDirs": (73, 0),
    "InitializeShareGroupState": (83, 0),
}
OPEN_WITHOUT_AN_AUTHORIZER = {"WriteTxnMarkers", "InitializeShareGroupState"}


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        row(57, name, api_key, version, only_ours=name in OPEN_WITHOUT_AN_AUTHORIZER)
        for name, (api_key, version) in BROKER_APIS.items()
    ],
)
def test_given_an_api_of_brokers_when_a_client_asks_then_the_connection_is_closed(
    client: RawClient, api_key: int, version: int
) -> None:
    client.send_bytes(framed(header(api_key, version, tags=NO_TAGS) + bytes(64)))

    assert client.is_closed_by_broker()
