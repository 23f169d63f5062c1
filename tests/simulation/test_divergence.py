"""Trap A2: the seven shapes in which a follower's log can differ from its leader's, on brokers that find them at start.

(Vanlightly's kafka-tlaplus, 3_log_divergence.md; the rule by itself is tested in machines/test_divergence.py.)
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.core.ids import BrokerId
from penstock.metadata import records
from penstock.metadata.records import partition_key
from penstock.metadata.store import Put, Transaction
from penstock.storage import checkpoints
from penstock.storage.log import Log
from tests.simulation.cluster import BROKERS, FLUSHED, SimulatedCluster
from tests.simulation.scenarios import with_topic, write
from tests.storage.kit import NOW_MS, a_batch, append, config

LEADER, FOLLOWER = BrokerId(1), BrokerId(2)


def write_log(directory: Path, epochs: list[int]) -> None:
    """One record for each epoch, of which two logs have the same ones at the same offsets."""
    identity = (directory / checkpoints.PARTITION_METADATA).read_bytes()
    shutil.rmtree(directory)
    log = Log.open(str(directory), config(segment_index_bytes=4096), now_ms=NOW_MS)
    for offset, epoch in enumerate(epochs):
        append(log, a_batch(value=b"%d of %d" % (offset, epoch)), epoch=epoch)
    log.close()
    (directory / checkpoints.PARTITION_METADATA).write_bytes(identity)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        (directory.parent / name).unlink(missing_ok=True)


def only_the_leader_is_in_sync(cluster: SimulatedCluster, leader_epoch: int) -> None:
    state = cluster.state(FLUSHED)
    record = replace(
        state.record(),
        leader=LEADER,
        isr=(LEADER,),
        leader_epoch=leader_epoch,
        leader_broker_epoch=0,
        partition_epoch=state.partition_epoch + 1,
    )
    topic_id = cluster.image().topics[FLUSHED.topic].topic_id
    cluster.store.commit(Transaction(puts=(Put(partition_key(topic_id, 0), records.encode(record)),)))


@pytest.mark.parametrize(
    ("leader", "follower", "remains"),
    [
        pytest.param([1, 1, 1], [1, 1], None, id="A: behind, in the same epoch"),
        pytest.param([1, 1, 2], [1, 1], None, id="B: behind, in an earlier epoch"),
        pytest.param([1, 1], [1, 1, 1, 1], 2, id="C: ahead, in the same epoch"),
        pytest.param([1, 1], [1, 1, 2, 2], 2, id="D: ahead, in a later epoch"),
        pytest.param([1, 1, 3], [1, 1, 2], 2, id="E: forked, each in an epoch of its own"),
        pytest.param([1, 1], [1, 2], 1, id="F: forked, the leader in the common epoch"),
        pytest.param([1, 3], [2, 2], 0, id="G: forked, without a common epoch"),
    ],
)
def test_given_a_shape_of_divergence_when_the_brokers_start_then_the_follower_cuts_just_what_its_leader_has_not(
    leader: list[int], follower: list[int], remains: int | None
) -> None:
    async def script(cluster: SimulatedCluster) -> None:
        producer = await with_topic(cluster, FLUSHED)
        directories = {each: Path(cluster.brokers[each].directory) / str(FLUSHED) for each in BROKERS}
        for broker_id in BROKERS:
            cluster.kill(broker_id)
        await cluster.until(lambda: not cluster.image().sessions, "all sessions are over")
        # What was there is no more, and nobody has promised anything of what is there now.
        cluster.forget_promises()
        for broker_id, directory in directories.items():
            write_log(directory, follower if broker_id == FOLLOWER else leader)
        only_the_leader_is_in_sync(cluster, leader_epoch=max(*leader, *follower))

        for broker_id in BROKERS:
            cluster.start(broker_id)
        producer.sequence = 0
        await cluster.until(lambda: len(cluster.state(FLUSHED).isr) == len(BROKERS), "all are in sync")
        await write(producer, b"after it")
        await cluster.settle()

        values = cluster.checker.final(cluster.running(), FLUSHED)
        assert values == [*(b"%d of %d" % each for each in enumerate(leader)), b"after it"]

    cluster = SimulatedCluster(0)
    cluster.run(script)

    shortened = [line.split("Truncate(offset=")[1][0] for line in cluster.trace_lines if "Truncate" in line]
    assert shortened == ([] if remains is None else [str(remains)])
