"""InitProducerId: the identity with which an idempotent producer numbers its batches.

v2: flexible    v3: a producer may bring its id and epoch (KIP-360)    v4: PRODUCER_FENCED
v5: TRANSACTION_ABORTABLE (KIP-890)

Without a transactional id every request gets a new producer id with epoch 0, also when the producer brings an old one:
as in Kafka, only a transactional id ties a producer to its predecessor. Transactions are not served yet: their
requests are answered as if their coordinator were away.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(
    request: InitProducerIdRequest, context: RequestContext, broker: Broker
) -> InitProducerIdResponse:
    if request.transactional_id == "":
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
    if request.transactional_id is not None:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no transactions yet")
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
