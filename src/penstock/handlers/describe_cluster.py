"""DescribeCluster: the brokers, the controller and the cluster's id, without topics.

v1: brokers or controllers (KIP-919); we have no separate controllers to ask for    v2: fenced brokers (KIP-1073)
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.authorized_operations import CLUSTER_OPERATIONS
from penstock.handlers.cluster_view import ClusterView
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.cluster import (
    BROKER_ENDPOINTS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

CONTROLLER_ENDPOINTS = 2


async def describe_cluster(
    request: DescribeClusterRequest, context: RequestContext, broker: Broker
) -> DescribeClusterResponse:
    _check_endpoint_type(request.endpoint_type)
    view = ClusterView(broker.image, context.listener, broker.node_id)
    response = DescribeClusterResponse(
        cluster_id=view.image.cluster_id or "",
        controller_id=-1 if view.image.controller_id is None else view.image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=each.broker_id, host=each.endpoint.host, port=each.endpoint.port, rack=each.rack
            )
            for each in view.brokers
        ],
    )
    if request.include_fenced_brokers:
        response.brokers += _fenced(view, context.listener)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _fenced(view: ClusterView, listener: str) -> list[DescribeClusterBroker]:
    """Brokers that are registered and not there. One that was never ready has no address yet."""
    there = {each.broker_id for each in view.brokers}
    return [
        DescribeClusterBroker(
            broker_id=each.broker_id,
            host="" if (endpoint := each.listener(listener)) is None else endpoint.host,
            port=-1 if endpoint is None else endpoint.port,
            rack=each.rack,
            is_fenced=True,
        )
        for each in view.image.brokers.values()
        if each.broker_id not in there
    ]


def _check_endpoint_type(endpoint_type: int) -> None:
    if endpoint_type == CONTROLLER_ENDPOINTS:
        raise BrokerError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's listener, not a controller's")
    if endpoint_type != BROKER_ENDPOINTS:
        raise BrokerError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there are no endpoints of type {endpoint_type}")
