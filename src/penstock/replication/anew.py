"""Which replicas of this broker are of no use any more and begin anew, and which of them have done so.

That a replica is spoilt is the controller's decision, and comes with the image. Often this broker has found it out
itself, and knows it before; then it waits for the epoch in which the leader knows it, too.
"""

from __future__ import annotations

from penstock.core.ids import BrokerId, TopicId
from penstock.metadata.image import ClusterImage, ImageDelta, PartitionChange, TopicImage

NO_EPOCH = -1

Key = tuple[TopicId, int]


class Anew:
    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        # Those that have begun anew, and in which session of this broker; after it they may have been in sync, and
        # spoilt again, without this broker hearing of that.
        self._begun: dict[Key, int | None] = {}
        # Those that this process found to be spoilt, by the leader epoch: in a later one the leader knows it too.
        self._found: dict[Key, int] = {}

    def found(self, key: Key, leader_epoch: int) -> None:
        self._begun.pop(key, None)
        self._found[key] = leader_epoch

    def is_found(self, key: Key) -> bool:
        return key in self._found

    def is_due_whenever(self, key: Key) -> None:
        """Its log is out of use for good: whatever comes between, it is to begin anew."""
        self._found[key] = NO_EPOCH

    def begins(self, key: Key, image: ClusterImage) -> None:
        self._begun[key] = image.session_epoch(self._broker_id)
        self._found.pop(key, None)

    def has_begun(self, key: Key, image: ClusterImage) -> bool:
        return key in self._begun and self._begun[key] == image.session_epoch(self._broker_id)

    def had_begun(self, key: Key) -> bool:
        """In this session or another: what it has is a copy."""
        return key in self._begun

    def changed(self, change: PartitionChange, *, leaves: bool) -> None:
        key = (change.topic_id, change.topic_partition.partition)
        if self._broker_id not in change.after.spoilt:
            self._begun.pop(key, None)
        if leaves:
            self._found.pop(key, None)

    def deleted(self, topic: TopicImage) -> None:
        for index in range(len(topic.partitions)):
            self._begun.pop((topic.topic_id, index), None)
            self._found.pop((topic.topic_id, index), None)

    def due(self, image: ClusterImage, delta: ImageDelta) -> list[tuple[TopicImage, int]]:
        """Those to begin anew by this change: they became so, or somebody leads them now."""
        topics = image.topics.values() if delta.sessions_changed else ()
        changed = [(change.topic_id, change.topic_partition.partition) for change in delta.partitions_changed]
        keys = [(each.topic_id, index) for each in topics for index in range(len(each.partitions))]
        due = [key for key in dict.fromkeys([*keys, *changed]) if self.is_due(key, image)]
        return [(image.topics_by_id[topic_id], index) for topic_id, index in due]

    def is_due(self, key: Key, image: ClusterImage) -> bool:
        """Another broker leads it, which knows that nothing counts of what this one had."""
        topic_id, index = key
        topic = image.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return False
        partition = topic.partitions[index]
        return (
            self._broker_id in partition.spoilt
            and not self.has_begun(key, image)
            and image.leader_of(partition) not in (None, self._broker_id)
            and partition.leader_epoch > self._found.get(key, NO_EPOCH)
        )
