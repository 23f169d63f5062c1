"""WriteTxnMarkers: a coordinator ends transactions in partitions that this broker leads; administrators do, too.

v1: flexible    v2: which version of transactions the producer uses (KIP-1228)

Brokers ask on the internal listener. On the others it is open to tools that end what hangs (`penstock transaction abort
--hanging`, Admin.abortTransaction), as in Kafka while there is no authorizer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.coordinators.transaction_peers import ANSWERED_WITHIN_S
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.control import EndMarker
from penstock.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

Outcome = asyncio.Future[ErrorCode]

# Said by the coordinator of a group.
_NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


async def write_txn_markers(
    request: WriteTxnMarkersRequest, context: RequestContext, broker: Broker
) -> WriteTxnMarkersResponse:
    refusal, timeout_s = None, None
    if context.session.broker_id is not None:
        timeout_s = ANSWERED_WITHIN_S
        if broker.transactions.peers.is_superseded(context.session.broker_id, context.session.connection_id):
            refusal = BrokerError(ErrorCode.NOT_COORDINATOR, "on a connection that its broker has given up")
    # All are on their way before the first is waited for: what came late could end the next transaction.
    begun = [
        [
            (
                topic.name,
                [(index, _begun(asked, topic.name, index, broker, refusal)) for index in topic.partition_indexes],
            )
            for topic in asked.topics
        ]
        for asked in request.markers
    ]
    outcomes = [outcome for topics in begun for _, rows in topics for _, outcome in rows]
    if outcomes:
        await asyncio.wait(outcomes, timeout=timeout_s)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=asked.producer_id, topics=[_topic_result(name, rows) for name, rows in topics]
            )
            for asked, topics in zip(request.markers, begun, strict=True)
        ]
    )


def _begun(asked: WritableTxnMarker, topic: str, index: int, broker: Broker, refusal: BrokerError | None) -> Outcome:
    outcome: Outcome = asyncio.get_running_loop().create_future()

    def done(error: BrokerError | None) -> None:
        outcome.set_result(ErrorCode.NONE if error is None else error.code)

    if asked.producer_id < 0 or asked.producer_epoch < 0:
        # Kafka finds that out while it builds the record (UNKNOWN_SERVER_ERROR).
        refusal = BrokerError(ErrorCode.INVALID_REQUEST, "a marker for nobody")
    if refusal is not None:
        done(refusal)
    else:
        marker = EndMarker(asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch)
        broker.transactions.write_marker(TopicPartition(topic, index), marker, asked.transaction_version, done)
    return outcome


def _topic_result(name: str, rows: Sequence[tuple[int, Outcome]]) -> WritableTxnMarkerTopicResult:
    return WritableTxnMarkerTopicResult(
        name=name,
        partitions=[
            WritableTxnMarkerPartitionResult(partition_index=index, error_code=_code(outcome))
            for index, outcome in rows
        ],
    )


def _code(outcome: Outcome) -> ErrorCode:
    if not outcome.done():
        return ErrorCode.REQUEST_TIMED_OUT
    code = outcome.result()
    # A coordinator of transactions takes it for the leader of any partition, which is to be looked for again.
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_YET else code
