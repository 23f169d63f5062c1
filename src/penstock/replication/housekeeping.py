"""What a broker does when nobody asks: retention, compaction, checkpoints, expired waits, forgotten producers.

Every round goes through the partitions one by one and gives way to clients in between; what touches the disk runs in a
file thread. A failure in one partition is logged and does not keep the others from their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.storage.cleaner import Candidate, Cleaner, CleanerSettings
from penstock.storage.compaction import CleanerLimits

log = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 0.5
PARTITIONS_PER_TURN = 200
FLUSH_POLLS = 500
FLUSH_POLL_S = 0.01


class Housekeeping:
    def __init__(
        self,
        partitions: ReplicaManager,
        config: Callable[[], BrokerConfig],
        files: Files,
        tasks: TaskGroup,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._config = config
        self._files = files
        self._tasks = tasks
        self._clock = clock

    def start(self) -> None:
        self._every("log.retention.check.interval.ms", self._retain)
        self._every("log.flush.offset.checkpoint.interval.ms", self._partitions.checkpoint)
        self._tasks.spawn(self._settle_recovered(), name="settle-recovered")
        self._tasks.spawn(self._expire_and_flush(), name="expire-and-flush")
        cleaner = Cleaner(
            self._compacted,
            self._cleaner_settings,
            self._partitions.checkpoint,
            metrics=self._partitions.cleaner_metrics,
            tasks=self._tasks,
            clock=self._clock,
        )
        self._tasks.spawn(cleaner.run(), name="cleaner")

    async def _settle_recovered(self) -> None:
        """What a start after a crash has checked is not to be checked again by the next one, however soon it comes."""
        recovered = [each for each in self._partitions.all() if each.log.recovery_report is not None]
        for partition in recovered:
            await self._flush(partition, partition.log.log_end_offset)
        if recovered:
            try:
                await self._partitions.checkpoint()
            except OSError as error:  # the usual rounds go on trying
                log.error("checkpoints not written", extra={"error": error})

    async def _flush(self, partition: Partition, end_offset: int) -> None:
        """Returns when it is done, or will not be done for now."""
        for _ in range(FLUSH_POLLS):
            if partition.offline is not None or partition.log.recovery_point >= end_offset:
                return
            partition.flush()
            await asyncio.sleep(FLUSH_POLL_S)

    def _compacted(self) -> Iterator[Candidate]:
        for partition in self._partitions.all():
            if partition.config.is_compacted and partition.offline is None and not partition.is_shortening:
                if partition.log.recovery_point < partition.log.segments[-1].base_offset:
                    # Closed, but not known to be on disk, as after a crash: only what is may be compacted.
                    partition.flush()
                high_watermark = partition.high_watermark.offset
                unstable = partition.log.first_unstable_offset(high_watermark)
                stable_end = high_watermark if unstable is None else min(high_watermark, unstable)
                partition.ask_for_removable_end()
                yield Candidate(partition.topic_partition, partition.log, stable_end, partition.removable_end)

    def _cleaner_settings(self) -> CleanerSettings:
        config = self._config()
        return CleanerSettings(
            is_enabled=config.bool("log.cleaner.enable"),
            threads=config.int("log.cleaner.threads"),
            limits=CleanerLimits(
                config.int("log.cleaner.dedupe.buffer.size"),
                config.float("log.cleaner.io.buffer.load.factor"),
                config.int("log.cleaner.io.buffer.size"),
            ),
            max_bytes_per_s=config.float("log.cleaner.io.max.bytes.per.second"),
            backoff_ms=config.int("log.cleaner.backoff.ms"),
        )

    def _every(self, interval_key: str, work: Callable[[], Awaitable[None]]) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(self._config().int(interval_key) / 1000)
                try:
                    await work()
                except OSError as error:  # a full disk, say: the next round tries again
                    log.error("housekeeping failed", extra={"work": interval_key, "error": error})

        self._tasks.spawn(loop(), name=interval_key.removesuffix(".interval.ms"))

    async def _retain(self) -> None:
        for partition in list(self._partitions.all()):
            try:
                await self._retain_one(partition)
            except (BrokerError, OSError) as error:
                log.error("retention failed", extra={"partition": partition.topic_partition, "error": error})

    async def _retain_one(self, partition: Partition) -> None:
        now_ms = self._clock.now_ms()
        partition.log.producers.expire(now_ms, self._config().int("producer.id.expiration.ms"))
        if (
            partition.offline is not None
            or partition.is_shortening
            or not (partition.config.is_deleted_by_retention or partition.config.is_compacted)
        ):
            return
        look, committed = partition.log.plan_retention, partition.high_watermark.offset
        plan = await partition.log.in_thread(self._files, look, committed, now_ms)
        if plan is None or partition.offline is not None or partition.is_shortening:
            return
        if plan.takes_active and not await self._close_active(partition, plan.log_start_offset, now_ms):
            return
        if not partition.log.has_snapshot_behind(plan):
            partition.flush()  # it is due, and there was no room for it: the next round looks again
            return
        retired = partition.log.retire(plan, now_ms)
        log.info(
            "segments retired",
            extra={"partition": partition.topic_partition, "log_start_offset": partition.log.log_start_offset},
        )
        self._tasks.spawn(
            self._remove_later(retired.remove, partition.config.file_delete_delay_ms), name="remove-segments"
        )

    async def _close_active(self, partition: Partition, end_offset: int, now_ms: int) -> bool:
        """Before the last records go: what remembers their producers must be on disk."""
        if partition.log.log_end_offset != end_offset:
            return False  # it has grown since
        partition.log.roll(now_ms)
        for _ in range(FLUSH_POLLS):
            if partition.offline is not None:
                return False
            if partition.log.has_snapshot(end_offset):
                return True
            partition.flush()
            await asyncio.sleep(FLUSH_POLL_S)
        return False

    async def _remove_later(self, remove: Callable[[], None], delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1000)
        try:
            await self._files.run(remove)
        except OSError as error:  # the next start removes them
            log.error("segments not removed", extra={"error": error})

    async def _expire_and_flush(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            now_ms, is_overdue = self._clock.monotonic_ms(), self._partitions.is_overdue
            for turn, partition in enumerate(list(self._partitions.all()), 1):
                partition.look_around(now_ms, is_overdue=is_overdue)
                if turn % PARTITIONS_PER_TURN == 0:
                    await asyncio.sleep(0)
