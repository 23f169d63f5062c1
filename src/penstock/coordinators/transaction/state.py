"""What is remembered of a transactional id, and how it may change.

    status           may become
    Empty            Empty, Ongoing, PrepareAbort
    Ongoing          Ongoing, PrepareCommit, PrepareAbort
    PrepareCommit    CompleteCommit
    PrepareAbort     CompleteAbort
    CompleteCommit   Empty, Ongoing, PrepareAbort
    CompleteAbort    Empty, Ongoing, PrepareAbort

Kafka has two more, which it never writes. Dead is a transactional id whose tombstone is being written: here it is gone
at once. PrepareEpochFence is a transaction whose producer is being fenced: here the record that aborts it does that.

The epoch 32767 is never given to a producer, so that there always is one left to fence with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TransactionRecord,
    TransactionStatus,
)
from penstock.core.ids import TopicPartition

MAX_EPOCH: Final = 2**15 - 1
LAST_EPOCH_GIVEN: Final = MAX_EPOCH - 1

EPOCH_KEPT: Final = 0
EPOCH_BUMPED: Final = 2
"""Versions of transactions: in version 2 every end of one bumps the epoch (KIP-890). Version 1 is 0 for clients."""

EMPTY = TransactionStatus.EMPTY
ONGOING = TransactionStatus.ONGOING
PREPARE_COMMIT = TransactionStatus.PREPARE_COMMIT
PREPARE_ABORT = TransactionStatus.PREPARE_ABORT
COMPLETE_COMMIT = TransactionStatus.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionStatus.COMPLETE_ABORT

_FROM_REST = frozenset({EMPTY, ONGOING, PREPARE_ABORT})
NEXT: Final = {
    EMPTY: _FROM_REST,
    ONGOING: frozenset({ONGOING, PREPARE_COMMIT, PREPARE_ABORT}),
    PREPARE_COMMIT: frozenset({COMPLETE_COMMIT}),
    PREPARE_ABORT: frozenset({COMPLETE_ABORT}),
    COMPLETE_COMMIT: _FROM_REST,
    COMPLETE_ABORT: _FROM_REST,
}
BEING_ENDED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
ENDED: Final = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
AT_REST: Final = ENDED | {EMPTY}


@dataclass(slots=True)
class Transaction:
    """Of one transactional id: the transaction under way, or the last one."""

    record: TransactionRecord
    """Durable: changes only by `TransactionMachine.apply`."""

    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """That which the producer had before the last bump: a request with it is a retry, for which the answer got lost.
    None after a new instance came. Records have no place for it: with a new coordinator the retry is fenced, as in
    Kafka.
    """

    markers: WriteMarkers | None = None
    """Those that the shell was last told to write, and has not yet said to be written."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The broker's settings, by the names they have there."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 60 * 60 * 1000
    max_record_bytes: int = 1_000_000
    """What the coordinator's partition takes as one batch."""


# How one record follows from the one before it


def created(transactional_id: str, producer_id: int, timeout_ms: int, wall_ms: int) -> TransactionRecord:
    return TransactionRecord(transactional_id, producer_id, 0, timeout_ms, EMPTY, frozenset(), wall_ms)


def initialised(
    before: TransactionRecord, producer_id: int, producer_epoch: int, timeout_ms: int, wall_ms: int
) -> TransactionRecord:
    """Also when the producer stays what it was: then a retry asked, and what preceded it stays the same too."""
    previous = NO_PRODUCER_ID
    if producer_id != before.producer_id:
        previous = before.producer_id
    elif producer_epoch == before.producer_epoch:
        previous = before.previous_producer_id
    return before._replace(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        status=EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=wall_ms,
        previous_producer_id=previous,
    )


def with_partitions(
    before: TransactionRecord, partitions: frozenset[TopicPartition], version: int, wall_ms: int
) -> TransactionRecord:
    return before._replace(
        status=ONGOING,
        partitions=before.partitions | partitions,
        start_ms=before.start_ms if before.status is ONGOING else wall_ms,
        last_update_ms=wall_ms,
        previous_producer_id=NO_PRODUCER_ID,
        client_transaction_version=version,
    )


def prepared(
    before: TransactionRecord, *, commit: bool, version: int, next_producer_id: int, wall_ms: int
) -> TransactionRecord:
    bump = 1 if version >= EPOCH_BUMPED else 0
    return before._replace(
        producer_epoch=min(before.producer_epoch + bump, MAX_EPOCH),
        status=PREPARE_COMMIT if commit else PREPARE_ABORT,
        # What had not begun has no beginning, yet must have one to be completed, says Kafka.
        start_ms=before.start_ms if before.status is ONGOING else wall_ms,
        last_update_ms=wall_ms,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
        client_transaction_version=version,
    )


def completed(before: TransactionRecord, wall_ms: int) -> TransactionRecord:
    after = before._replace(
        status=COMPLETE_COMMIT if before.status is PREPARE_COMMIT else COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=wall_ms,
        next_producer_id=NO_PRODUCER_ID,
    )
    if before.next_producer_id == NO_PRODUCER_ID:
        return after
    return after._replace(
        producer_id=before.next_producer_id, producer_epoch=0, previous_producer_id=before.producer_id
    )
