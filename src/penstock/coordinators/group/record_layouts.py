"""How the records of __consumer_offsets are laid out: as Kafka does, so that its tools read our log, and we read its.

A key begins with an int16 that says what the record is about, not which version the key has: each has but one. A value
begins with its version. What they mean to us is in `records`.
"""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Data
from penstock.protocol.schema import Struct, array, bytestring, int8, int32, int64, nested, string, uuid


class OffsetCommitKey(Data):
    group_id: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Data, versions="0-4", flexible=4):
    """v1: expiry chosen by the client    v2: not any more (KIP-211)    v3: leader epoch (KIP-320)    v4: topic id"""

    offset: int = int64()
    leader_epoch: int = int32(versions="3+", default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(versions="1", default=-1)
    topic_id: TopicId = uuid(versions="4+", tag=0)


class GroupKey(Data):
    """Of a classic group, and of all that a consumer group has once."""

    group_id: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+")
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(versions="1+", default=-1)
    session_timeout: int = int32()
    subscription: bytes = bytestring()
    assignment: bytes = bytestring()


class GroupMetadataValue(Data, versions="0-4", flexible=4):
    """v1: rebalance timeout    v2: when the state last changed, for offsets to expire (KIP-211)   v3: static members"""

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64(versions="2+", default=-1)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataValue(Data, flexible=0):
    """The hash was added by KIP-1101 in the place of the partition metadata."""

    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class PartitionRacks(Struct):
    partition: int = int32()
    racks: list[str] = array(string)


class TopicMetadata(Struct):
    topic_id: TopicId = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionRacks] = array(PartitionRacks)


class ConsumerGroupPartitionMetadataValue(Data, flexible=0):
    topics: list[TopicMetadata] = array(TopicMetadata)


class MemberKey(Data):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = bytestring()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Data, flexible=0):
    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = nested(ClassicMemberMetadata, nullable="0+", tag=0)


class ConsumerGroupTargetAssignmentMetadataValue(Data, flexible=0):
    assignment_epoch: int = int32()


class TopicPartitions(Struct):
    topic_id: TopicId = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Data, flexible=0):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupCurrentMemberAssignmentValue(Data, flexible=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class RegularExpressionKey(Data):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Data, flexible=0):
    """`version` is that of the cluster's metadata when the expression was resolved."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()
