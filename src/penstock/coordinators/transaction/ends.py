"""How transactions end: the decision is written before any partition is told, and never changes after that.

    status            EndTxn v5: retry        v5: current epoch        v0 to v4: current epoch
    Empty             PRODUCER_FENCED         abort, or INVALID        INVALID_TXN_STATE
    Ongoing           PRODUCER_FENCED         commit or abort          commit or abort
    PrepareCommit     CONCURRENT              CONCURRENT               CONCURRENT_TRANSACTIONS
    PrepareAbort      CONCURRENT              CONCURRENT               CONCURRENT_TRANSACTIONS
    CompleteCommit    commit: the answer      abort, or INVALID        commit: the answer, or INVALID_TXN_STATE
    CompleteAbort     abort: the answer       abort, or INVALID        abort: the answer, or INVALID_TXN_STATE

Since version 5 every end bumps the epoch, so that one which was long under way is told from the next transaction's
(KIP-890): a retry comes with the epoch before the current one. A producer of version 5 may abort what never reached us:
whatever did not is fenced then. Before, an end that comes late cannot be told from the next transaction's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.transaction.commands import EndTransaction, NeedsProducerId, WriteMarkers
from penstock.coordinators.transaction.records import NO_PRODUCER_ID, TransactionRecord, encode
from penstock.coordinators.transaction.state import (
    BEING_ENDED,
    COMPLETE_COMMIT,
    ENDED,
    EPOCH_BUMPED,
    EPOCH_KEPT,
    LAST_EPOCH_GIVEN,
    MAX_EPOCH,
    ONGOING,
    PREPARE_COMMIT,
    Transaction,
    completed,
    prepared,
)
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from penstock.protocol.schema import Struct

if TYPE_CHECKING:
    from penstock.coordinators.transaction.machine import TransactionMachine

EPOCH_BUMPED_SINCE = 5
FENCED_SINCE = 2
"""Older clients do not know PRODUCER_FENCED."""


def understood(code: ErrorCode, caller: Caller, fenced_since: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED and caller.api_version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# Asked by a producer


def end(machine: TransactionMachine, command: EndTransaction, caller: Caller, now: Now, decision: Decision) -> None:
    request = command.request
    transaction = machine.transactions.get(request.transactional_id)
    answer: Struct | ErrorCode
    if not request.transactional_id:
        answer = ErrorCode.INVALID_REQUEST
    elif transaction is None:
        answer = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif caller.api_version >= EPOCH_BUMPED_SINCE:
        answer = _end_and_bump(machine, transaction, command, now, decision)
    else:
        answer = _end_and_keep(machine, transaction, request, now, decision)
    if isinstance(answer, ErrorCode):
        answer = EndTxnResponse(error_code=understood(answer, caller, FENCED_SINCE))
    decision.answer(caller.ticket, answer)


def _end_and_keep(
    machine: TransactionMachine, transaction: Transaction, request: EndTxnRequest, now: Now, decision: Decision
) -> ErrorCode:
    record = transaction.record
    if request.producer_id != record.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.producer_epoch != record.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if record.status in BEING_ENDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if record.status is ONGOING:
        after = prepared(
            record,
            commit=request.committed,
            version=EPOCH_KEPT,
            next_producer_id=NO_PRODUCER_ID,
            wall_ms=now.wall_ms,
        )
        _prepare(machine, transaction, after, now, decision)
        return ErrorCode.NONE
    return ErrorCode.NONE if _ended_as(record, request) else ErrorCode.INVALID_TXN_STATE


def _end_and_bump(
    machine: TransactionMachine, transaction: Transaction, command: EndTransaction, now: Now, decision: Decision
) -> Struct | ErrorCode:
    record, request = transaction.record, command.request
    if record.status in BEING_ENDED:
        # Before all else: it may already use the id which becomes its own when this has ended.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if _is_retry(record, request):
        return _next_producer(record) if _ended_as(record, request) else ErrorCode.INVALID_TXN_STATE
    if request.producer_id != record.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.producer_epoch != record.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if request.committed and record.status is not ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    next_producer_id = NO_PRODUCER_ID
    if record.producer_epoch >= LAST_EPOCH_GIVEN:
        if command.new_producer_id is None:
            return NeedsProducerId()
        next_producer_id = command.new_producer_id
    after = prepared(
        record,
        commit=request.committed,
        version=EPOCH_BUMPED,
        next_producer_id=next_producer_id,
        wall_ms=now.wall_ms,
    )
    _prepare(machine, transaction, after, now, decision)
    return _next_producer(completed(after, now.wall_ms))


def _is_retry(record: TransactionRecord, request: EndTxnRequest) -> bool:
    """Whether it asks for the end of what has ended: the answer got lost, or a coordinator took over."""
    if record.status not in ENDED or record.client_transaction_version < EPOCH_BUMPED:
        return False
    if request.producer_id == record.previous_producer_id:
        return request.producer_epoch == LAST_EPOCH_GIVEN
    # Fenced with the last epoch there is, it has none to go on with.
    return (
        request.producer_id == record.producer_id
        and request.producer_epoch + 1 == record.producer_epoch
        and record.producer_epoch != MAX_EPOCH
    )


def _ended_as(record: TransactionRecord, request: EndTxnRequest) -> bool:
    return record.status in ENDED and (record.status is COMPLETE_COMMIT) == request.committed


def _next_producer(record: TransactionRecord) -> EndTxnResponse:
    return EndTxnResponse(producer_id=record.producer_id, producer_epoch=record.producer_epoch)


# Asked by nobody


def abort_and_fence(machine: TransactionMachine, transaction: Transaction, now: Now, decision: Decision) -> None:
    """Whatever the version of its producer, which is not asked. It may recover if nobody else comes (KIP-360)."""
    after = prepared(
        transaction.record,
        commit=False,
        version=EPOCH_BUMPED,
        next_producer_id=NO_PRODUCER_ID,
        wall_ms=now.wall_ms,
    )
    _prepare(machine, transaction, after, now, decision)


# Markers


def _prepare(
    machine: TransactionMachine, transaction: Transaction, after: TransactionRecord, now: Now, decision: Decision
) -> None:
    if after.producer_epoch != transaction.record.producer_epoch:
        transaction.last_producer_epoch = transaction.record.producer_epoch
    if transaction.record.status is ONGOING:
        machine.metrics.commits += after.status is PREPARE_COMMIT
        machine.metrics.aborts += after.status is not PREPARE_COMMIT
    decision.records.append(encode(after))
    machine.stop_timeout(after.transactional_id)
    carry_out(machine, transaction, after, now, decision)


def carry_out(
    machine: TransactionMachine, transaction: Transaction, record: TransactionRecord, now: Now, decision: Decision
) -> None:
    """Tells the shell to write the markers of what is prepared; without partitions nobody needs one."""
    if not record.partitions:
        decision.records.append(encode(completed(record, now.wall_ms)))
        return
    transaction.markers = WriteMarkers(
        record.transactional_id,
        record.producer_id,
        record.producer_epoch,
        record.status is PREPARE_COMMIT,
        machine.coordinator_epoch,
        tuple(sorted(record.partitions)),
        record.client_transaction_version,
    )
    decision.effects.append(transaction.markers)


def markers_written(machine: TransactionMachine, markers: WriteMarkers, now: Now, decision: Decision) -> None:
    """Ignored when they are not those that are waited for: a coordinator may have been loaded anew since."""
    if machine.waits_for(markers):
        transaction = machine.transactions[markers.transactional_id]
        transaction.markers = None
        decision.records.append(encode(completed(transaction.record, now.wall_ms)))
        # Whoever finds it prepared writes the markers again, which changes nothing. The next transaction has a record
        # behind this one, in the same batch or later: it never is without it.
        decision.may_linger = True
