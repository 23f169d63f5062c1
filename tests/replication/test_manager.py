"""What the partitions of a broker make of changes of the image."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.machines.controlled_cluster import ONE, ACluster

from penstock.controller.commands import Reconcile
from penstock.core.config import BrokerConfig
from penstock.metadata.image import difference
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log_dirs import DataDirectory


class Heard:
    def __init__(self) -> None:
        self.story: list[tuple[str, int]] = []

    def began_leading(self, partition: Partition) -> None:
        self.story.append(("began", partition.leader_epoch))

    def stopped_leading(self, partition: Partition) -> None:
        self.story.append(("stopped", partition.leader_epoch))


async def test_given_a_leader_that_is_elected_again_unnoticed_then_who_runs_on_top_of_it_begins_anew(
    tmp_path: Path,
) -> None:
    """Several changes may come as one. Who led in between may have written, and a coordinator's epoch has risen."""
    cluster, heard = ACluster(ONE), Heard()
    cluster.create("orders")
    files, tasks, config = Files(4, "test"), TaskGroup(), BrokerConfig()
    manager = ReplicaManager(
        ONE,
        lambda: config,
        DataDirectory.open(str(tmp_path)),
        tick=Tick(asyncio.get_running_loop()),
        flusher=Flusher(files, lambda error: None),
        files=files,
        tasks=tasks,
        clock=SystemClock(),
    )
    manager.add_listener(heard)
    await manager.start(cluster.image)
    before = cluster.image
    epoch = manager.find("orders", 0).leader_epoch

    cluster.broker_starts(ONE)
    cluster.ask(Reconcile())
    manager.follow(before, cluster.image, difference(before, cluster.image))

    assert heard.story == [("began", epoch), ("stopped", epoch), ("began", epoch + 1)]
    await manager.caught_up()
    await tasks.stop()
    files.close()
