"""The coordinators of one kind on this broker: a shard for each partition of their topic that it leads.

Which partition a name belongs to follows from the name alone, so every broker can say who coordinates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Generic

from penstock.coordinators.shard import M, Shard
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metrics import CoordinatorMetrics
from penstock.metadata.image import ClusterImage
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup


class Coordinators(Generic[M]):
    topic: str

    def __init__(self, config: BrokerConfig, *, clock: Clock, files: Files, tasks: TaskGroup) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._tasks = tasks
        self._shards: dict[int, Shard[M]] = {}
        self._closed = False
        self.metrics = CoordinatorMetrics()

    # Finding

    def shard_of(self, name: str, image: ClusterImage) -> Shard[M]:
        """Raises the error that a client gets when this broker does not coordinate what has that name."""
        topic = image.topics.get(self.topic)
        shard = None if topic is None else self._shards.get(partition_of(name, len(topic.partitions)))
        if shard is None:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {name!r}")
        return shard

    def shard_at(self, partition: int) -> Shard[M]:
        shard = self._shards.get(partition)
        if shard is None:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.topic}-{partition}")
        return shard

    def shards(self) -> Iterator[Shard[M]]:
        return iter(list(self._shards.values()))

    # Following

    def began_leading(self, partition: Partition) -> None:
        """This broker leads the partition from now on."""
        if partition.topic_partition.topic == self.topic and not self._closed:
            self._shards[partition.topic_partition.partition] = self._new_shard(partition)

    def _new_shard(self, partition: Partition) -> Shard[M]:
        raise NotImplementedError

    def stopped_leading(self, partition: Partition) -> None:
        if partition.topic_partition.topic == self.topic:
            shard = self._shards.pop(partition.topic_partition.partition, None)
            if shard is not None:
                shard.close()

    def close(self) -> None:
        self._closed = True
        for shard in self._shards.values():
            shard.close()


@lru_cache(maxsize=200)
def partition_of(key: str, partitions_count: int) -> int:
    """As Java's String.hashCode has it, so that Kafka's tools find a group where they expect it."""
    units = key.encode("utf-16-be", errors="surrogatepass")
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & 0xFFFFFFFF
    magnitude = hashed if hashed < 1 << 31 else (1 << 32) - hashed
    # The one number without a magnitude in Java counts as 0.
    return 0 if magnitude == 1 << 31 else magnitude % partitions_count
