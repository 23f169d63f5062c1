"""What a coordinator's machine decides: records to be made durable, and answers to be given when they are.

A machine is asked with a ticket for whoever waits. It may answer at once, or keep the ticket and answer it in a later
decision, as a JoinGroup is answered when all members have joined. No answer goes out before the records of its decision
are committed; nor before those of earlier decisions, since it may tell of what they changed. The same holds for
effects, which are what else is to be done about a decision, and come before its answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.protocol.schema import Struct

Ticket = int
NOBODY: Ticket = 0
"""For what the broker does of itself: its answer goes nowhere."""


class Now(NamedTuple):
    """Timestamps that are kept come from the wall clock; deadlines are on the monotonic one, which nobody sets back."""

    wall_ms: int
    monotonic_ms: int


class Caller(NamedTuple):
    """Who asks, as far as a machine may know."""

    ticket: Ticket
    api_version: int
    client_id: str
    client_host: str
    new_id: Callable[[], str]
    """Never the same twice, and nobody guesses it: what a new member's id is made of."""


class LogRecord(NamedTuple):
    """Key and value as they stand in the coordinator's partition; a value of None takes the key away."""

    key: bytes
    value: bytes | None
    meaning: Any = None
    """What the machine that wrote it means by it, so that it need not read its own bytes; None when read from a log."""
    timestamp: int = -1
    """When it was written, of a record that is read from a log."""


class Producer(NamedTuple):
    """Whose transaction records belong to."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Decision:
    """Records are appended together, as one batch, and applied in order. Grows while the machine decides."""

    records: list[LogRecord] = field(default_factory=list)
    answers: list[tuple[Ticket, Struct | None]] = field(default_factory=list)
    """Responses, or the part of one that is about a single group; None where there is nothing to say but that it is
    done.
    """

    effects: list[Any] = field(default_factory=list)
    """What the shell is to do; the machine and whoever started the shell agree on what they are."""

    producer: Producer | None = None
    """The records are part of its transaction: they have a batch of their own, and are applied as pending."""

    may_linger: bool = False
    """Nobody waits for the records, and what they say can be found out again: they may go with the next ones."""

    def answer(self, ticket: Ticket, answer: Struct) -> None:
        self.answers.append((ticket, answer))
