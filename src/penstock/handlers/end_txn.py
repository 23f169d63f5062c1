"""EndTxn: commit or abort.

v2: PRODUCER_FENCED    v3: flexible    v4: TRANSACTION_ABORTABLE (KIP-890)
v5: the answer has the epoch of the next transaction

The answer comes when the outcome is durable; markers follow.
"""

from __future__ import annotations

from penstock.coordinators.transaction.commands import EndTransaction
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.handlers.transaction_coordinator import submit_with_producer_id
from penstock.protocol.messages.transactions import EndTxnRequest


def end_txn(request: EndTxnRequest, context: RequestContext, broker: Broker, done: Done) -> None:
    submit_with_producer_id(TransactionMachine.end, EndTransaction, request, context, broker, done)
