"""UnregisterBroker: forget a broker that has been taken out of the cluster.

Refused while the broker is alive or holds replicas. Kafka takes it out of every in-sync set instead, with what was on
it alone; here it is drained before.
"""

from __future__ import annotations

from penstock.controller.commands import UnregisterBroker
from penstock.core.ids import BrokerId
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.cluster import UnregisterBrokerRequest, UnregisterBrokerResponse


async def unregister_broker(
    request: UnregisterBrokerRequest, context: RequestContext, broker: Broker
) -> UnregisterBrokerResponse:
    await broker.controller.ask(UnregisterBroker(BrokerId(request.broker_id)), context.principal)
    return UnregisterBrokerResponse()
