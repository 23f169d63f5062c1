"""DescribeTransactions: state, producer, timeout and partitions of transactional ids."""

from __future__ import annotations

from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.transaction_coordinator import ask
from penstock.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


async def describe_transactions(
    request: DescribeTransactionsRequest, context: RequestContext, broker: Broker
) -> DescribeTransactionsResponse:
    response = DescribeTransactionsResponse()
    for transactional_id in request.transactional_ids:
        try:
            described = await ask(TransactionMachine.describe, transactional_id, transactional_id, context, broker)
        except BrokerError as error:
            described = DescribedTransaction(transactional_id=transactional_id, error_code=error.code)
        response.transaction_states.append(described)
    return response
