"""A member of a group over a raw connection, and what it commits: it says what it is told to, nothing by itself."""

from typing import Any

from penstock.core.errors import ErrorCode
from penstock.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from penstock.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.testkit.raw_client import RawClient

COMMIT_VERSION, FETCH_VERSION, JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 8, 8, 9, 5, 4
# What a coordinator says that is about to be able to answer.
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def commit(
    client: RawClient,
    group_id: str,
    *,
    topic: str,
    partition: int = 0,
    offset: int = 7,
    metadata: str | None = "",
    version: int = COMMIT_VERSION,
    **fields: Any,
) -> ErrorCode:
    asked = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id=group_id, topics=[OffsetCommitRequestTopic(name=topic, partitions=[asked])], **fields
    )
    ((answer,),) = (each.partitions for each in client.exchange(request, version, OffsetCommitResponse).topics)
    return ErrorCode(answer.error_code)


def fetched(client: RawClient, group_id: str, *, topic: str, partition: int = 0) -> int | None:
    """The committed offset, -1 for none; None while the coordinator is not ready."""
    topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)])
    (group,) = client.exchange(request, FETCH_VERSION, OffsetFetchResponse).groups
    if group.error_code in NOT_YET:
        return None
    assert group.error_code == 0, ErrorCode(group.error_code)
    ((answer,),) = (each.partitions for each in group.topics)
    return int(answer.committed_offset)


def join_request(group_id: str, member_id: str = "", **fields: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"")],
    }
    return JoinGroupRequest(group_id=group_id, member_id=member_id, **{**values, **fields})


def join(client: RawClient, group_id: str, **fields: Any) -> JoinGroupResponse:
    """With the id that the broker gives first."""
    answer = client.exchange(join_request(group_id, **fields), JOIN_VERSION, JoinGroupResponse)
    if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return answer
    return client.exchange(join_request(group_id, answer.member_id, **fields), JOIN_VERSION, JoinGroupResponse)


def sync(client: RawClient, group_id: str, joined: JoinGroupResponse, assignment: bytes) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id=group_id,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name=joined.protocol_name,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)],
    )
    return client.exchange(request, SYNC_VERSION, SyncGroupResponse)


def heartbeat(client: RawClient, group_id: str, joined: JoinGroupResponse, **fields: Any) -> ErrorCode:
    values = {"generation_id": joined.generation_id, "member_id": joined.member_id, **fields}
    answer = client.exchange(HeartbeatRequest(group_id=group_id, **values), HEARTBEAT_VERSION, HeartbeatResponse)
    return ErrorCode(answer.error_code)
