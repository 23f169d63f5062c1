"""The few requests that scenarios make, in Kafka's words, over one raw connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.protocol.batch import HEADER_BYTES, read_header
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
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.records import Record, StoredRecord, build_batch, iterate
from tests.testkit.raw_client import RawClient

PRODUCE_VERSION = 12
FETCH_VERSION = 12
NOW_MS = 1_700_000_000_000


def create_topic(client: RawClient, name: str, partitions: int = 1, **configs: object) -> None:
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()
                ],
            )
        ]
    )
    (result,) = client.exchange(request, 7, CreateTopicsResponse).topics
    assert result.error_code == 0, result.error_message


def a_batch(*values: bytes, timestamp: int = NOW_MS, **options: Any) -> bytearray:
    return build_batch([Record(None, value, (), timestamp + at) for at, value in enumerate(values)], **options)


def produce_request(topic: str, partition: int, batch: bytes | bytearray, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=partition, records=memoryview(batch))]
            )
        ],
    )


def produce(
    client: RawClient, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1
) -> PartitionProduceResponse:
    response = client.exchange(produce_request(topic, partition, batch, acks), PRODUCE_VERSION, ProduceResponse)
    return response.responses[0].partition_responses[0]


def fetch_request(
    wanted: Mapping[str, Sequence[tuple[int, int]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_048_576,
    session_id: int = 0,
    session_epoch: int = -1,
) -> FetchRequest:
    """`wanted`: topic -> (partition, offset) pairs."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
                    for index, offset in partitions
                ],
            )
            for topic, partitions in wanted.items()
        ],
    )


def fetch(client: RawClient, topic: str, offset: int, *, partition: int = 0, **options: int) -> PartitionData:
    request = fetch_request({topic: [(partition, offset)]}, **options)
    return client.exchange(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]


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
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])]
    )
    return client.exchange(request, version, ListOffsetsResponse).topics[0].partitions[0]
