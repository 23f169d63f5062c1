"""Making, growing, describing and deleting topics."""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.messages.cluster import AUTHORIZED_OPERATIONS_NOT_ASKED
from penstock.protocol.schema import Struct, array, boolean, int8, int16, int32, nested, string, uuid


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


class CreatableTopicConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")


class CreatableTopic(Struct):
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request, api_key=19, versions="2-7", flexible=5):
    """v4: -1 partitions or replicas for the broker's default (KIP-464)"""

    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean()


class CreatableTopicConfigs(Struct):
    name: str = string()
    value: str | None = string(nullable="5+")
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string()
    topic_id: TopicId = uuid(versions="7+")
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    topic_config_error_code: int = int16(versions="5+", tag=0)
    num_partitions: int = int32(versions="5+", default=-1)
    replication_factor: int = int16(versions="5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, versions="5+", nullable="5+")


class CreateTopicsResponse(Response, to=CreateTopicsRequest):
    """v5: what was made, with its configuration (KIP-525)    v7: topic id"""

    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class DeleteTopicState(Struct):
    name: str | None = string(nullable="6+")
    topic_id: TopicId = uuid()


class DeleteTopicsRequest(Request, api_key=20, versions="1-6", flexible=4):
    """v6: by name or by id"""

    topics: list[DeleteTopicState] = array(DeleteTopicState, versions="6+")
    topic_names: list[str] = array(string, versions="0-5")
    timeout_ms: int = int32()


class DeletableTopicResult(Struct):
    name: str | None = string(nullable="6+", default="")
    topic_id: TopicId = uuid(versions="6+")
    error_code: int = int16()
    error_message: str | None = string(versions="5+", nullable="5+")


class DeleteTopicsResponse(Response, to=DeleteTopicsRequest):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Struct):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable="0+")


class CreatePartitionsRequest(Request, api_key=37, versions="0-3", flexible=2):
    """`count` is how many partitions the topic shall have in all."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Struct):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreatePartitionsResponse(Response, to=CreatePartitionsRequest):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class TopicRequest(Struct):
    name: str = string()


class Cursor(Struct):
    """Where the next page of DescribeTopicPartitions begins (KIP-966)."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Request, api_key=75, versions="0", flexible=0):
    """No topics means all of them."""

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = nested(Cursor, nullable="0+")


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable="0+")
    last_known_elr: list[int] | None = array(int32, nullable="0+")
    offline_replicas: list[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="0+", default="")
    topic_id: TopicId = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_NOT_ASKED)


class DescribeTopicPartitionsResponse(Response, to=DescribeTopicPartitionsRequest):
    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = nested(Cursor, nullable="0+")
