"""The rebalance protocol in which the coordinator assigns the partitions (KIP-848), and describing its groups."""

from __future__ import annotations

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.messages.cluster import AUTHORIZED_OPERATIONS_NOT_ASKED
from penstock.protocol.schema import Struct, array, boolean, int8, int16, int32, nested, string, uuid

UNKNOWN_MEMBER_TYPE = -1
CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


class TopicPartitions(Struct):
    topic_id: TopicId = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions="0-1", flexible=0):
    """v1: regular expression, and the member chooses its id (KIP-1082)

    Member epoch 0 joins, -1 leaves, -2 leaves as a static member that will be back. Null or -1 in the others: nothing
    changed since the last heartbeat.
    """

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+")
    subscribed_topic_regex: str | None = string(versions="1+", nullable="1+")
    server_assignor: str | None = string(nullable="0+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Response, to=ConsumerGroupHeartbeatRequest):
    """No assignment: it is the one that the member knows."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    member_id: str | None = string(nullable="0+")
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = nested(Assignment, nullable="0+")


class ConsumerGroupDescribeRequest(Request, api_key=69, versions="0-1", flexible=0):
    """v1: member type (KIP-1099)"""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedTopicPartitions(Struct):
    topic_id: TopicId = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class DescribedAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


class DescribedConsumerGroupMember(Struct):
    member_id: str = string()
    instance_id: str | None = string(nullable="0+")
    rack_id: str | None = string(nullable="0+")
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+")
    assignment: DescribedAssignment = nested(DescribedAssignment)
    target_assignment: DescribedAssignment = nested(DescribedAssignment)
    member_type: int = int8(versions="1+", default=UNKNOWN_MEMBER_TYPE)


class DescribedConsumerGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedConsumerGroupMember] = array(DescribedConsumerGroupMember)
    authorized_operations: int = int32(default=AUTHORIZED_OPERATIONS_NOT_ASKED)


class ConsumerGroupDescribeResponse(Response, to=ConsumerGroupDescribeRequest):
    throttle_time_ms: int = int32()
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
