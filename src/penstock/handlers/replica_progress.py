"""ReplicaProgress: a follower says how much it has on disk, which acknowledgements wait for, how much it has compacted,
and that its fetch, which waits here, should wait no longer.

Ours, and served on the internal listener only.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, Done, RequestContext
from penstock.protocol.messages.internal import ReplicaProgressRequest, ReplicaProgressResponse


def replica_progress(request: ReplicaProgressRequest, context: RequestContext, broker: Broker, done: Done) -> None:
    replica = context.session.broker_id
    if replica is None:
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers have replicas")
    now_ms = broker.clock.monotonic_ms()
    removable_ends = []
    for each in request.partitions:
        removable_end = 0
        with suppress(BrokerError):  # the leader is another by now, and the follower is about to hear of it
            partition = broker.partitions.find(each.topic_id, each.partition)
            if each.leader_epoch == partition.leader_epoch:
                partition.flushed_by(
                    replica, request.broker_epoch, each.end_offset, each.flushed_offset, now_ms, each.cleaned_offset
                )
                removable_end = partition.removable_end
        removable_ends.append(removable_end)
    if request.hurried_session_id:
        with suppress(BrokerError):  # that session is over, and so is the wait
            session = broker.replica_sessions.find(replica, request.hurried_session_id)
            session.hurry(request.hurried_session_epoch)
    done(ReplicaProgressResponse(removable_ends=removable_ends))
