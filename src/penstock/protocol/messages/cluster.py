"""What a client asks first: which versions, which brokers, which topics lie where."""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, boolean, int8, int16, int32, int64, string, uuid

AUTHORIZED_OPERATIONS_NOT_ASKED = -(2**31)
BROKER_ENDPOINTS = 1


class ApiVersionsRequest(Request, api_key=18, versions="0-4", flexible=3):
    """v3: client name and version (KIP-511)    v4: features may begin at version 0 (KAFKA-17011)"""

    client_software_name: str = string(versions="3+")
    client_software_version: str = string(versions="3+")


class ApiVersion(Struct):
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


class SupportedFeatureKey(Struct):
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


class FinalizedFeatureKey(Struct):
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


class ApiVersionsResponse(Response, to=ApiVersionsRequest):
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(versions="1+")
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, versions="3+", tag=0)
    finalized_features_epoch: int = int64(versions="3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, versions="3+", tag=2)
    zk_migration_ready: bool = boolean(versions="3+", tag=3)


class MetadataRequestTopic(Struct):
    topic_id: TopicId = uuid(versions="10+")
    name: str | None = string(nullable="10+", default="")


class MetadataRequest(Request, api_key=3, versions="0-13", flexible=9):
    """v0: no topics means all; v1: null means all    v4: may forbid auto-creation    v8: authorized operations
    v10: topic ids    v11: cluster operations moved to DescribeCluster    v12: a topic by id alone
    """

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean(versions="4+", default=True)
    include_cluster_authorized_operations: bool = boolean(versions="8-10")
    include_topic_authorized_operations: bool = boolean(versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(versions="1+", nullable="1+")


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(versions="7+", default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, versions="5+")


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="12+", default="")
    topic_id: TopicId = uuid(versions="10+")
    is_internal: bool = boolean(versions="1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(versions="8+", default=AUTHORIZED_OPERATIONS_NOT_ASKED)


class MetadataResponse(Response, to=MetadataRequest):
    """v13: an error code for the whole response (KIP-1102: the client must bootstrap again)"""

    throttle_time_ms: int = int32(versions="3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(versions="2+", nullable="2+")
    controller_id: int = int32(versions="1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(versions="8-10", default=AUTHORIZED_OPERATIONS_NOT_ASKED)
    error_code: int = int16(versions="13+")


class DescribeClusterRequest(Request, api_key=60, versions="0-2", flexible=0):
    """v1: brokers or controllers (KIP-919)    v2: fenced brokers too (KIP-1073)"""

    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(versions="1+", default=BROKER_ENDPOINTS)
    include_fenced_brokers: bool = boolean(versions="2+")


class DescribeClusterBroker(Struct):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+")
    is_fenced: bool = boolean(versions="2+")


class DescribeClusterResponse(Response, to=DescribeClusterRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    endpoint_type: int = int8(versions="1+", default=BROKER_ENDPOINTS)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_NOT_ASKED)


class UnregisterBrokerRequest(Request, api_key=64, versions="0-0", flexible=0):
    broker_id: int = int32()


class UnregisterBrokerResponse(Response, to=UnregisterBrokerRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class DescribableLogDirTopic(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribeLogDirsRequest(Request, api_key=35, versions="1-4", flexible=2):
    """Null topics means every partition of the broker."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(versions="4+", default=-1)
    usable_bytes: int = int64(versions="4+", default=-1)


class DescribeLogDirsResponse(Response, to=DescribeLogDirsRequest):
    """v3: an error code for the whole response    v4: size and free space of the volume (KIP-827)"""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
