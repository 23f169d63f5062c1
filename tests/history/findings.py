"""The anomalies, as we define them, and how they are reported.

The classes are Jepsen's for queues that behave like Kafka; what counts as one here, in our words:

A *write* is an attempt to append one record; its id is unique, and is the record's value. A write *exists* if it was
acknowledged or if anybody read it. A *transaction* was committed (its commit was answered with success), or it was
given up (an abort was answered, the commit was refused, or nobody ever asked for a commit), or its fate is unknown: the
commit was asked for and not answered. Then either is fine, but never half: it counts as committed as soon as a
read_committed reader saw any of its records. A *session* is what one consumer read of one partition from one position
on, without being moved; it has *passed* every offset between its position and the last record it read, or the end it
reached. Offsets are compared, never counted: transaction markers, aborted records and compaction leave gaps.

What a session must have read of what it passed: with read_uncommitted everything that exists; with read_committed
everything that exists and is in no transaction, or in a committed one. (A read_committed reader cannot pass what is
undecided, so no times are needed here.) A final session has passed everything acknowledged before it began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_SHOWN_PER_ANOMALY = 5


class Anomaly(Enum):
    LOST_WRITE = "a write was promised, a reader passed its place, and no reader of its isolation level ever saw it"
    SKIPPED_READ = "a reader passed a record without seeing it that other readers saw"
    DUPLICATE = "one write is at two offsets, though its producer was idempotent; or a record was copied twice"
    REORDERING = "two writes of one idempotent producer, or two copies, are in the log in another order than before"
    INCONSISTENT_OFFSETS = "two different writes at one offset, or a write at another offset than was acknowledged"
    ABORTED_READ = "somebody read what failed for certain, or with read_committed what was aborted"
    EARLY_READ = "read_committed returned a record before anybody asked for the commit of its transaction"
    NON_MONOTONIC_POLL = "a session saw an offset again, or a lower one after a higher one"
    TORN_TRANSACTION = "a part of a transaction took effect (records, or a group's offsets) and a part did not"
    LOST_COMMIT = "a group was told a position from before one whose commit had been acknowledged"
    PHANTOM = "somebody read what nobody wrote there, or a group was told a position that nobody committed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly, and the lines of the history that prove it."""

    anomaly: Anomaly
    what: str
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return "\n    ".join((f"{self.anomaly.name}: {self.what}", *self.evidence))


def report(findings: Sequence[Finding]) -> str:
    """For people: how many of each, and the first few of each with their evidence."""
    shown: Counter[Anomaly] = Counter()
    total = Counter(finding.anomaly for finding in findings)
    lines = [f"{anomaly.name}: {count} ({anomaly.value})" for anomaly, count in total.items()]
    for finding in findings:
        shown[finding.anomaly] += 1
        if shown[finding.anomaly] <= _SHOWN_PER_ANOMALY:
            lines.append(str(finding))
    return "\n".join(lines) or "no anomalies"
