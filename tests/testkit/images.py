"""Pieces of a cluster image, for tests of what follows one."""

from penstock.core.ids import BrokerId
from penstock.metadata.image import PartitionImage


def a_sole_replica(leader: BrokerId, leader_epoch: int = 0) -> PartitionImage:
    return a_partition_on(leader, leader_epoch=leader_epoch)


def a_partition_on(
    *replicas: BrokerId, leader_epoch: int = 0, isr: tuple[BrokerId, ...] | None = None
) -> PartitionImage:
    """Led by the first; all are in sync, unless `isr` says which."""
    return PartitionImage(
        replicas=replicas,
        isr=replicas if isr is None else isr,
        leader=replicas[0],
        leader_epoch=leader_epoch,
        partition_epoch=0,
        state="active",
        mod_revision=1,
    )
