"""Replicas of this broker that must not be elected: found out here, told to the controller, until it has heard.

A log comes under suspicion by whoever reads it (a fetch, the cleaner, a follower that cannot append what it got). Then
all of it is read; if it is damaged the replica goes offline at once. What happens next is the controller's decision,
and comes with the image: where another replica holds what is committed, this one begins anew (`ReplicaManager`). A sole
replica has nothing to begin anew from: it goes on as it is, and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.metadata.image import ClusterImage
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.replication.recovered import Recovered, is_lost, may_lack_committed
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.storage.log_dirs import DataDirectory
from penstock.storage.soundness import first_damage

log = logging.getLogger(__name__)

RETRY_S = 1.0
LOOK_S = 2.0
# For a cluster that is being upgraded.
UPGRADE_S = 30.0
# All of a log is read each time, and some suspicions do not go away: those of a sole replica.
LOOK_AGAIN_MS = 60_000
# A replica of a compacted topic is waited for as long as its tombstones would be kept anyway, and through a repair.
AWAY_AT_LEAST_MS = 3_600_000
GIVE_UP_INTERVAL_MS = 60_000
# Nothing about these is worth another try.
_FINAL = (
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNSUPPORTED_VERSION,
)


class Lost(NamedTuple):
    topic_id: TopicId
    partition: int
    is_spoilt: bool
    # Of another broker, if this one leads; None: this broker's own.
    replica: BrokerId | None = None


# What became of each.
Resign = Callable[[Sequence[Lost]], Awaitable[Sequence[BrokerError | None]]]


class SpoiltReplicas:
    def __init__(
        self,
        partitions: ReplicaManager,
        *,
        image: Callable[[], ClusterImage],
        resign: Resign,
        files: Files,
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._image = image
        self._resign = resign
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self._give_up_at_ms = 0
        # When each was read that was read not long ago.
        self._looked_at_ms: dict[tuple[TopicId, int], int] = {}

    async def tell_losses(self, data: DataDirectory) -> None:
        """What a start has found; returns when the controller knows."""
        await self.tell(self._found_at_start(data))
        reports = [(each.log, each.log.recovery_report) for each in self._partitions.all()]
        damaged = [each for each, report in reports if each.was_missing or (report is not None and not report.is_torn)]
        await self._files.run(data.losses_told, damaged)

    async def tell(self, lost: Iterable[Lost]) -> None:
        """Returns when the controller knows, however long that takes."""
        remaining = list(lost)
        while remaining:
            try:
                errors = await self._resign(remaining)
            except BrokerError as unheard:
                errors = [unheard] * len(remaining)
            refused = [(each, error) for each, error in zip(remaining, errors, strict=True) if error is not None]
            remaining = [again for each, error in refused if (again := self._refused(each, error)) is not None]
            if remaining:
                await asyncio.sleep(RETRY_S)

    def _refused(self, lost: Lost, error: BrokerError) -> Lost | None:
        """What to tell instead, soon."""
        log.warning(
            "the controller has not heard of a replica that must not lead",
            extra={"topic_id": lost.topic_id.hex(), "partition": lost.partition, "reason": error.message},
        )
        if error.code is ErrorCode.UNSUPPORTED_VERSION and lost.is_spoilt and lost.replica is None:
            # A cluster that is being upgraded cannot have it begin anew yet, but can do without it until then.
            self._tasks.spawn(self._tell_later(lost), name="resign-after-upgrade")
            return lost._replace(is_spoilt=False)
        return None if error.code in _FINAL else lost

    async def _tell_later(self, lost: Lost) -> None:
        await asyncio.sleep(UPGRADE_S)
        await self.tell([lost])

    def _found_at_start(self, data: DataDirectory) -> list[Lost]:
        """Logs that could not be opened, and those that may lack something; of those that others have too."""
        lost = [each for tp in data.failed for each in self._shared(tp, is_spoilt=True)]
        for partition in self._partitions.all():
            recovered = _recovered(partition, data)
            if may_lack_committed(recovered) and not self._is_beginning(partition):
                lost += self._shared(partition.topic_partition, is_spoilt=is_lost(recovered))
        if lost:
            log.warning("replicas may lack what is committed", extra={"partitions": len(lost)})
        return lost

    def _is_beginning(self, partition: Partition) -> bool:
        """It has no log because nobody believes it to have one: it was added while its broker was away."""
        state = self._image().partition(partition.topic_partition)
        is_believed = state is not None and partition.broker_id in (*state.isr, *state.eligible)
        return partition.log.was_missing and not is_believed

    def _shared(self, topic_partition: TopicPartition, *, is_spoilt: bool) -> list[Lost]:
        topic = self._image().topics.get(topic_partition.topic)
        state = self._image().partition(topic_partition)
        if topic is None or state is None or len(state.replicas) == 1:
            return []
        return [Lost(topic.topic_id, topic_partition.partition, is_spoilt)]

    async def watch(self) -> None:
        """Runs for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._give_up_those_away()
            for partition in list(self._partitions.all()):
                if partition.log.failure is not None and not self._partitions.is_spoilt(partition):
                    self._damaged(partition, partition.log.failure)
                elif partition.log.suspicion is not None and partition.offline is None and not partition.is_shortening:
                    await self._look_at(partition)

    def _give_up_those_away(self) -> None:
        """Compaction keeps what a replica may have missed, so one that never comes back would let logs grow for good.
        When it does come back, it begins anew.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._give_up_at_ms:
            return
        self._give_up_at_ms = now_ms + GIVE_UP_INTERVAL_MS
        lost = [
            Lost(partition.topic_id, partition.topic_partition.partition, is_spoilt=True, replica=replica)
            for partition in self._partitions.all()
            if partition.config.is_compacted
            for replica in partition.replicas_away(
                max(partition.log.config.delete_retention_ms, AWAY_AT_LEAST_MS), now_ms
            )
        ]
        if lost:
            log.warning("replicas given up, they begin anew when they come back", extra={"partitions": len(lost)})
            self._tasks.spawn(self.tell(lost), name="give-up-replicas")

    async def _look_at(self, partition: Partition) -> None:
        suspected = partition.log
        key, now_ms = (partition.topic_id, partition.topic_partition.partition), self._clock.monotonic_ms()
        self._looked_at_ms = {each: at for each, at in self._looked_at_ms.items() if now_ms < at + LOOK_AGAIN_MS}
        if key in self._looked_at_ms:
            return
        self._looked_at_ms[key] = now_ms
        reason, suspected.suspicion = suspected.suspicion, None
        generation = suspected.generation
        log.warning(
            "log under suspicion, reading it", extra={"partition": str(partition.topic_partition), "reason": reason}
        )
        try:
            damage = await suspected.in_thread(self._files, first_damage, suspected)
        except OSError as error:
            log.error("log not read", extra={"partition": str(partition.topic_partition), "error": error})
            suspected.suspicion = reason
            return
        if suspected.generation != generation:
            suspected.suspicion = reason  # it was cut meanwhile: look again
        elif damage is not None and partition.offline is None:
            self._damaged(partition, damage)

    def _damaged(self, partition: Partition, damage: str) -> None:
        state = self._image().partition(partition.topic_partition)
        facts = {"partition": str(partition.topic_partition), "damage": damage}
        if state is None or len(state.replicas) == 1:
            if partition.log.failure is None:  # that is said where it happens
                log.error("log damaged, and there is no other replica: it is left as it is", extra=facts)
            return
        log.error("log damaged, the replica goes offline", extra=facts)
        self._partitions.spoilt(partition, damage)
        lost = Lost(partition.topic_id, partition.topic_partition.partition, is_spoilt=True)
        self._tasks.spawn(self.tell([lost]), name=f"resign-{partition.topic_partition}")


def _recovered(partition: Partition, data: DataDirectory) -> Recovered:
    """A log without a report was left by a clean stop, or is new."""
    opened, report = partition.log, partition.log.recovery_report
    return Recovered(
        opened.log_end_offset,
        data.high_watermarks.get(partition.topic_partition, 0),
        data.was_clean,
        data.has_page_cache,
        partition.flushes,
        0 if report is None else report.truncated_bytes,
        report is None or report.is_torn,
        opened.log_start_offset,
        opened.was_missing,
    )
