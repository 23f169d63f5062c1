"""AddPartitionsToTxn: partitions that a transaction is about to write to.

v2: PRODUCER_FENCED    v3: flexible    v4: several transactions, or only verifying them, for brokers (KIP-890)
v5: TRANSACTION_ABORTABLE

All partitions of a transaction are added, or none: where one does not exist, the others are not attempted, nor where a
producer names one that is not for producers. Those of Produce v12 and later leave it to the partitions' leaders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.coordinators.transaction_peers import ANSWERED_WITHIN_S
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.handlers.transaction_coordinator import submit
from penstock.metadata.image import ClusterImage
from penstock.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

SEVERAL_SINCE = 4


def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext, broker: Broker, done: Done
) -> None:
    if context.api_version < SEVERAL_SINCE:
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )

        def added_only(result: AddPartitionsToTxnResult) -> None:
            done(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results))

        _add(only, context, broker, added_only)
        return
    results: dict[int, AddPartitionsToTxnResult] = {}

    def added(position: int, result: AddPartitionsToTxnResult) -> None:
        results[position] = result
        if len(results) == len(request.transactions):
            done(AddPartitionsToTxnResponse(results_by_transaction=[results[each] for each in sorted(results)]))

    for position, transaction in enumerate(request.transactions):
        answered: Callable[[AddPartitionsToTxnResult], None] = partial(added, position)
        if context.session.broker_id is not None:
            answered = _within(ANSWERED_WITHIN_S, transaction, broker, answered)
        _add(transaction, context, broker, answered)
    if not request.transactions:
        done(AddPartitionsToTxnResponse())


def _within(
    seconds: float,
    transaction: AddPartitionsToTxnTransaction,
    broker: Broker,
    added: Callable[[AddPartitionsToTxnResult], None],
) -> Callable[[AddPartitionsToTxnResult], None]:
    """`added`, but no later than that: one transaction must not hold up the others that another broker asks about."""

    def once(result: AddPartitionsToTxnResult) -> None:
        if not timer.cancelled():
            timer.cancel()
            added(result)

    timed_out = _result(transaction, lambda topic, index: ErrorCode.REQUEST_TIMED_OUT)
    timer = broker.loop.call_later(seconds, lambda: once(timed_out))
    return once


def _add(
    transaction: AddPartitionsToTxnTransaction,
    context: RequestContext,
    broker: Broker,
    added: Callable[[AddPartitionsToTxnResult], None],
) -> None:
    refused = {}
    for topic in transaction.topics:
        for index in topic.partitions:
            code = _refusal(topic.name, index, context, broker.image)
            if code is not ErrorCode.NONE:
                refused[topic.name, index] = code
    if refused:
        added(_result(transaction, lambda *each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED)))
        return

    def answered(outcome: AddPartitionsToTxnResult | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            code = outcome.code
            outcome = _result(transaction, lambda topic, index: code)
        added(outcome)

    ask = partial(
        submit, TransactionMachine.add_partitions, transaction, transaction.transactional_id, context, broker, answered
    )
    if transaction.verify_only or context.session.broker_id is not None:
        ask()  # brokers ask again
    else:
        broker.transactions.when_completed(transaction.transactional_id, ask)


def _refusal(name: str, index: int, context: RequestContext, image: ClusterImage) -> ErrorCode:
    if name in INTERNAL_TOPICS and context.api_version < SEVERAL_SINCE:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED  # offsets have a request of their own
    topic = image.topics.get(name)
    is_there = topic is not None and 0 <= index < len(topic.partitions)
    return ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _result(
    transaction: AddPartitionsToTxnTransaction, code_of: Callable[[str, int], ErrorCode]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code_of(topic.name, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in transaction.topics
        ],
    )
