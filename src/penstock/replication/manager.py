"""The partitions this broker holds, kept in step with the cluster image.

Topics appear here after their logs are open and disappear before their files go, so whoever finds a partition can use
it. Changes of the image are carried out one after another, by one task; `caught_up` waits for it.

A partition that is reassigned comes and goes in the same way, alone: its slot among those of its topic is empty when
it is not here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.core.metrics import CleanerMetrics, TopicMetrics
from penstock.core.topic_config import TopicConfig, topic_config
from penstock.metadata.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ImageDelta,
    PartitionChange,
    PartitionImage,
    TopicImage,
)
from penstock.protocol.batch import BatchHeader
from penstock.replication.anew import Anew
from penstock.replication.departures import POLL_S, Departures, Doomed, until_at_rest
from penstock.replication.follower import StartAnew, Truncate
from penstock.replication.partition import Partition
from penstock.replication.replicas import Replicas
from penstock.replication.throttle import Throttle
from penstock.replication.turned_away import Missed
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.log_dirs import DataDirectory

log = logging.getLogger(__name__)

RETRY_S = 1.0

Partitions = list[Partition | None]


class PartitionListener(Protocol):
    """Whoever runs on top of partitions: told when this broker begins to lead one, and when it does no more."""

    def began_leading(self, partition: Partition) -> None: ...
    def stopped_leading(self, partition: Partition) -> None: ...


class ReplicaManager:
    def __init__(
        self,
        broker_id: BrokerId,
        config: Callable[[], BrokerConfig],
        data: DataDirectory,
        *,
        tick: Tick,
        flusher: Flusher,
        files: Files,
        tasks: TaskGroup,
        clock: Clock,
        replicas: Replicas | None = None,
    ) -> None:
        # Looked up by what stands in a request: the UTF-8 bytes of a name, or the 16 bytes of an id.
        self.by_name: dict[bytes, Partitions] = {}
        self.by_id: dict[bytes, Partitions] = {}
        self.topic_metrics: dict[str, TopicMetrics] = {}
        self.cleaner_metrics = CleanerMetrics()
        self._broker_id = broker_id
        self._config = config
        self._data = data
        self._tick = tick
        self._flusher = flusher
        self._files = files
        self._tasks = tasks
        self._clock = clock
        self._replicas = replicas
        self._throttle = Throttle()
        self._image = EMPTY_IMAGE
        self._serving: Mapping[BrokerId, int] = {}
        self._changes: deque[tuple[ClusterImage, ImageDelta]] = deque()
        self._checkpointing = asyncio.Lock()
        self._departures = Departures(data, self._checkpointing, flusher=flusher, files=files, tasks=tasks)
        self._anew = Anew(broker_id)
        self._missed = Missed()
        self._to_open: list[tuple[TopicImage, int]] = []
        self._is_carrying_out = False
        # Topics deleted while changes are being carried out: one of them may be about to be opened.
        self._removed: set[TopicId] = set()
        self._caught_up = asyncio.Event()
        self._caught_up.set()
        self._listeners: list[PartitionListener] = []

    def add_listener(self, listener: PartitionListener) -> None:
        """Before `start`, so that it hears of every partition."""
        self._listeners.append(listener)

    # Finding

    def find(self, topic: str | TopicId, index: int) -> Partition:
        """By name or by id. Raises the error that a client gets."""
        if isinstance(topic, str):
            partitions = self.by_name.get(topic.encode(errors="replace"))
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            partitions = self.by_id.get(topic)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        if partitions is None:
            raise BrokerError(unknown, "no such topic here")
        return pick(partitions, index)

    def missed(self, name_or_id: bytes, index: int, batch: BatchHeader) -> None:
        """Somebody was told that a partition, named as in requests, is not here: its client may send that again."""
        earlier = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier batch came before this broker led")
        self._missed.told(name_or_id, index, batch, earlier, self._clock.monotonic_ms())

    def find_led(self, topic: str | TopicId, index: int) -> Partition:
        """`find`, and only what this broker leads: a follower's answer would be about a log that may yet be cut."""
        partition = self.find(topic, index)
        if partition.refusal is not None:
            raise partition.refusal.anew()
        return partition

    def all(self) -> Iterator[Partition]:
        for partitions in list(self.by_name.values()):
            for partition in list(partitions):
                if partition is not None:
                    yield partition

    @property
    def is_overdue(self) -> bool:
        """This broker's session was not renewed in time."""
        return self._replicas is not None and self._replicas.is_overdue

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing that this broker leads, with others that follow, can be committed any more."""
        if not self.is_overdue:
            return False
        led = [partition for partition in self.all() if partition.is_led_for_others]
        return bool(led) and all(partition.is_forsaken for partition in led)

    # Throttled replicas (KIP-73)

    def holds_up(self, partition: Partition, replica: BrokerId) -> bool:
        """Whether a replica that follows this broker, and is not in sync, has to wait for records."""
        if not partition.is_throttled_as_leader or replica in partition.in_sync:
            return False
        return self._throttle.is_exceeded(self._throttled_rate(), self._clock.monotonic_ms())

    def sent(self, partition: Partition, size: int) -> None:
        if partition.is_throttled_as_leader:
            self._throttle.take(size, self._throttled_rate(), self._clock.monotonic_ms())

    def _throttled_rate(self) -> int:
        return self._config().int("leader.replication.throttled.rate")

    # Following the image

    async def start(self, image: ClusterImage) -> None:
        """Open the log of every partition that the image gives this broker; a directory of no topic is set aside.

        Changes that `follow` hears of meanwhile are carried out afterwards.
        """
        self._image, self._serving = image, image.serving()
        self._is_carrying_out = True
        configs = {topic.name: LogConfig.of(self._topic_config(topic)) for topic in image.topics.values()}

        def claim(topic_partition: TopicPartition, topic_id: TopicId | None) -> LogConfig | None:
            topic = image.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition >= len(topic.partitions):
                return None
            if topic_id is None:
                # Made just before a power cut, and more likely ours than not.
                is_ours = self._broker_id in topic.partitions[topic_partition.partition].replicas
            else:
                is_ours = topic_id == topic.topic_id
            return configs[topic.name] if is_ours else None

        logs = await self._files.run(self._data.load, claim, self._clock.now_ms())
        logs = await self._without_unassigned(logs)
        await self._open(
            [(topic, index) for topic in image.topics.values() for index in range(len(topic.partitions))],
            logs,
            is_start=True,
        )
        # What a crash left in the page cache only is flushed before anybody sees it, in topics whose records are
        # acknowledged from the disk. Gigabytes of the others would hold up the start, and add nothing they promise.
        await self._flusher.reach({each.log: each.log.log_end_offset for each in self.all() if each.flushes})
        self._departures.remove(await self._files.run(self._data.deleted))
        self._tasks.spawn(self._carry_out(), name="follow-image")

    async def _without_unassigned(self, logs: dict[TopicPartition, Log]) -> dict[TopicPartition, Log]:
        """Reassigned while this broker was away, or before it came to remove them: others hold all of it."""
        unassigned = [each for each in (*logs, *self._data.failed) if not self._is_assigned(each)]
        if not unassigned:
            return logs
        log.info("partitions are on other brokers now: removed", extra={"partitions": [str(tp) for tp in unassigned]})
        for topic_partition in unassigned:
            if topic_partition in logs:
                logs[topic_partition].delete()
        await self._files.run(self._data.set_deleted, unassigned)
        return {each: found for each, found in logs.items() if each not in unassigned}

    def _is_assigned(self, topic_partition: TopicPartition) -> bool:
        """Whether its log may be used. One that is being added to a compacted topic begins anew with each start, until
        it is in sync: what is here may be of an earlier assignment, since when tombstones have gone that it has not
        seen.
        """
        image = self._image.partition(topic_partition)
        if image is None or self._broker_id not in image.replicas:
            return False
        is_compacted = self._topic_config(self._image.topics[topic_partition.topic]).is_compacted
        return not (is_compacted and self._is_yet_to_catch_up(image))

    def _is_yet_to_catch_up(self, image: PartitionImage) -> bool:
        """It is being added, and nobody believes yet that it holds what is committed."""
        return self._broker_id in image.adding and self._broker_id not in (*image.isr, *image.eligible)

    def follow(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        """What is only a decision happens at once; what needs the disk, in the order of the images."""
        self._image = new
        if delta.sessions_changed:
            self._serving = new.serving()
        for topic in delta.topics_deleted:
            self._remove(topic)
        for topic in new.topics.values() if delta.broker_configs_changed else delta.topic_configs_changed:
            self._configure(topic)
        if delta.sessions_changed:
            self._take_roles(new)
        for change in delta.partitions_changed:
            self._change(change)
        self._changes.append((new, delta))
        self._caught_up.clear()
        if not self._is_carrying_out:
            self._is_carrying_out = True
            self._tasks.spawn(self._carry_out(), name="follow-image")

    async def caught_up(self) -> None:
        """Until everything the image says is so, or cannot be so for now (a full disk)."""
        await self._caught_up.wait()

    async def _carry_out(self) -> None:
        """What cannot be done now, for want of space or descriptors, is tried again and holds up nothing else."""
        while self._changes or self._departures or self._to_open:
            if self._changes:
                image, delta = self._changes.popleft()
                self._departures.due(self._doomed(delta))
                self._to_open += [*self._added(image, delta), *self._anew.due(image, delta)]
            try:
                await self._departures.carry_out()
                await self._open_next()
            except OSError as error:
                log.error("partitions are not as they should be, trying again", extra={"error": error})
                if not self._changes:
                    self._caught_up.set()
                    await asyncio.sleep(RETRY_S)
        self._removed.clear()
        self._is_carrying_out = False
        self._caught_up.set()

    def _doomed(self, delta: ImageDelta) -> Iterator[Doomed]:
        for topic in delta.topics_deleted:
            for index in range(len(topic.partitions)):
                yield Doomed(topic.topic_id, TopicPartition(topic.name, index))
        for change in delta.partitions_changed:
            if self._leaves(change):
                yield Doomed(change.topic_id, change.topic_partition, is_leaving=True)

    async def _open_next(self) -> None:
        while self._to_open:
            topic, index = self._to_open[0]
            if self._is_wanted(topic, index):
                await self._open([(topic, index)], {})
            self._to_open.pop(0)

    async def _open(
        self, wanted: list[tuple[TopicImage, int]], found: Mapping[TopicPartition, Log], *, is_start: bool = False
    ) -> None:
        """Make the partitions findable, with the log that was found or with a new one."""
        for topic, index in wanted:
            image = topic.partitions[index]
            topic_partition = TopicPartition(topic.name, index)
            if self._broker_id not in image.replicas:
                continue
            if self._anew.is_due((topic.topic_id, index), self._image):
                await self._set_aside(topic, index, found.get(topic_partition))
            elif self._has(topic.topic_id, index):
                continue
            if topic_partition in self._data.failed:
                continue  # said when it was opened; clients are told that the partition is not available
            # Its configuration may have changed since it was decided to open it.
            config = self._topic_config(self._image.topics_by_id.get(topic.topic_id, topic))
            has_begun = self._anew.has_begun((topic.topic_id, index), self._image)
            opened = None if has_begun else found.get(topic_partition)
            if opened is not None and topic_partition in self._data.without_id:
                await self._files.run(self._data.adopt, opened, topic.topic_id)
            if opened is None:
                create = partial(self._data.create, is_expected=is_start)
                opened = await self._files.run(
                    create, topic_partition, topic.topic_id, LogConfig.of(config), self._clock.now_ms()
                )
            if not self._is_wanted(topic, index):
                opened.delete()  # meanwhile; its files go with the change that is next in line
                continue
            self._add(topic, index, opened, config)

    def _is_wanted(self, topic: TopicImage, index: int) -> bool:
        """Whether its log may be opened, as far as the image has come: not while one of that name has yet to go."""
        if topic.topic_id in self._removed or self._departures.is_leaving(topic.topic_id, index):
            return False
        current = self._image.topics_by_id.get(topic.topic_id, topic)
        return self._broker_id in current.partitions[index].replicas

    def _has(self, topic_id: TopicId, index: int) -> bool:
        partitions = self.by_id.get(topic_id, [])
        return index < len(partitions) and partitions[index] is not None

    # Beginning anew

    def spoilt(self, partition: Partition, reason: str) -> None:
        """Its log is of no use: nothing more is done with it. Whoever is to know of it hears of it from the caller."""
        key = (partition.topic_id, partition.topic_partition.partition)
        if partition.is_led:
            self._tell(partition, began=False)
        if self._replicas is not None:
            self._replicas.forget(partition)
        self._anew.found(key, partition.leader_epoch)
        partition.fail(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition}: {reason}"))

    def is_spoilt(self, partition: Partition) -> bool:
        """Whether `spoilt` was said of it."""
        return self._anew.is_found((partition.topic_id, partition.topic_partition.partition))

    async def _set_aside(self, topic: TopicImage, index: int, found: Log | None) -> None:
        topic_partition, key = TopicPartition(topic.name, index), (topic.topic_id, index)
        partitions = self.by_id.get(topic.topic_id, [])
        partition = partitions[index] if index < len(partitions) else None
        spoilt = found if partition is None else partition.log
        is_copy = self._anew.had_begun(key)
        if partition is not None:
            self.spoilt(partition, "its log is set aside")
            self._anew.is_due_whenever(key)  # should the disk refuse it now
            while partition.is_shortening:  # noqa: ASYNC110 - no news of that
                await asyncio.sleep(POLL_S)
        if spoilt is not None:
            spoilt.delete()
            await until_at_rest(spoilt, self._flusher)
        async with self._checkpointing:
            if partition is not None:
                partitions[index] = None
            kept_as = None if is_copy else await self._files.run(self._data.set_spoilt_aside, topic_partition)
        if is_copy:
            # It had begun anew already when its session ended: nobody misses what it had copied since.
            await self._departures.now(topic_partition)
        self._anew.begins(key, self._image)
        log.warning("replica begins anew", extra={"partition": str(topic_partition), "kept_as": kept_as})

    # Checkpoints

    async def checkpoint(self) -> None:
        """How far each log is on disk, where it starts, what is committed: what a restart begins with. OSError."""
        async with self._checkpointing:
            await self._files.run(self._data.write, self._data.checkpoint_of(*self._logs_and_high_watermarks()))

    async def close(self) -> bool:
        """Everything on disk, and the clean-shutdown marker after it. False when that failed."""
        async with self._checkpointing:
            return await self._files.run(self._data.close, *self._logs_and_high_watermarks())

    def _logs_and_high_watermarks(self) -> tuple[dict[TopicPartition, Log], dict[TopicPartition, int]]:
        partitions = list(self.all())
        return (
            {each.topic_partition: each.log for each in partitions},
            {each.topic_partition: each.high_watermark.offset for each in partitions},
        )

    def _add(self, topic: TopicImage, index: int, opened: Log, config: TopicConfig) -> None:
        partition = Partition(
            TopicPartition(topic.name, index),
            topic.topic_id,
            opened,
            config,
            broker_id=self._broker_id,
            tick=self._tick,
            flusher=self._flusher,
            tasks=self._tasks,
            metrics=self.topic_metrics.setdefault(topic.name, TopicMetrics()),
            replication=self._replicas,
            committed_offset=self._committed_offset(topic, index),
        )
        partitions = self.by_id.get(topic.topic_id)
        if partitions is None:
            partitions = self.by_name[topic.name.encode()] = self.by_id[topic.topic_id] = []
        partitions.extend([None] * (index + 1 - len(partitions)))
        partitions[index] = partition
        # By now the image may say something else than when it was decided to open this partition.
        current = self._image.topics_by_id.get(topic.topic_id, topic)
        for missed in self._missed.of(topic.name.encode(), topic.topic_id, index, self._clock.monotonic_ms()):
            partition.turned_away.join(missed)
        self._take_role(partition, current.partitions[index])

    def _change(self, change: PartitionChange) -> None:
        """Of a partition that is there; one that is about to be added looks at the image itself."""
        partitions = self.by_id.get(change.topic_id, [])
        index = change.topic_partition.partition
        partition = partitions[index] if index < len(partitions) else None
        leaves = self._leaves(change)
        self._anew.changed(change, leaves=leaves)
        if leaves:
            self._departures.leaves(change.topic_id, index)
            if partition is not None:
                partitions[index] = None
                log.info("partition is on other brokers now", extra={"partition": str(change.topic_partition)})
                gone = f"{change.topic_partition} is on other brokers now"
                self._retire(partition, BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, gone))
        elif partition is not None:
            self._take_role(partition, change.after)

    def _leaves(self, change: PartitionChange) -> bool:
        before = change.before
        if before is None or self._broker_id not in before.replicas:
            return False
        return self._broker_id not in change.after.replicas or self._has_come_back(change)

    def _has_come_back(self, change: PartitionChange) -> bool:
        """It has left and was added again, in images that this broker did not see one by one. Meanwhile the others did
        not keep for it what compaction drops (`removable_end`), so it begins with an empty log, as if it had seen them.
        """
        before = change.before
        return before is not None and self._broker_id in before.original and self._is_yet_to_catch_up(change.after)

    def _committed_offset(self, topic: TopicImage, index: int) -> int | None:
        """As the last checkpoint has it. Where there are other replicas, only they together know more."""
        if len(topic.partitions[index].replicas) == 1:
            return None
        return self._data.high_watermarks.get(TopicPartition(topic.name, index), 0)

    def _take_role(self, partition: Partition, image: PartitionImage) -> None:
        """Leading is for one session: the epoch of a session that is over gives no right to it, nor does that of
        another process that runs on a copy of this directory.
        """
        if partition.is_shortening:
            return  # asked again when that is done
        if partition.offline is not None:
            partition.leader_epoch = image.leader_epoch
            return
        present_epoch = self._image.session_epoch(self._broker_id)
        own_epoch = present_epoch if self._replicas is None else self._replicas.session_epoch
        leads = image.leader == self._broker_id and image.leader_broker_epoch == present_epoch == own_epoch
        was_led = partition.is_led
        if leads:
            if self._replicas is not None:
                self._replicas.forget(partition)
            is_new = not was_led or partition.leader_epoch != image.leader_epoch
            if was_led and is_new:
                # Somebody else may have led meanwhile, and written, without this broker hearing of it in time.
                self._tell(partition, began=False)
            lag_max_ms = self._config().int("replica.lag.time.max.ms")
            partition.lead(image, self._serving, lag_max_ms, self._clock.monotonic_ms())
            if is_new and partition.is_led:
                self._tell(partition, began=True)
            return
        if was_led:
            self._tell(partition, began=False)
        if was_led or partition.leader_epoch != image.leader_epoch:
            partition.stop_leading(image.leader_epoch)
        self._follow(partition, image)

    def _follow(self, partition: Partition, image: PartitionImage) -> None:
        if self._replicas is None:
            return
        leader, key = image.leader, (partition.topic_id, partition.topic_partition.partition)
        is_spoilt = self._broker_id in image.spoilt and not self._anew.has_begun(key, self._image)
        if leader is None or leader == self._broker_id or is_spoilt:
            self._replicas.forget(partition)
            return
        known = partition.follower
        if known is None or known.leader_epoch != image.leader_epoch:
            partition.follow(image.leader_epoch)
            self._replicas.follow(partition, leader, self._shorten)

    async def _shorten(self, partition: Partition, step: Truncate | StartAnew) -> None:
        """A follower has what its leader has not: it goes, and no checkpoint may say that it was there."""
        each, follower = partition.log, partition.follower
        assert follower is not None
        each.is_being_cut = True
        try:
            await until_at_rest(each, self._flusher)
            now_ms = self._clock.now_ms()
            if isinstance(step, Truncate):
                await self._files.run(each.truncate_to, step.offset, now_ms)
            else:
                await self._files.run(each.start_at, step.offset, now_ms, step.log_start_offset)
            async with self._checkpointing:
                if self._data.vouches_beyond(partition.topic_partition, each.log_end_offset):
                    checkpoint = self._data.checkpoint_of(*self._logs_and_high_watermarks())
                    await self._files.run(self._data.write, checkpoint)
        except (BrokerError, OSError) as error:
            each.fail(str(error))
            follower.failed(str(error))
            partition.fail(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition}: {error}"))
            return
        finally:
            each.is_being_cut = False
        follower.shortened()
        partition.followed()
        topic = self._image.topics_by_id.get(partition.topic_id)
        if topic is not None and self._is_here(partition):
            self._take_role(partition, topic.partitions[partition.topic_partition.partition])

    def _is_here(self, partition: Partition) -> bool:
        """Whether it was not reassigned meanwhile."""
        partitions, index = self.by_id.get(partition.topic_id, []), partition.topic_partition.partition
        return index < len(partitions) and partitions[index] is partition

    def _take_roles(self, image: ClusterImage) -> None:
        """Brokers have come or gone, this one perhaps among them."""
        for topic in image.topics.values():
            for index, partition in enumerate(self.by_id.get(topic.topic_id, ())):
                if partition is not None and index < len(topic.partitions):
                    self._take_role(partition, topic.partitions[index])

    def _tell(self, partition: Partition, *, began: bool) -> None:
        for listener in self._listeners:
            if began:
                listener.began_leading(partition)
            else:
                listener.stopped_leading(partition)

    def _remove(self, topic: TopicImage) -> None:
        """Deleted: gone for clients now, its files a little later."""
        self._removed.add(topic.topic_id)
        self._anew.deleted(topic)
        partitions = self.by_id.pop(topic.topic_id, None)
        if partitions is None:
            return
        self.by_name.pop(topic.name.encode(), None)
        self.topic_metrics.pop(topic.name, None)
        gone = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} was deleted")
        for partition in partitions:
            if partition is not None:
                self._retire(partition, gone)

    def _retire(self, partition: Partition, error: BrokerError) -> None:
        """It is not found any more, and whoever has it is told. Its files go a little later."""
        if partition.is_led:
            self._tell(partition, began=False)
        if self._replicas is not None:
            self._replicas.forget(partition)
        partition.fail(error)
        partition.log.delete()
        self._departures.retired(partition)

    def _added(self, image: ClusterImage, delta: ImageDelta) -> list[tuple[TopicImage, int]]:
        added = []
        for change in delta.partitions_changed:
            topic = image.topics.get(change.topic_partition.topic)
            is_new = change.before is None or self._broker_id not in change.before.replicas
            if (is_new or self._has_come_back(change)) and topic is not None and topic.topic_id == change.topic_id:
                added.append((topic, change.topic_partition.partition))
        return added

    def _topic_config(self, topic: TopicImage) -> TopicConfig:
        return topic_config(topic.configs, self._config())

    def _configure(self, topic: TopicImage) -> None:
        config = self._topic_config(topic)
        for partition in self.by_id.get(topic.topic_id, ()):
            if partition is not None:
                partition.configure(config)


def pick(partitions: Partitions, index: int) -> Partition:
    if not 0 <= index < len(partitions):
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {index}, there are {len(partitions)}")
    partition = partitions[index]
    if partition is None:
        raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition {index} is not on this broker")
    return partition
