"""Everything the SDK raises, and the one place where librdkafka's errors become it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

if TYPE_CHECKING:
    from penstock.sdk.messages import Published


class PenstockError(Exception):
    """The base of all errors of the SDK."""


class BadConfig(PenstockError, ValueError):
    """A setting in `config` that does not exist, has a value that it cannot have, or is not the caller's to choose."""


class ClientClosed(PenstockError):
    """A call on a client that was closed."""


class BrokerUnreachable(PenstockError):
    """No broker answered in time. Nothing is wrong with the request: it may be made again."""

    def __init__(self, address: str, tried_s: float, reason: str) -> None:
        super().__init__(f"no answer from {address} within {tried_s:g} s: {reason}")
        self.address = address
        self.tried_s = tried_s
        self.reason = reason


class Refused(PenstockError):
    """The broker said no. `code` is Kafka's name for the reason, such as INVALID_REPLICATION_FACTOR."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class UnknownTopic(Refused):
    """There is no such topic, or no such partition of it."""

    def __init__(self, topic: str, partition: int | None = None) -> None:
        if partition is None:
            message = f"there is no topic {topic!r}: create_topic({topic!r}) makes it"
        else:
            message = f"topic {topic!r} has no partition {partition}"
        super().__init__(message, "UNKNOWN_TOPIC_OR_PARTITION")
        self.topic = topic
        self.partition = partition


class TopicExists(Refused):
    """A topic of this name is there already."""


class PublishFailed(Refused):
    """The message was not published, or nobody can say whether it was: `code` and the text tell which."""


class MessageTooLarge(PublishFailed):
    """The message is larger than the topic allows."""


class PartlyPublished(PenstockError):
    """Some messages of `publish_many` failed: `failures` by their position, `published` for all (None: failed)."""

    def __init__(
        self, topic: str, published: Sequence[Published | None], failures: Mapping[int, PenstockError]
    ) -> None:
        position, first = min(failures.items(), key=lambda failure: failure[0])
        super().__init__(
            f"{len(failures)} of {len(published)} messages for {topic!r} were not published; number {position}: {first}"
        )
        self.published = published
        self.failures = failures


class CommitRefused(Refused):
    """The group did not take the offsets: the messages behind them will be delivered again."""


class NotAssigned(PenstockError):
    """The partition is not this member's: another member of the group has it, or nobody yet."""


_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError._NODE_UPDATE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
_UNKNOWN_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_FENCED: Mapping[int, str] = {
    KafkaError.ILLEGAL_GENERATION: "the group has gone on without this member",
    KafkaError.UNKNOWN_MEMBER_ID: "this client is no member of the group, which has members",
    KafkaError.FENCED_INSTANCE_ID: "another client joined with the same group.instance.id",
    KafkaError.FENCED_MEMBER_EPOCH: "the group has gone on without this member",
    KafkaError._ASSIGNMENT_LOST: "the group took the partitions from this member",
    KafkaError._FENCED: "another client joined with the same group.instance.id",
}


def is_unreachable(error: KafkaError) -> bool:
    return error.code() in _UNREACHABLE


def is_unknown_topic(error: KafkaError) -> bool:
    return error.code() in _UNKNOWN_TOPIC


def refused(error: KafkaError, what: str) -> Refused:
    return Refused(f"{what}: {error.str()}", error.name())


def topic_refused(error: KafkaError, topic: str) -> Refused:
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return TopicExists(f"there is a topic {topic!r} already", error.name())
    return refused(error, f"topic {topic!r} was not created")


def publish_failed(error: KafkaError, topic: str, partition: int | None, size: int) -> Refused:
    if is_unknown_topic(error):
        return UnknownTopic(topic, partition if error.code() == KafkaError._UNKNOWN_PARTITION else None)
    if error.code() in _TOO_LARGE:
        text = f"a message of {size} bytes is larger than topic {topic!r} allows (its max.message.bytes)"
        return MessageTooLarge(text, error.name())
    return PublishFailed(f"the message for topic {topic!r} was not published: {error.str()}", error.name())


def commit_refused(error: KafkaError, topic: str, group: str, offsets: Mapping[int, int]) -> Refused:
    if is_unknown_topic(error):
        return UnknownTopic(topic, next(iter(offsets)) if len(offsets) == 1 else None)
    reason = _FENCED.get(error.code(), error.str())
    places = ", ".join(f"{partition}@{offset}" for partition, offset in sorted(offsets.items()))
    return CommitRefused(f"group {group!r} refused the offsets of topic {topic!r} ({places}): {reason}", error.name())


def check_offset(offset: int) -> None:
    """Below zero some numbers have a meaning of their own, and would be taken without a word."""
    if not 0 <= offset < 2**63:
        raise ValueError(f"an offset is a number from 0 to 2**63 - 1, not {offset}")
