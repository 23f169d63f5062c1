"""What brokers say only to each other, on the internal listener: not Kafka's, and unknown on every other listener.

The keys are far above Kafka's, which count up from 0. A message goes from one broker to another, perhaps of the next
release: fields are added with a new version, or tagged.
"""

from __future__ import annotations

from typing import Final

from penstock.core.ids import TopicId
from penstock.protocol.codec import Request, Response
from penstock.protocol.schema import Struct, array, bytestring, int16, int32, int64, string, uuid


class AskControllerRequest(Request, api_key=20_001, versions="0", flexible=0):
    """A command for the controller (`controller/command_codec.py`), and on whose behalf it is given."""

    command: str = string()
    principal: str = string()
    body: bytes = bytestring()


class AskControllerResponse(Response, to=AskControllerRequest):
    """`revision` is one of the metadata store at which the answer holds: whoever asked waits until it has seen that."""

    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    revision: int = int64()
    body: bytes = bytestring()


class ReplicaProgressPartition(Struct):
    """`end_offset` is where the follower's log ends, `flushed_offset` how much of it is on its disk."""

    topic_id: TopicId = uuid()
    partition: int = int32()
    leader_epoch: int = int32()
    end_offset: int = int64()
    flushed_offset: int = int64()
    cleaned_offset: int = int64()


class ReplicaProgressRequest(Request, api_key=20_002, versions="0", flexible=0):
    """A follower tells a leader how far it has come, without waiting for the answer to its last Fetch; or that it wants
    this answer now, of the request with this epoch in this fetch session.
    """

    broker_epoch: int = int64()
    partitions: list[ReplicaProgressPartition] = array(ReplicaProgressPartition)
    hurried_session_id: int = int32(tag=0)
    hurried_session_epoch: int = int32(tag=1)


class ReplicaProgressResponse(Response, to=ReplicaProgressRequest):
    """For each partition of the request, in its order: up to where every replica has compacted its log, 0 if nobody
    knows.
    """

    error_code: int = int16()
    removable_ends: list[int] = array(int64, tag=0)


class SuspectLogRequest(Request, api_key=20_003, versions="0", flexible=0):
    """A follower cannot append what its leader has at `offset`: the leader is to look whether its log is damaged."""

    topic_id: TopicId = uuid()
    partition: int = int32()
    leader_epoch: int = int32()
    offset: int = int64()


class SuspectLogResponse(Response, to=SuspectLogRequest):
    error_code: int = int16()


INTERNAL_MESSAGES: Final[tuple[tuple[type[Request], type[Response]], ...]] = (
    (AskControllerRequest, AskControllerResponse),
    (ReplicaProgressRequest, ReplicaProgressResponse),
    (SuspectLogRequest, SuspectLogResponse),
)
