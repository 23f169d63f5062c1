"""Which replica a consumer should read from: one in its own rack, when the leader is in another (KIP-392)."""

from __future__ import annotations

from penstock.core.ids import BrokerId
from penstock.metadata.image import ClusterImage
from penstock.replication.partition import Partition


def nearest_replica(partition: Partition, offset: int, rack: str, image: ClusterImage) -> BrokerId | None:
    """None: the leader, which this broker is. Of several replicas in the rack, the one that has most.

    Only replicas that are in sync and hold the offset: sent to another one, the consumer would come back at once.
    """
    near = {
        broker_id: end_offset
        for broker_id, end_offset in partition.followers_with(offset).items()
        if _rack_of(broker_id, image) == rack
    }
    if not near or _rack_of(partition.broker_id, image) == rack:
        return None
    return max(near, key=lambda broker_id: (near[broker_id], -broker_id))


def _rack_of(broker_id: BrokerId, image: ClusterImage) -> str | None:
    broker = image.brokers.get(broker_id)
    return None if broker is None else broker.rack
