"""SuspectLog: a follower got something that is no batch. If it lies so in this leader's log, that is damaged.

Ours, and served on the internal listener only.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.protocol.messages.internal import SuspectLogRequest, SuspectLogResponse


def suspect_log(request: SuspectLogRequest, context: RequestContext, broker: Broker, done: Done) -> None:
    replica = context.session.broker_id
    if replica is None:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers have replicas")
    with suppress(BrokerError):  # the leader is another by now
        partition = broker.partitions.find_led(request.topic_id, request.partition)
        if request.leader_epoch == partition.leader_epoch:
            partition.log.suspicion = f"broker {replica} cannot append what follows {request.offset}"
    done(SuspectLogResponse())
