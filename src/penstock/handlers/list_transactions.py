"""ListTransactions: the transactional ids that this broker coordinates; a client asks every broker.

v1: by duration (KIP-994)    v2: by a pattern of ids (KIP-1152)
"""

from __future__ import annotations

from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.errors import BrokerError
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.transaction_coordinator import ask_shard
from penstock.protocol.messages.transactions import ListTransactionsRequest, ListTransactionsResponse


async def list_transactions(
    request: ListTransactionsRequest, context: RequestContext, broker: Broker
) -> ListTransactionsResponse:
    response = ListTransactionsResponse()
    for shard in broker.transactions.shards():
        try:
            listed = await ask_shard(shard, TransactionMachine.list_all, request, context)
        except BrokerError as error:
            response.error_code = error.code  # an incomplete list must not look complete
            continue
        response.transaction_states += listed.transaction_states
        response.unknown_state_filters = listed.unknown_state_filters
        response.error_code = response.error_code or listed.error_code
    return response
