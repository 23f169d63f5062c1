"""The cluster as a client on one listener sees it: which brokers it can reach, and what that makes of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.controller.topic_names import check_topic_name
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata.image import ClusterImage, PartitionImage
from penstock.metadata.records import Endpoint

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class ReachableBroker:
    broker_id: BrokerId
    endpoint: Endpoint
    rack: str | None


class Leadership(NamedTuple):
    """Who leads a partition, or why a client cannot be told. A tuple: there is one per partition of every answer."""

    error_code: ErrorCode
    leader_id: int


_LEADER_NOT_AVAILABLE = Leadership(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)
_LISTENER_NOT_FOUND = Leadership(ErrorCode.LISTENER_NOT_FOUND, NO_LEADER)


class ClusterView:
    def __init__(self, image: ClusterImage, listener: str, here: BrokerId) -> None:
        """`here` is the broker that answers. It can be reached, whatever became of its session: a client that is told
        of no broker at all forgets those that it knew, and never comes back.
        """
        self.image = image
        self.brokers = [
            ReachableBroker(broker.broker_id, endpoint, broker.rack)
            for broker in image.brokers.values()
            if (broker.broker_id in image.sessions or broker.broker_id == here)
            and (endpoint := broker.listener(listener)) is not None
        ]
        self._led_by = {broker.broker_id: Leadership(ErrorCode.NONE, broker.broker_id) for broker in self.brokers}

    def leadership(self, partition: PartitionImage) -> Leadership:
        leader = partition.leader
        if leader is None or self.image.session_epoch(leader) != partition.leader_broker_epoch:
            return _LEADER_NOT_AVAILABLE
        return self._led_by.get(leader, _LISTENER_NOT_FOUND)

    def leader(self, partition: PartitionImage) -> ReachableBroker | None:
        return next((each for each in self.brokers if each.broker_id == partition.leader), None)

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        return [replica for replica in partition.replicas if replica not in self._led_by]


def unknown_topic_code(name: str) -> ErrorCode:
    """The code for a name that no topic has: a name that none can have gets another one."""
    try:
        check_topic_name(name)
    except BrokerError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
