"""The group coordinators of this broker: a shard for each partition of __consumer_offsets that it leads.

Which partition a group belongs to follows from its id alone, so every broker can say who coordinates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.coordinators.shard import Shard
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC
from penstock.core.metrics import CoordinatorMetrics
from penstock.metadata.image import ClusterImage, ImageDelta, TopicImage
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

# A batch of one record has to fit below the partition's max.message.bytes.
BATCH_OVERHEAD_BYTES = 256


class GroupCoordinators:
    def __init__(self, config: BrokerConfig, *, clock: Clock, files: Files, tasks: TaskGroup) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._tasks = tasks
        self._shards: dict[int, Shard[GroupMachine]] = {}
        self._topics: dict[str, TopicFacts] = {}
        self._closed = False
        self.metrics = CoordinatorMetrics()

    # Finding

    def shard_of(self, group_id: str, image: ClusterImage) -> Shard[GroupMachine]:
        """Raises the error that a client gets when this broker does not coordinate the group."""
        topic = image.topics.get(GROUP_OFFSETS_TOPIC)
        shard = None if topic is None else self._shards.get(partition_of(group_id, len(topic.partitions)))
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate the group {group_id!r}")
        return shard

    def shards(self) -> Iterator[Shard[GroupMachine]]:
        return iter(list(self._shards.values()))

    # Following

    def start(self, image: ClusterImage) -> None:
        """Before the partitions are opened."""
        self._topics.update((name, _facts(topic)) for name, topic in image.topics.items())

    def opened(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic_partition.topic != GROUP_OFFSETS_TOPIC or self._closed:
            return
        self._shards[partition.topic_partition.partition] = Shard(
            partition,
            lambda: GroupMachine(self._group_config(partition), self._topics),
            clock=self._clock,
            files=self._files,
            tasks=self._tasks,
            metrics=self.metrics,
        )

    def removed(self, partition: Partition) -> None:
        if partition.topic_partition.topic == GROUP_OFFSETS_TOPIC:
            shard = self._shards.pop(partition.topic_partition.partition, None)
            if shard is not None:
                shard.close()

    def follow(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        changed = {topic.name for topic in (*delta.topics_deleted, *delta.topics_created)}
        changed |= {change.topic_partition.topic for change in delta.partitions_changed if change.before is None}
        if not changed:
            return
        for name in changed:
            topic = new.topics.get(name)
            if topic is None:
                self._topics.pop(name, None)
            else:
                self._topics[name] = _facts(topic)
        deleted = bool(delta.topics_deleted)
        for shard in self.shards():
            shard.tell(lambda machine, now, decision: machine.topics_changed(changed, now, decision, deleted=deleted))

    def close(self) -> None:
        self._closed = True
        for shard in self._shards.values():
            shard.close()

    def _group_config(self, partition: Partition) -> GroupConfig:
        config = self._config
        return GroupConfig(
            group_min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            group_initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            group_max_size=config.int("group.max.size"),
            offset_metadata_max_bytes=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=config.int("offsets.retention.check.interval.ms"),
            max_record_bytes=partition.max_batch_bytes - BATCH_OVERHEAD_BYTES,
            consumer_session_timeout_ms=config.int("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.int("group.consumer.heartbeat.interval.ms"),
            consumer_max_size=config.int("group.consumer.max.size"),
            consumer_assignors=config.list("group.consumer.assignors"),
            consumer_migration_policy=config.str("group.consumer.migration.policy"),
            consumer_regex_refresh_interval_ms=config.int("group.consumer.regex.refresh.interval.ms"),
        )


@lru_cache(maxsize=1_000)
def partition_of(key: str, partitions_count: int) -> int:
    """As Java's String.hashCode has it, so that Kafka's tools find a group where they expect it."""
    units = key.encode("utf-16-be", errors="surrogatepass")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    magnitude = hashed if hashed < 1 << 31 else (1 << 32) - hashed
    # The one number without a magnitude in Java counts as 0.
    return 0 if magnitude == 1 << 31 else magnitude % partitions_count


def _facts(topic: TopicImage) -> TopicFacts:
    return TopicFacts(topic.topic_id, len(topic.partitions))
