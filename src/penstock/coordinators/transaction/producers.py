"""InitProducerId: a producer comes, and whoever had its transactional id before is fenced.

It gets the next epoch, or, when these are used up, a new producer id. A producer that brings its id and epoch goes on
after an error (KIP-360): it is refused when it is not the one that came last. A transaction that is under way is
aborted first; the producer is told to ask again, and is given its epoch when that is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.transaction import ends
from penstock.coordinators.transaction.commands import InitProducerId, NeedsProducerId
from penstock.coordinators.transaction.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TransactionRecord, encode
from penstock.coordinators.transaction.state import (
    BEING_ENDED,
    LAST_EPOCH_GIVEN,
    ONGOING,
    Transaction,
    TransactionConfig,
    created,
    initialised,
)
from penstock.core.errors import ErrorCode
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.schema import Struct

if TYPE_CHECKING:
    from penstock.coordinators.transaction.machine import TransactionMachine

FENCED_SINCE = 4
"""Older clients do not know PRODUCER_FENCED."""


class _Turn(NamedTuple):
    machine: TransactionMachine
    request: InitProducerIdRequest
    new_producer_id: int | None
    now: Now
    decision: Decision


class _Expected(NamedTuple):
    producer_id: int
    producer_epoch: int


def init_producer_id(
    machine: TransactionMachine, command: InitProducerId, caller: Caller, now: Now, decision: Decision
) -> None:
    turn = _Turn(machine, command.request, command.new_producer_id, now, decision)
    answer = _decided(turn)
    if isinstance(answer, ErrorCode):
        code = ends.understood(answer, caller, FENCED_SINCE)
        answer = InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)
    decision.answer(caller.ticket, answer)


def _decided(turn: _Turn) -> Struct | ErrorCode:
    request = turn.request
    refusal = _refusal(request, turn.machine.config)
    if refusal is not ErrorCode.NONE:
        return refusal
    assert request.transactional_id, "was refused"
    transaction = turn.machine.transactions.get(request.transactional_id)
    if transaction is None:
        # What it brings is that of a transactional id which has expired.
        if turn.new_producer_id is None:
            return NeedsProducerId()
        new = created(request.transactional_id, turn.new_producer_id, request.transaction_timeout_ms, turn.now.wall_ms)
        turn.decision.records.append(encode(new))
        return _given(new)
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = _Expected(request.producer_id, request.producer_epoch)
    if transaction.record.status in BEING_ENDED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _may_go_on(transaction.record, expected):
        return ErrorCode.PRODUCER_FENCED
    if transaction.record.status is ONGOING:
        ends.abort_and_fence(turn.machine, transaction, turn.now, turn.decision)
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return _renewed(turn, transaction, expected)


def _refusal(request: InitProducerIdRequest, config: TransactionConfig) -> ErrorCode:
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.transaction_timeout_ms <= config.transaction_max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _may_go_on(record: TransactionRecord, expected: _Expected) -> bool:
    """Whether it may be the last producer, as far as its id tells."""
    if record.status is ONGOING:
        # Kafka looks at the id only. A fenced instance that recovers would abort the transaction of the one that
        # fenced it, and learn only then that it is fenced itself.
        return expected == (record.producer_id, record.producer_epoch)
    # The previous one for a retry: its epochs were used up, and the answer with the new id got lost.
    return expected.producer_id in (record.producer_id, record.previous_producer_id)


def _renewed(turn: _Turn, transaction: Transaction, expected: _Expected | None) -> Struct | ErrorCode:
    record = transaction.record
    producer_id, producer_epoch = record.producer_id, record.producer_epoch + 1
    if expected is not None and expected != (record.producer_id, record.producer_epoch):
        if expected.producer_epoch != transaction.last_producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        # A retry: it gets what it was given before.
        producer_epoch = record.producer_epoch
    if producer_epoch > LAST_EPOCH_GIVEN:
        if turn.new_producer_id is None:
            return NeedsProducerId()
        producer_id, producer_epoch = turn.new_producer_id, 0
    after = initialised(record, producer_id, producer_epoch, turn.request.transaction_timeout_ms, turn.now.wall_ms)
    transaction.last_producer_epoch = NO_PRODUCER_EPOCH if expected is None else expected.producer_epoch
    turn.decision.records.append(encode(after))
    return _given(after)


def _given(record: TransactionRecord) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=record.producer_id, producer_epoch=record.producer_epoch)
