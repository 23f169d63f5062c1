"""Single questions to a broker over a raw connection, in the words of the tests: one topic, one partition, one answer.

Unlike the rest of the kit it speaks through `penstock.protocol`, which the oracle tests hold against kio.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.core.errors import ErrorCode
from penstock.protocol.batch import HEADER_BYTES, read_header
from penstock.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.records import Record, StoredRecord, build_batch, iterate
from tests.testkit.raw_client import RawClient
from tests.testkit.waiting import eventually

PRODUCE_VERSION = 12
FETCH_VERSION = 12
NOW_MS = 1_700_000_000_000

# What a partition is answered that is about to be there.
_NOT_YET = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
)

# Topics


def ask_to_create(
    client: RawClient,
    name: str,
    partitions: int = 1,
    *,
    replication_factor: int = 1,
    **configs: Any,
) -> CreatableTopicResult:
    """Configurations are Kafka's keys, with underscores for dots (`retention_ms=1`), or as they are."""
    rows = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, configs=rows)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    (result,) = client.exchange(request, 7, CreateTopicsResponse).topics
    return result


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: Any) -> None:
    result = ask_to_create(client, name, partitions, **configs)
    assert result.error_code == 0, result


def create_topic_on(client: RawClient, name: str, *, replicas: Sequence[int], **configs: Any) -> None:
    """A topic of one partition, on these brokers; the first leads. Asked until the controller knows them all."""
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    rows = [CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=rows)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)

    def created() -> bool:
        (result,) = client.exchange(request, 7, CreateTopicsResponse).topics
        assert result.error_code in (0, ErrorCode.INVALID_REPLICA_ASSIGNMENT), result
        return result.error_code == 0

    eventually(created)


def create_usable_topic(
    client: RawClient, name: str, partitions: int = 1, *, exists_ok: bool = False, **configs: Any
) -> None:
    """Returns when every partition can be used, which in Kafka is some time after the answer."""
    result = ask_to_create(client, name, partitions, **configs)
    assert result.error_code == 0 or (exists_ok and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS), result
    eventually(lambda: all(_is_usable(client, name, partition) for partition in range(partitions)))


def _is_usable(client: RawClient, name: str, partition: int) -> bool:
    return fetch(client, name, partition=partition).error_code not in _NOT_YET


def topic_names(client: RawClient) -> set[str]:
    response = client.exchange(MetadataRequest(topics=None), 9, MetadataResponse)
    return {topic.name or "" for topic in response.topics}


def metadata_error(client: RawClient, name: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    (topic,) = client.exchange(request, 9, MetadataResponse).topics
    return topic.error_code


# Producing


def a_batch(*values: bytes, timestamp: int = NOW_MS, **options: Any) -> bytearray:
    """One record per value, a millisecond apart; `options` are those of `build_batch`."""
    return build_batch([Record(None, value, (), timestamp + at) for at, value in enumerate(values)], **options)


def produce_request(
    topic: str,
    batches: Mapping[int, bytes | bytearray | None],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
    **fields: Any,
) -> ProduceRequest:
    """`batches`: partition -> its records."""
    rows = [
        PartitionProduceData(index=index, records=None if records is None else memoryview(records))
        for index, records in batches.items()
    ]
    topics = [TopicProduceData(name=topic, partition_data=rows)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, **fields)


def produce(
    client: RawClient,
    topic: str,
    batch: bytes | bytearray | None,
    *,
    partition: int = 0,
    version: int = PRODUCE_VERSION,
    **fields: Any,
) -> PartitionProduceResponse:
    request = produce_request(topic, {partition: batch}, **fields)
    ((row,),) = (each.partition_responses for each in client.exchange(request, version, ProduceResponse).responses)
    return row


# Consuming


def fetch_request(
    wanted: Mapping[str, Sequence[tuple[int, int]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    partition_max_bytes: int = 1 << 24,
    **fields: Any,
) -> FetchRequest:
    """`wanted`: topic -> (partition, offset) pairs."""
    topics = [
        FetchTopic(
            topic=topic,
            partitions=[
                FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
                for partition, offset in pairs
            ],
        )
        for topic, pairs in wanted.items()
    ]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics, **fields)


def fetch(
    client: RawClient,
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    version: int = FETCH_VERSION,
    **fields: Any,
) -> PartitionData:
    request = fetch_request({topic: [(partition, offset)]}, **fields)
    ((row,),) = (each.partitions for each in client.exchange(request, version, FetchResponse).responses)
    return row


def records_of(data: PartitionData) -> list[StoredRecord]:
    assert data.error_code == 0, data
    content = data.records
    assert isinstance(content, memoryview)
    found: list[StoredRecord] = []
    while len(content) >= HEADER_BYTES and (size := read_header(content).size) <= len(content):
        found += iterate(content[:size])
        content = content[size:]  # what is left may be the beginning of a batch: an answer ends where its limit is
    return found


def values_of(data: PartitionData) -> list[bytes | None]:
    return [record.value for record in records_of(data)]


def offset_at(client: RawClient, topic: str, timestamp: int, version: int = 11) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=[asked])])
    return client.exchange(request, version, ListOffsetsResponse).topics[0].partitions[0]
