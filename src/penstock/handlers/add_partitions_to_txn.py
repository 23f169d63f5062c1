"""AddPartitionsToTxn: partitions that a transaction is about to write to.

v2: PRODUCER_FENCED    v3: flexible    v4: several transactions, or only verifying them, for brokers (KIP-890)
v5: TRANSACTION_ABORTABLE

All partitions of a transaction are added, or none: where one does not exist, the others are not attempted, nor where a
producer names one that is not for producers. Those of Produce v12 and later leave it to the partitions' leaders.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.transaction_coordinator import ask
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


async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, context: RequestContext, broker: Broker
) -> AddPartitionsToTxnResponse:
    if context.api_version >= SEVERAL_SINCE:
        results = [await _added(transaction, context, broker) for transaction in request.transactions]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    only = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    result = await _added(only, context, broker)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=result.topic_results)


async def _added(
    transaction: AddPartitionsToTxnTransaction, context: RequestContext, broker: Broker
) -> AddPartitionsToTxnResult:
    refused = {}
    for topic in transaction.topics:
        for index in topic.partitions:
            code = _refusal(topic.name, index, context, broker.image)
            if code is not ErrorCode.NONE:
                refused[topic.name, index] = code
    if refused:
        return _result(transaction, lambda *each: refused.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED))
    if not transaction.verify_only:
        await broker.transactions.completed(transaction.transactional_id)
    try:
        added: AddPartitionsToTxnResult = await ask(
            TransactionMachine.add_partitions, transaction, transaction.transactional_id, context, broker
        )
    except BrokerError as error:
        code = error.code
        return _result(transaction, lambda topic, index: code)
    return added


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
