"""The listener that only other brokers are served on, put together: socket, gate, and the pipeline behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.core.config import BrokerConfig
from penstock.core.errors import ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.listeners import INTERNAL_LISTENER
from penstock.handlers.context import Broker
from penstock.handlers.internal_gate import MAX_UNPROVEN_FRAME_BYTES, InternalGate
from penstock.handlers.internal_registry import INTERNAL_APIS, INTERNAL_FLEXIBLE_SINCE
from penstock.handlers.pipeline import Pipeline
from penstock.metadata.image import ClusterImage
from penstock.metadata.records import Endpoint
from penstock.net.channel import NotSent
from penstock.net.cluster_key import Credentials
from penstock.net.listener import ConnectionLimits, Listener
from penstock.runtime.tick import Tick


def bind_internal_listener(broker: Broker, limits: ConnectionLimits, tick: Tick) -> Listener:
    """Listens; connections wait until `start`. Whoever is not proven yet is held to small frames."""
    # Who asks here for the versions is told of the brokers' own APIs as well.
    pipeline = Pipeline(replace(broker, apis=INTERNAL_APIS), INTERNAL_APIS, INTERNAL_FLEXIBLE_SINCE)
    gate = InternalGate(pipeline.serve, lambda: broker.image.cluster_key, limits.max_frame_bytes)
    listener = Listener(
        name=INTERNAL_LISTENER,
        limits=internal_limits(limits),
        serve=gate.serve,
        tick=tick,
        clock=broker.clock,
    )
    wanted = broker.config.internal_listener
    try:
        listener.bind(wanted.host, wanted.port)
    except OSError as error:
        raise OSError(
            f"cannot listen on {wanted.host}:{wanted.port} (penstock.internal.port): {error.strerror}"
        ) from error
    return listener


def internal_limits(limits: ConnectionLimits) -> ConnectionLimits:
    return replace(limits, max_frame_bytes=MAX_UNPROVEN_FRAME_BYTES)


def internal_endpoint(config: BrokerConfig, listener: Listener) -> Endpoint:
    """What the other brokers are told; a port of 0 has become a real one by now."""
    return Endpoint(name=INTERNAL_LISTENER, host=config.advertised_internal_listener.host, port=listener.address[1])


def credentials(broker_id: BrokerId, image: Callable[[], ClusterImage]) -> Callable[[], Credentials]:
    """How this broker proves itself to others, with the key that the metadata has when it connects."""

    def current() -> Credentials:
        cluster_key = image().cluster_key
        if not cluster_key:
            raise NotSent(ErrorCode.SASL_AUTHENTICATION_FAILED, "this broker does not know the cluster's key yet")
        return Credentials(broker_id, cluster_key)

    return current
