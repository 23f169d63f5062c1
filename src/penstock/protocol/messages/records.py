"""Produce and Fetch: the two that carry records."""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.primitives import Records
from penstock.protocol.schema import Struct, array, int8, int16, int32, int64, nested, records, string, uuid

HIGH_WATERMARK_NOT_REPORTED = 2**63 - 1


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class NodeEndpoint(Struct):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+")


class PartitionProduceData(Struct):
    index: int = int32()
    records: memoryview | None = records(nullable="0+")


class TopicProduceData(Struct):
    name: str = string(versions="0-12")
    topic_id: TopicId = uuid(versions="13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Request, api_key=0, versions="3-13", flexible=9, advertised_from=0):
    """v7: zstd (KIP-110)    v12: adds its partitions to the transaction (KIP-890)    v13: topic ids for names

    v0 to v2 are gone, but librdkafka before 2.11.1 compresses only when v0 is advertised (KAFKA-18659).
    """

    transactional_id: str | None = string(nullable="3+")
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable="8+")


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, versions="8+")
    error_message: str | None = string(versions="8+", nullable="8+")
    current_leader: LeaderIdAndEpoch | None = nested(LeaderIdAndEpoch, versions="10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string(versions="0-12")
    topic_id: TopicId = uuid(versions="13+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class ProduceResponse(Response, to=ProduceRequest):
    """v8: why, per record (KIP-467)    v10: who leads now, and where (KIP-951)"""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0)


class ReplicaState(Struct):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(versions="17+", tag=0)
    high_watermark: int = int64(versions="18+", tag=1, default=HIGH_WATERMARK_NOT_REPORTED)


class FetchTopic(Struct):
    topic: str = string(versions="0-12")
    topic_id: TopicId = uuid(versions="13+")
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(versions="0-12")
    topic_id: TopicId = uuid(versions="13+")
    partitions: list[int] = array(int32)


class FetchRequest(Request, api_key=1, versions="4-18", flexible=12):
    """v7: sessions (KIP-227)    v9: leader epochs (KIP-320)    v11: the consumer's rack (KIP-392)
    v12: the epoch last fetched (KIP-595)    v13: topic ids for names    v15: `replica_state`, which only brokers send,
    for `replica_id`    v17: directory id    v18: the follower's high watermark (KIP-1166)
    """

    cluster_id: str | None = string(versions="12+", nullable="12+", tag=0)
    replica_id: int = int32(versions="0-14", default=-1)
    replica_state: ReplicaState | None = nested(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1)
    isolation_level: int = int8()
    session_id: int = int32(versions="7+")
    session_epoch: int = int32(versions="7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+")
    rack_id: str = string(versions="11+")


class DivergingEpoch(Struct):
    """Kafka's EpochEndOffset within Fetch; OffsetForLeaderEpoch has another struct of that name."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class SnapshotId(Struct):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Struct):
    """Records are empty by default, not null: older clients stumble over null."""

    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1)
    diverging_epoch: DivergingEpoch | None = nested(DivergingEpoch, versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = nested(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId | None = nested(SnapshotId, versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable="4+")
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Records | None = records(nullable="0+", default=b"")


class FetchableTopicResponse(Struct):
    topic: str = string(versions="0-12")
    topic_id: TopicId = uuid(versions="13+")
    partitions: list[PartitionData] = array(PartitionData)


class FetchResponse(Response, to=FetchRequest):
    """v16: where the leaders are that partitions name (KIP-951)"""

    throttle_time_ms: int = int32()
    error_code: int = int16(versions="7+")
    session_id: int = int32(versions="7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0)
