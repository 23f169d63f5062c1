"""Single questions to a broker, in the words of the tests: one topic, one partition, one answer."""

from collections.abc import Mapping
from typing import Any

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
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
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.testkit import RawClient, eventually

PRODUCE_VERSION = 9
FETCH_VERSION = 12
# What a partition is answered that is about to be there.
NOT_YET = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
)


def produce_request(
    topic: str, partitions: Mapping[int, bytes | None], *, acks: int = -1, timeout_ms: int = 10_000, **fields: Any
) -> ProduceRequest:
    rows = [
        PartitionProduceData(index=index, records=None if records is None else memoryview(records))
        for index, records in partitions.items()
    ]
    topics = [TopicProduceData(name=topic, partition_data=rows)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, **fields)


def produce(
    client: RawClient,
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    version: int = PRODUCE_VERSION,
    **fields: Any,
) -> PartitionProduceResponse:
    request = produce_request(topic, {partition: records}, **fields)
    ((row,),) = (each.partition_responses for each in client.exchange(request, version, ProduceResponse).responses)
    return row


def fetch_request(
    topic: str, offset: int = 0, *, partition: int = 0, partition_max_bytes: int = 1 << 24, **fields: Any
) -> FetchRequest:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
    values = {"max_wait_ms": 5_000, "min_bytes": 1, "topics": [FetchTopic(topic=topic, partitions=[asked])]}
    return FetchRequest(**{**values, **fields})


def fetch(
    client: RawClient, topic: str, offset: int = 0, *, version: int = FETCH_VERSION, **fields: Any
) -> PartitionData:
    request = fetch_request(topic, offset, **fields)
    ((row,),) = (each.partitions for each in client.exchange(request, version, FetchResponse).responses)
    return row


def try_to_create(
    client: RawClient,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = 1,
    version: int = 5,
    validate_only: bool = False,
) -> int:
    """The error code of CreateTopics."""
    rows = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replication_factor, configs=rows)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only)
    (result,) = client.exchange(request, version, CreateTopicsResponse).topics
    return result.error_code


def create_topic(
    client: RawClient,
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    exists_ok: bool = False,
) -> None:
    """Returns when every partition can be used."""
    code = try_to_create(client, name, partitions, configs)
    assert code == 0 or (exists_ok and code == ErrorCode.TOPIC_ALREADY_EXISTS), ErrorCode(code)
    eventually(lambda: all(_is_there(client, name, partition) for partition in range(partitions)))


def _is_there(client: RawClient, name: str, partition: int) -> bool:
    return fetch(client, name, partition=partition, min_bytes=0).error_code not in NOT_YET


def topic_names(client: RawClient) -> set[str]:
    response = client.exchange(MetadataRequest(topics=None), 9, MetadataResponse)
    return {topic.name or "" for topic in response.topics}


def metadata_error(client: RawClient, name: str, *, may_create: bool = True) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=may_create)
    (topic,) = client.exchange(request, 9, MetadataResponse).topics
    return topic.error_code
