"""What a process writes down: one event per line of JSON, in one file per process.

The number of a line is the event's number in its process, and a write is known everywhere by its file and line
(`WriteId`): that is what goes into the record's value, so whoever reads a record can say which write it was.

An operation that changes something is two events, one before it is tried and one when its outcome is known. A process
that is killed in between leaves only the first, which is an unknown outcome like a timeout. Reading is one event,
written when it is over: what a killed process read and never told is no evidence of anything.

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share and nobody sets.
"""

from __future__ import annotations

from typing import Literal, NewType

import msgspec

WriteId = NewType("WriteId", str)
Outcome = Literal["ok", "failed", "unknown"]
Ending = Literal["commit", "abort"]
Isolation = Literal["read_committed", "read_uncommitted"]

# topic, partition, and an offset in it
Position = tuple[str, int, int]
NO_OFFSET = -1


class Event(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """Something that happened, at a time."""


class Opened(Event, frozen=True, tag="opened"):
    """The first line: what kind of client this process is."""

    at: int
    isolation: Isolation = "read_uncommitted"
    group: str | None = None
    transactional_id: str | None = None
    # Without idempotence retries may double and reorder records, so neither is held against the broker.
    is_idempotent: bool = False


class Writing(Event, frozen=True, tag="write"):
    """A record is about to be handed to the client library."""

    at: int
    topic: str
    partition: int
    # The number of the process's transaction that it belongs to.
    transaction: int | None = None
    key: str | None = None
    # The record that this one is the copy of.
    source: Position | None = None


class Written(Event, frozen=True, tag="written"):
    """The delivery report of the write on line `write`. Failed means: for certain not in the log, nor ever will be."""

    at: int
    write: int
    outcome: Outcome
    offset: int = NO_OFFSET


class TransactionOffsets(Event, frozen=True, tag="offsets"):
    """Positions of a group that are to be committed with a transaction."""

    at: int
    transaction: int
    group: str
    positions: list[Position]


class TransactionEnding(Event, frozen=True, tag="ending"):
    """A commit or an abort is about to be asked for."""

    at: int
    transaction: int
    ending: Ending


class TransactionEnded(Event, frozen=True, tag="ended"):
    """The answer. A commit that failed for certain is one that the coordinator refused."""

    at: int
    transaction: int
    ending: Ending
    outcome: Outcome


class Positioned(Event, frozen=True, tag="position"):
    """A consumer begins to read a partition anew: after an assignment, a seek, a rewind.

    `is_committed` says that the offset is what the group's coordinator answered; NO_OFFSET if it knew of none.
    """

    begin: int
    end: int
    topic: str
    partition: int
    offset: int
    is_committed: bool = False


class Polled(Event, frozen=True, tag="poll"):
    """Records as they came: topic, partition, offset, and which write it was."""

    begin: int
    end: int
    records: list[tuple[str, int, int, WriteId]]


class ReachedEnd(Event, frozen=True, tag="end"):
    """The partition holds nothing readable from here on.

    `is_final`: the reader knew, when it began, that nobody writes any more and that no transaction is open. Then
    whatever was acknowledged before it began and was not read is gone.
    """

    at: int
    topic: str
    partition: int
    offset: int
    is_final: bool = False


class Committing(Event, frozen=True, tag="commit"):
    """A consumer is about to commit positions of its group, outside of transactions."""

    at: int
    positions: list[Position]


class Committed(Event, frozen=True, tag="committed"):
    """The answer to the commit on line `commit`."""

    at: int
    commit: int
    outcome: Outcome


AnyEvent = (
    Opened
    | Writing
    | Written
    | TransactionOffsets
    | TransactionEnding
    | TransactionEnded
    | Positioned
    | Polled
    | ReachedEnd
    | Committing
    | Committed
)


def write_id(process: str, line: int) -> WriteId:
    return WriteId(f"{process}:{line}")
