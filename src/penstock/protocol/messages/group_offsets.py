"""Committing, fetching and deleting the offsets of a group."""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="6+", default=-1)
    committed_metadata: str | None = string(nullable="2+", default="")


class OffsetCommitRequestTopic(Struct):
    name: str = string(versions="2-9")
    topic_id: TopicId = uuid(versions="10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request, api_key=8, versions="2-10", flexible=8):
    """v2: retention time, gone in v5 (KIP-211)    v6: leader epoch (KIP-320)    v7: static members (KIP-345)
    v9: consumer groups (KIP-848)    v10: topic ids instead of names
    """

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(versions="7+", nullable="7+")
    retention_time_ms: int = int64(versions="2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Struct):
    name: str = string(versions="2-9")
    topic_id: TopicId = uuid(versions="10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, to=OffsetCommitRequest):
    throttle_time_ms: int = int32(versions="3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


class OffsetFetchRequestTopic(Struct):
    name: str = string(versions="1-9")
    topic_id: TopicId = uuid(versions="10+")
    partition_indexes: list[int] = array(int32)


class OffsetFetchRequestGroup(Struct):
    """Null topics: all of them."""

    group_id: str = string()
    member_id: str | None = string(versions="9+", nullable="9+")
    member_epoch: int = int32(versions="9+", default=-1)
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, nullable="8+")


class OffsetFetchRequest(Request, api_key=9, versions="1-10", flexible=6):
    """v2: null topics, all of them    v5: leader epoch (KIP-320)    v7: only stable offsets (KIP-447)
    v8: several groups (KIP-709); what was asked of one before is asked of each    v9: consumer groups (KIP-848)
    v10: topic ids instead of names
    """

    group_id: str = string(versions="1-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, versions="1-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, versions="8+")
    require_stable: bool = boolean(versions="7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="5+", default=-1)
    metadata: str | None = string(nullable="1+", default="")
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    name: str = string(versions="1-9")
    topic_id: TopicId = uuid(versions="10+")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponseGroup(Struct):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic)
    error_code: int = int16()


class OffsetFetchResponse(Response, to=OffsetFetchRequest):
    """v2: error of the group; before, each partition carries it"""

    throttle_time_ms: int = int32(versions="3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, versions="1-7")
    error_code: int = int16(versions="2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, versions="8+")


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = int32()


class OffsetDeleteRequestTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


class OffsetDeleteRequest(Request, api_key=47, versions="0"):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetDeleteResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


class OffsetDeleteResponse(Response, to=OffsetDeleteRequest):
    error_code: int = int16()
    throttle_time_ms: int = int32()
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
