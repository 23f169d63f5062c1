"""What a handler gets besides its request: who asks, and the broker's parts it may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.config import BrokerConfig
from penstock.core.ids import BrokerId
from penstock.core.metrics import ApiMetrics
from penstock.net.connection import Session
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

if TYPE_CHECKING:
    from penstock.controller.forwarding import Controller
    from penstock.controller.producer_ids import ProducerIds
    from penstock.coordinators.groups import GroupCoordinators
    from penstock.coordinators.transactions import TransactionCoordinators
    from penstock.handlers.fetch_sessions import FetchSessions
    from penstock.metadata.follower import Follower
    from penstock.metadata.image import ClusterImage
    from penstock.replication.fetch_session import ServingSessions
    from penstock.replication.manager import ReplicaManager


@dataclass(frozen=True, slots=True)
class RequestContext:
    session: Session
    client_id: str | None
    api_version: int
    correlation_id: int

    @property
    def principal(self) -> str:
        return self.session.principal

    @property
    def listener(self) -> str:
        return self.session.listener


Done = Callable[[Any], None]
"""Takes the response, or the BrokerError that made the whole request fail."""


class ApiVersionRange(Protocol):
    """What ApiVersions tells of an API; the rows of `handlers/registry.py` are that."""

    @property
    def key(self) -> int: ...
    @property
    def min_version(self) -> int: ...
    @property
    def max_version(self) -> int: ...


@dataclass(slots=True)
class Broker:
    """The parts of the broker that handlers use, put together in `server/node.py`."""

    node_id: BrokerId
    current_config: Callable[[], BrokerConfig]
    clock: Clock
    files: Files
    follower: Follower
    controller: Controller
    producer_ids: ProducerIds
    partitions: ReplicaManager
    groups: GroupCoordinators
    transactions: TransactionCoordinators
    fetch_sessions: FetchSessions
    replica_sessions: ServingSessions
    tasks: TaskGroup
    loop: asyncio.AbstractEventLoop
    api_metrics: dict[int, ApiMetrics]
    apis: Mapping[int, ApiVersionRange]

    @property
    def config(self) -> BrokerConfig:
        """With the dynamic overrides that hold now."""
        return self.current_config()

    @property
    def image(self) -> ClusterImage:
        return self.follower.image
