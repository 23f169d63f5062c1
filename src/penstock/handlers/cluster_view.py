"""The cluster as a client on one listener sees it: which brokers it can reach, and what that makes of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.controller.topic_names import check_topic_name
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata.image import ClusterImage, PartitionImage
from penstock.metadata.records import Endpoint

NO_LEADER = NO_BROKER = -1


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
    def __init__(self, image: ClusterImage, listener: str, asked: BrokerId, *, is_cut_off: bool = False) -> None:
        """`asked` is the broker that answers. It is always there: a client that is told of no broker at all, because
        the only one has just lost its session, has nobody left to ask (librdkafka 2.16 then never asks again).

        Unless it `is_cut_off`, and there are others: they would not name it any more. Clients prefer to ask whom they
        have just talked to (librdkafka), and would get the same old answer for ever.
        """
        self.image = image
        self._asked = asked
        brokers = [
            ReachableBroker(broker.broker_id, endpoint, broker.rack)
            for broker in image.brokers.values()
            if (broker.broker_id in image.sessions or broker.broker_id == asked)
            and (endpoint := broker.listener(listener)) is not None
        ]
        others = [broker for broker in brokers if broker.broker_id != asked]
        is_left_out = is_cut_off and bool(others)
        self.brokers = others if is_left_out else brokers
        self._left_out = asked if is_left_out else None
        self._led_by = {broker.broker_id: Leadership(ErrorCode.NONE, broker.broker_id) for broker in self.brokers}

    def way_to_controller(self, *, is_overdue: bool) -> int:
        """Who takes requests that are for the controller: who was asked, or another if it does not name itself.

        One whose session is overdue (`is_overdue`) can pass on requests, but would not see what became of them.
        """
        controller = self.image.controller_id
        if is_overdue and controller is not None and controller in self._led_by:
            return controller
        reachable = [broker.broker_id for broker in self.brokers]
        return self._asked if self._asked in reachable else next(iter(reachable), NO_BROKER)

    def leadership(self, partition: PartitionImage) -> Leadership:
        leader = self.image.leader_of(partition)
        if leader is None or leader == self._left_out:
            return _LEADER_NOT_AVAILABLE
        return self._led_by.get(leader, _LISTENER_NOT_FOUND)

    def leader(self, partition: PartitionImage) -> ReachableBroker | None:
        leader = self.image.leader_of(partition)
        return next((each for each in self.brokers if each.broker_id == leader), None)

    def offline_replicas(self, partition: PartitionImage) -> list[int]:
        return [replica for replica in partition.replicas if replica not in self._led_by]


def unknown_topic_code(name: str) -> ErrorCode:
    """The code for a name that no topic has: a name that none can have gets another one."""
    try:
        check_topic_name(name)
    except BrokerError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
