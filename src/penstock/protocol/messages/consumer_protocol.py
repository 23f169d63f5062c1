"""What consumers tell each other through the coordinator: the blobs in JoinGroup and SyncGroup of type "consumer".

The coordinator carries them without looking, except to know which topics a group subscribes to, to describe a group,
and to take members of the classic protocol into a consumer group. They come from clients of any language and age: what
cannot be read is a BadConsumerProtocol, and a version of the future is read and written as the newest that we know,
since new versions only add fields at the end.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.core.errors import MalformedRequest
from penstock.protocol.codec import Data
from penstock.protocol.primitives import BytesLike
from penstock.protocol.schema import Struct, array, bytestring, int32, string

CONSUMER_PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1


class BadConsumerProtocol(ValueError):
    """A blob that is no subscription or assignment; the message says what is wrong with it."""


class TopicPartitions(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Data, versions="0-3"):
    """v1: partitions owned (KIP-429)    v2: in which generation (KIP-792)    v3: rack (KIP-881)"""

    topics: list[str] = array(string)
    user_data: bytes | None = bytestring(nullable="0+")
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, versions="1+")
    generation_id: int = int32(versions="2+", default=NO_GENERATION)
    rack_id: str | None = string(versions="3+", nullable="3+")


class ConsumerProtocolAssignment(Data, versions="0-3"):
    """All versions are the same."""

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = bytestring(nullable="0+")


Blob = TypeVar("Blob", bound=Data)


def encode_subscription(
    subscription: ConsumerProtocolSubscription, version: int = ConsumerProtocolSubscription.MAX_VERSION
) -> bytes:
    return subscription.encode_fields_of(subscription, min(version, subscription.MAX_VERSION))


def encode_assignment(
    assignment: ConsumerProtocolAssignment, version: int = ConsumerProtocolAssignment.MAX_VERSION
) -> bytes:
    return assignment.encode_fields_of(assignment, min(version, assignment.MAX_VERSION))


def decode_subscription(blob: BytesLike) -> ConsumerProtocolSubscription:
    return _decoded(ConsumerProtocolSubscription, blob, blob_version(blob))


def decode_assignment(blob: BytesLike) -> ConsumerProtocolAssignment:
    return _decoded(ConsumerProtocolAssignment, blob, blob_version(blob))


def subscribed_topics(blob: BytesLike) -> list[str]:
    """The topics of a subscription, which come first, whatever a client made of the fields after them."""
    blob_version(blob)
    return _decoded(ConsumerProtocolSubscription, blob, 0).topics


def blob_version(blob: BytesLike) -> int:
    """The version that the blob says it has; an assignment is written in that of the member's subscription."""
    if len(blob) < 2:
        raise BadConsumerProtocol(f"{len(blob)} bytes, not even a version")
    return int.from_bytes(blob[:2], "big", signed=True)


def _decoded(layout: type[Blob], blob: BytesLike, version: int) -> Blob:
    try:
        return layout.decode(memoryview(blob)[2:], min(version, layout.MAX_VERSION))
    except MalformedRequest as error:
        raise BadConsumerProtocol(str(error)) from None
