"""What can go wrong between a client and a cluster, each with what, where and, if there is something, what to do.

A refusal of the broker is a BrokerError as long as somebody may still ask again; whoever gives up makes one of these.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition


class WireError(Exception):
    """The message is for a person, and is all that is needed to understand what happened."""


class BadSettings(WireError):
    """A setting of the client that cannot be; said before anything is asked of a broker."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key} {problem}")
        self.key = key
        self.problem = problem

    def __reduce__(self) -> tuple[type[BadSettings], tuple[str, str]]:
        return BadSettings, (self.key, self.problem)


class NoAnswer(WireError):
    """A broker is not there, or says nothing that can be understood; the message names it. Another one may do."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address

    def __reduce__(self) -> tuple[type[NoAnswer], tuple[str, str]]:
        return NoAnswer, (str(self), self.address)


class Unreachable(WireError):
    """None of the brokers that are known answers."""


class NotNow(WireError):
    """Something that passes: a partition without a leader, or with another than we thought."""


class Unsupported(WireError):
    """The broker does not know a request, or not in a version that can say what is wanted."""


class NotAuthenticated(WireError):
    """Certificates, names or passwords: asking again does not help."""


class Refused(WireError):
    """The broker has said no."""


class UnknownTopic(WireError):
    """There is no such topic, or no such partition of it."""


class TopicRecreated(WireError):
    """There is a topic of that name, but it is another one than before: offsets of the old one mean nothing in it."""


class TimedOut(WireError):
    """Nothing has come for as long as we were told to wait; the message has the last reason."""


class CorruptRecords(WireError):
    """What the broker sent is not what somebody wrote."""


class NotWritten(WireError):
    """Records, or the end of a transaction, that brokers refuse for good. `code` is None when none of them said so."""

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[NotWritten], tuple[str, ErrorCode | None]]:
        return NotWritten, (str(self), self.code)


class RowTooLarge(WireError):
    """A row whose record is larger than this client sends."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a row makes a record batch of {size} bytes, and {limit} is the limit")
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[type[RowTooLarge], tuple[int, int]]:
        return RowTooLarge, (self.size, self.limit)


class OffsetsLost(WireError):
    """Records that were to be read are not there: retention or DeleteRecords took them, or a leader that lost them.

    `first` and `end` are what is there now, the latter exclusive.
    """

    def __init__(self, topic: str, partition: int, wanted: int, first: int, end: int) -> None:
        where = TopicPartition(topic, partition)
        super().__init__(
            f"{where}: offset {wanted} is not there any more, the first one is {first}"
            if wanted < first
            else f"{where}: offset {wanted} is not there, the partition ends at {end}"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.first = first
        self.end = end

    def __reduce__(self) -> tuple[type[OffsetsLost], tuple[str, int, int, int, int]]:
        return OffsetsLost, (self.topic, self.partition, self.wanted, self.first, self.end)


def check(code: int, message: str | None = None) -> None:
    """Raises what the broker answered, unless that is success."""
    if code == ErrorCode.NONE:
        return
    try:
        known = ErrorCode(code)
    except ValueError:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, message or error_name(code)) from None
    raise BrokerError(known, message or "")


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}, which this version does not know"


def reason(refused: BrokerError) -> str:
    """The broker's words for an error, if it has any, and its name, which is what one searches for."""
    name = refused.code.name
    return name if refused.message == name else f"{refused.message} ({name})"
