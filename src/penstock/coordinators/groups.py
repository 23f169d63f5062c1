"""The coordinators of groups: what their machines need to know of this broker and of its topics."""

from __future__ import annotations

from penstock.coordinators.coordinators import Coordinators
from penstock.coordinators.group.machine import GroupMachine
from penstock.coordinators.group.state import GroupConfig, TopicFacts
from penstock.coordinators.shard import Shard
from penstock.core.config import BrokerConfig
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC
from penstock.metadata.image import ClusterImage, ImageDelta, TopicImage
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

# A batch of one record has to fit below the partition's max.message.bytes.
BATCH_OVERHEAD_BYTES = 256


class GroupCoordinators(Coordinators[GroupMachine]):
    topic = GROUP_OFFSETS_TOPIC

    def __init__(self, config: BrokerConfig, *, clock: Clock, files: Files, tasks: TaskGroup) -> None:
        super().__init__(config, clock=clock, files=files, tasks=tasks)
        self._topics: dict[str, TopicFacts] = {}

    def start(self, image: ClusterImage) -> None:
        """Before the partitions are opened."""
        self._topics.update((name, _facts(topic)) for name, topic in image.topics.items())

    def _new_shard(self, partition: Partition) -> Shard[GroupMachine]:
        return Shard(
            partition,
            lambda: GroupMachine(self._group_config(partition), self._topics),
            clock=self._clock,
            files=self._files,
            tasks=self._tasks,
            metrics=self.metrics,
        )

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


def _facts(topic: TopicImage) -> TopicFacts:
    return TopicFacts(topic.topic_id, len(topic.partitions))
