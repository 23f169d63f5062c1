"""Looking at transactions: ListTransactions and DescribeTransactions."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from penstock.coordinators.decision import Caller, Decision, Now
from penstock.coordinators.regex import Pattern, compile_regex
from penstock.coordinators.transaction.records import TransactionRecord, TransactionStatus
from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.messages.transactions import (
    DescribedTransaction,
    DescribedTransactionTopic,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

if TYPE_CHECKING:
    from penstock.coordinators.transaction.machine import TransactionMachine

_STATUS_NAMES = frozenset(status.kafka_name for status in TransactionStatus)


def describe(machine: TransactionMachine, transactional_id: str, caller: Caller, now: Now, decision: Decision) -> None:
    transaction = machine.transactions.get(transactional_id)
    described = DescribedTransaction(transactional_id=transactional_id)
    if not transactional_id:
        described.error_code = ErrorCode.INVALID_REQUEST
    elif transaction is None:
        described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    else:
        _describe(transaction.record, described)
    decision.answer(caller.ticket, described)


def _describe(record: TransactionRecord, described: DescribedTransaction) -> None:
    described.transaction_state = record.status.kafka_name
    described.transaction_timeout_ms = record.timeout_ms
    described.transaction_start_time_ms = record.start_ms
    described.producer_id = record.producer_id
    described.producer_epoch = record.producer_epoch
    described.topics = [
        DescribedTransactionTopic(topic=topic, partitions=[each.partition for each in partitions])
        for topic, partitions in groupby(sorted(record.partitions), key=lambda each: each.topic)
    ]


def list_all(
    machine: TransactionMachine, request: ListTransactionsRequest, caller: Caller, now: Now, decision: Decision
) -> None:
    """Those of this partition. A state that does not exist matches nothing, and is named in the answer."""
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATUS_NAMES]
    )
    pattern = None
    try:
        if request.transactional_id_pattern:
            pattern = compile_regex(request.transactional_id_pattern, "TransactionalIdPattern")
    except BrokerError as error:
        response.error_code = error.code
    else:
        records = [transaction.record for transaction in machine.transactions.values()]
        response.transaction_states = [
            ListedTransaction(
                transactional_id=record.transactional_id,
                producer_id=record.producer_id,
                transaction_state=record.status.kafka_name,
            )
            for record in records
            if _is_asked_for(record, request, pattern, now)
        ]
    decision.answer(caller.ticket, response)


def _is_asked_for(
    record: TransactionRecord, request: ListTransactionsRequest, pattern: Pattern | None, now: Now
) -> bool:
    if request.producer_id_filters and record.producer_id not in request.producer_id_filters:
        return False
    if request.state_filters and record.status.kafka_name not in request.state_filters:
        return False
    # What has not begun counts as running since 1970, as in Kafka.
    if request.duration_filter >= 0 and now.wall_ms - record.start_ms <= request.duration_filter:
        return False
    return pattern is None or bool(pattern.Match(record.transactional_id))
