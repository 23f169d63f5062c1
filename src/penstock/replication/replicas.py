"""This broker among the others that hold its partitions: whom it follows, and what it wants of the controller.

There is a fetcher for each broker that leads something which this one follows. In-sync sets that partitions want are
asked for together: when a broker comes back, thousands of them change at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId
from penstock.metadata.image import ClusterImage
from penstock.net.channel import Channels
from penstock.replication.fetcher import Fetcher
from penstock.replication.follower import StartAnew, Truncate
from penstock.replication.isr import Proposal
from penstock.replication.partition import Partition
from penstock.replication.throttle import Throttle
from penstock.runtime.clock import Clock
from penstock.runtime.tasks import TaskGroup

log = logging.getLogger(__name__)


class WantedIsr(NamedTuple):
    partition: Partition
    leader_epoch: int
    proposal: Proposal


# The partition's epoch after the change, or why there was none, for each.
Alter = Callable[[Sequence[WantedIsr]], Awaitable[Sequence[int | BrokerError]]]
Shorten = Callable[[Partition, Truncate | StartAnew], Awaitable[None]]


class Replicas:
    def __init__(
        self,
        broker_id: BrokerId,
        *,
        image: Callable[[], ClusterImage],
        session_epoch: Callable[[], int | None],
        session_deadline_ms: Callable[[], int],
        alter: Alter,
        fetching: Channels,
        talking: Channels,
        config: Callable[[], BrokerConfig],
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._session_epoch = session_epoch
        self._session_deadline_ms = session_deadline_ms
        self._alter = alter
        self._fetching = fetching
        self._talking = talking
        self._config = config
        self._tasks = tasks
        self._clock = clock
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._followed: dict[Partition, BrokerId] = {}
        self._wanted: list[WantedIsr] = []
        self._is_asking = False
        self._throttle = Throttle()

    @property
    def session_epoch(self) -> int | None:
        """Of this process's own session, whatever the image says of this broker."""
        return self._session_epoch()

    # Following

    def follow(self, partition: Partition, leader: BrokerId, shorten: Shorten) -> None:
        """The partition is in a new leader epoch, led by that broker."""
        before = self._followed.get(partition)
        if before is not None and before != leader:
            self._fetchers[before].remove(partition)
        self._followed[partition] = leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = self._new_fetcher(leader, shorten)
        fetcher.add(partition)

    def forget(self, partition: Partition) -> None:
        """This broker leads it now, or nobody does, or it is gone."""
        leader = self._followed.pop(partition, None)
        if leader is not None:
            self._fetchers[leader].remove(partition)

    def _new_fetcher(self, leader: BrokerId, shorten: Shorten) -> Fetcher:
        fetcher = Fetcher(
            leader,
            broker_id=self._broker_id,
            session_epoch=self._session_epoch,
            address=lambda: self._image().internal_address(leader),
            fetching=self._fetching,
            talking=self._talking,
            shorten=shorten,
            holds_up=self._holds_up,
            received=self._received,
            config=self._config,
            clock=self._clock,
        )
        self._tasks.spawn(fetcher.fetch(), name=f"fetch-from-{leader}")
        self._tasks.spawn(fetcher.report(), name=f"report-to-{leader}")
        return fetcher

    def _holds_up(self, partition: Partition) -> bool:
        """Whether a replica has to wait before it catches up further (KIP-73)."""
        if not partition.is_throttled_as_follower or self._is_in_sync(partition):
            return False
        return self._throttle.is_exceeded(self._throttled_rate(), self._clock.monotonic_ms())

    def _received(self, partition: Partition, size: int) -> None:
        if partition.is_throttled_as_follower:
            self._throttle.take(size, self._throttled_rate(), self._clock.monotonic_ms())

    def _throttled_rate(self) -> int:
        return self._config().int("follower.replication.throttled.rate")

    def _is_in_sync(self, partition: Partition) -> bool:
        topic = self._image().topics_by_id.get(partition.topic_id)
        return topic is not None and self._broker_id in topic.partitions[partition.topic_partition.partition].isr

    def progressed(self, partition: Partition) -> None:
        leader = self._followed.get(partition)
        if leader is not None:
            self._fetchers[leader].progressed(partition)

    # Leading

    @property
    def is_overdue(self) -> bool:
        return self._clock.monotonic_ms() >= self._session_deadline_ms()

    def proposed(self, partition: Partition, leader_epoch: int, proposal: Proposal) -> None:
        self._wanted.append(WantedIsr(partition, leader_epoch, proposal))
        if not self._is_asking:
            self._is_asking = True
            self._tasks.spawn(self._ask(), name="alter-partitions")

    async def _ask(self) -> None:
        try:
            while self._wanted:
                await asyncio.sleep(0)  # what else this turn wants goes along
                wanted, self._wanted = self._wanted, []
                try:
                    outcomes: Sequence[int | BrokerError] = await self._alter(wanted)
                except BrokerError as error:
                    outcomes = [error] * len(wanted)
                now_ms = self._clock.monotonic_ms()
                for (partition, leader_epoch, proposal), outcome in zip(wanted, outcomes, strict=True):
                    if isinstance(outcome, BrokerError):
                        log.info(
                            "in-sync replicas not changed",
                            extra={"partition": str(partition.topic_partition), "reason": outcome.message},
                        )
                        partition.undecided(leader_epoch, proposal, outcome.code, now_ms)
                    else:
                        partition.decided(leader_epoch, proposal, outcome, now_ms)
        finally:
            self._is_asking = False
