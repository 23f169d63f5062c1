"""InitProducerId: the identity with which an idempotent or transactional producer numbers its batches.

v2: flexible    v3: a producer may bring its id and epoch (KIP-360)    v4: PRODUCER_FENCED
v5: TRANSACTION_ABORTABLE (KIP-890)

Without a transactional id every request gets a new producer id with epoch 0, also when the producer brings an old one:
as in Kafka, only a transactional id ties a producer to its predecessor, whom it fences.
"""

from __future__ import annotations

from typing import cast

from penstock.coordinators.transaction.commands import InitProducerId
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.handlers.transaction_coordinator import ask_with_producer_id
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, broker: Broker
) -> InitProducerIdResponse:
    if request.transactional_id == "":
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together")
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
    answer = await ask_with_producer_id(TransactionMachine.init_producer_id, InitProducerId, request, context, broker)
    return cast(InitProducerIdResponse, answer)
