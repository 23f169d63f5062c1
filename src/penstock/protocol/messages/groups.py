"""Finding a coordinator, the classic rebalance protocol of groups, and listing, describing and deleting them."""

from __future__ import annotations

from penstock.protocol.codec import Request, Response
from penstock.protocol.messages.cluster import AUTHORIZED_OPERATIONS_NOT_ASKED
from penstock.protocol.schema import Struct, array, boolean, bytestring, int8, int16, int32, string


class FindCoordinatorRequest(Request, api_key=10, versions="0-6", flexible=3):
    """v1: transactional ids too    v4: several keys at once (KIP-699)    v6: share groups (KIP-932)"""

    key: str = string(versions="0-3")
    key_type: int = int8(versions="1+")
    coordinator_keys: list[str] = array(string, versions="4+")


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="4+")


class FindCoordinatorResponse(Response, to=FindCoordinatorRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16(versions="0-3")
    error_message: str | None = string(versions="1-3", nullable="1-3")
    node_id: int = int32(versions="0-3")
    host: str = string(versions="0-3")
    port: int = int32(versions="0-3")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+")


class JoinGroupRequestProtocol(Struct):
    name: str = string()
    metadata: bytes = bytestring()


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible=6):
    """v1: rebalance timeout; before, the session timeout is meant    v4: a new member is told its id first (KIP-394)
    v5: static members (KIP-345)    v8: reason (KIP-800)    v9: the leader may be told to skip the assignment (KIP-814)
    """

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(versions="1+", default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable="5+")
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(versions="8+", nullable="8+")


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable="5+")
    metadata: bytes = bytestring()


class JoinGroupResponse(Response, to=JoinGroupRequest):
    """v7: protocol type (KIP-559); that there is no protocol name is null from then on, and empty before"""

    throttle_time_ms: int = int32(versions="2+")
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(versions="7+", nullable="7+")
    protocol_name: str | None = string(nullable="7+", default="")
    leader: str = string()
    skip_assignment: bool = boolean(versions="9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible=4):
    """v3: static members (KIP-345)"""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+")


class HeartbeatResponse(Response, to=HeartbeatRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()


class MemberIdentity(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="3+")
    reason: str | None = string(versions="5+", nullable="5+")


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible=4):
    """v3: several members, by member or instance id (KIP-345)    v5: reason (KIP-800)"""

    group_id: str = string()
    member_id: str = string(versions="0-2")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+")


class MemberResponse(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="3+")
    error_code: int = int16()


class LeaveGroupResponse(Response, to=LeaveGroupRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, versions="3+")


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = bytestring()


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible=4):
    """v3: static members (KIP-345)    v5: protocol type and name, which must be the group's (KIP-559)"""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+")
    protocol_type: str | None = string(versions="5+", nullable="5+")
    protocol_name: str | None = string(versions="5+", nullable="5+")
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Response, to=SyncGroupRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    protocol_type: str | None = string(versions="5+", nullable="5+")
    protocol_name: str | None = string(versions="5+", nullable="5+")
    assignment: bytes = bytestring()


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible=5):
    """v3: authorized operations    v4: static members    v6: a group that is not there is an error (KIP-1043)"""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(versions="3+")


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="4+", nullable="4+")
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytestring()
    member_assignment: bytes = bytestring()


class DescribedGroup(Struct):
    """`protocol_data` is the name of the chosen protocol."""

    error_code: int = int16()
    error_message: str | None = string(versions="6+", nullable="6+")
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(versions="3+", default=AUTHORIZED_OPERATIONS_NOT_ASKED)


class DescribeGroupsResponse(Response, to=DescribeGroupsRequest):
    throttle_time_ms: int = int32(versions="1+")
    groups: list[DescribedGroup] = array(DescribedGroup)


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible=3):
    """v4: states to list (KIP-518)    v5: types to list (KIP-848). An empty filter lets all through."""

    states_filter: list[str] = array(string, versions="4+")
    types_filter: list[str] = array(string, versions="5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+")
    group_type: str = string(versions="5+")


class ListGroupsResponse(Response, to=ListGroupsRequest):
    throttle_time_ms: int = int32(versions="1+")
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


class DeleteGroupsRequest(Request, api_key=42, versions="0-2", flexible=2):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Response, to=DeleteGroupsRequest):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
