"""Leaders on demand."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, int8, int16, int32, string


class ElectionPartitions(Struct):
    """Kafka's TopicPartitions."""

    topic: str = string()
    partitions: list[int] = array(int32)


class ElectLeadersRequest(Request, api_key=43, versions="0-2", flexible=2):
    """v1: the kind of election (KIP-460); 0 is for the preferred replica, 1 for any. No list means every partition."""

    election_type: int = int8(versions="1+")
    topic_partitions: list[ElectionPartitions] | None = array(ElectionPartitions, nullable="0+")
    timeout_ms: int = int32(default=60_000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Response, to=ElectLeadersRequest):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
