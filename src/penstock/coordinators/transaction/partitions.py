"""What belongs to a transaction: partitions are added before anything is written to them, and verified while it is.

A transaction begins with its first partition, and its time with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.transaction.commands import AddOffsets
from penstock.coordinators.transaction.ends import understood
from penstock.coordinators.transaction.records import encode
from penstock.coordinators.transaction.state import (
    BEING_ENDED,
    EPOCH_BUMPED,
    EPOCH_KEPT,
    ONGOING,
    Transaction,
    with_partitions,
)
from penstock.core.errors import ErrorCode
from penstock.core.ids import TopicPartition
from penstock.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from penstock.coordinators.transaction.machine import TransactionMachine

FENCED_SINCE = 2
"""Older clients do not know PRODUCER_FENCED."""

SENT_BY_BROKERS_SINCE = 4
"""For producers that leave it to the partition's leader to add it, which are those whose epoch is bumped."""

# By how much a record may grow when its transaction ends.
_ROOM_TO_END_BYTES = 64


def add_partitions(
    machine: TransactionMachine,
    request: AddPartitionsToTxnTransaction,
    caller: Caller,
    now: Now,
    decision: Decision,
) -> None:
    """All or none: who serves it has looked whether they exist."""
    if request.verify_only:
        verify(machine, request, caller, now, decision)
        return
    version = EPOCH_BUMPED if caller.api_version >= SENT_BY_BROKERS_SINCE else EPOCH_KEPT
    code = _add(machine, request, _partitions_of(request), version, now, decision)
    code = understood(code, caller, FENCED_SINCE)
    decision.answer(caller.ticket, _result(request, dict.fromkeys(_partitions_of(request), code)))


def add_offsets(machine: TransactionMachine, command: AddOffsets, caller: Caller, now: Now, decision: Decision) -> None:
    code = _add(machine, command.request, frozenset({command.partition}), EPOCH_KEPT, now, decision)
    decision.answer(caller.ticket, AddOffsetsToTxnResponse(error_code=understood(code, caller, FENCED_SINCE)))


def verify(
    machine: TransactionMachine,
    request: AddPartitionsToTxnTransaction,
    caller: Caller,
    now: Now,
    decision: Decision,
) -> None:
    """Whether a write to these partitions is part of the transaction that is open now (trap C9)."""
    transaction = machine.transactions.get(request.transactional_id)
    code = _mismatch(transaction, request)
    if code is ErrorCode.NONE and transaction is not None and transaction.record.status in BEING_ENDED:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    added = frozenset() if transaction is None else transaction.record.partitions
    codes = {}
    for partition in _partitions_of(request):
        is_missing = code is ErrorCode.NONE and partition not in added
        codes[partition] = ErrorCode.TRANSACTION_ABORTABLE if is_missing else code
    decision.answer(caller.ticket, _result(request, codes))


def _add(
    machine: TransactionMachine,
    request: AddPartitionsToTxnTransaction | AddOffsetsToTxnRequest,
    partitions: frozenset[TopicPartition],
    version: int,
    now: Now,
    decision: Decision,
) -> ErrorCode:
    transaction = machine.transactions.get(request.transactional_id)
    if transaction is not None and transaction.record.status in BEING_ENDED:
        # Before all else: it may already use the id which becomes its own when this has ended.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    mismatch = _mismatch(transaction, request)
    if mismatch is not ErrorCode.NONE:
        return mismatch
    assert transaction is not None
    record = transaction.record
    if partitions <= record.partitions:
        return ErrorCode.NONE
    after = with_partitions(record, partitions, version, now.wall_ms)
    encoded = encode(after)
    if len(encoded.key) + len(encoded.value or b"") + _ROOM_TO_END_BYTES > machine.config.max_record_bytes:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka says that its log does not take the record
    decision.records.append(encoded)
    if record.status is not ONGOING:
        machine.start_timeout(after, now, elapsed_ms=0)
    return ErrorCode.NONE


def _mismatch(
    transaction: Transaction | None, request: AddPartitionsToTxnTransaction | AddOffsetsToTxnRequest
) -> ErrorCode:
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if transaction is None or request.producer_id != transaction.record.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if request.producer_epoch != transaction.record.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def _partitions_of(request: AddPartitionsToTxnTransaction) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, each) for topic in request.topics for each in topic.partitions)


def _result(request: AddPartitionsToTxnTransaction, codes: dict[TopicPartition, ErrorCode]) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=request.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=each, partition_error_code=codes[TopicPartition(topic.name, each)]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
