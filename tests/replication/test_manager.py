"""What the partitions of a broker make of changes of the image."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.machines.controlled_cluster import ONE, THREE, TWO, ACluster

from penstock.controller.commands import (
    AlterOperation,
    AlterReassignments,
    Reassignment,
    Reconcile,
    ResignedReplica,
    ResignReplicas,
)
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import MAX_TOPIC_NAME_LENGTH, BrokerId, TopicPartition
from penstock.metadata.image import ClusterImage, difference
from penstock.protocol.batch import place, read_header
from penstock.protocol.records import Record, build_batch
from penstock.replication.follower import Truncate
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.replication.turned_away import AWAITED_MS, MAX_MISSED_BATCHES, Missed
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup, spawn
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log_dirs import DataDirectory

# In a batch's header.
MAGIC_AT = 16


class Heard:
    def __init__(self) -> None:
        self.story: list[tuple[str, int]] = []

    def began_leading(self, partition: Partition) -> None:
        self.story.append(("began", partition.leader_epoch))

    def stopped_leading(self, partition: Partition) -> None:
        self.story.append(("stopped", partition.leader_epoch))


@asynccontextmanager
async def a_manager(directory: Path, heard: Heard) -> AsyncIterator[ReplicaManager]:
    """Of broker ONE, which speaks to no other."""
    files, tasks, config = Files(4, "test"), TaskGroup(), BrokerConfig()
    data = DataDirectory.open(str(directory))
    manager = ReplicaManager(
        ONE,
        lambda: config,
        data,
        tick=Tick(asyncio.get_running_loop()),
        flusher=Flusher(files, lambda error: None),
        files=files,
        tasks=tasks,
        clock=SystemClock(),
    )
    manager.add_listener(heard)
    yield manager
    await manager.caught_up()
    await tasks.stop()
    files.close()
    data.release()


def tell(manager: ReplicaManager, cluster: ACluster, *replicas: BrokerId) -> None:
    """Of a reassignment of orders-0 that is over at once, or has to wait for others."""
    before = cluster.image
    (result,) = cluster.ask(AlterReassignments((Reassignment(TopicPartition("orders", 0), replicas),)))
    assert result.error is None
    manager.follow(before, cluster.image, difference(before, cluster.image))


class Told:
    """Whoever appends, and is content with anything."""

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        pass

    def failed(self, slot: int, error: BrokerError) -> None:
        pass


def a_numbered_batch(sequence: int, producer_id: int = 7) -> bytearray:
    record = Record(None, b"value", (), 1)
    return bytearray(build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def with_record(manager: ReplicaManager) -> Partition:
    partition = manager.find("orders", 0)
    batch = bytearray(build_batch([Record(None, b"value", (), 1)]))
    place(memoryview(batch), 0, partition.log.log_end_offset, 0)
    partition.log.append_replicated(memoryview(batch), 0, 0)
    return partition


def directories(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir())


async def until(condition, timeout_s: float = 10) -> None:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - about files, which have no event
            await asyncio.sleep(0)


async def test_given_a_leader_that_is_elected_again_unnoticed_then_who_runs_on_top_of_it_begins_anew(
    tmp_path: Path,
) -> None:
    """Several changes may come as one. Who led in between may have written, and a coordinator's epoch has risen."""
    cluster, heard = ACluster(ONE), Heard()
    cluster.create("orders")
    async with a_manager(tmp_path, heard) as manager:
        await manager.start(cluster.image)
        before = cluster.image
        epoch = manager.find("orders", 0).leader_epoch

        cluster.broker_starts(ONE)
        cluster.ask(Reconcile())
        manager.follow(before, cluster.image, difference(before, cluster.image))

        assert heard.story == [("began", epoch), ("stopped", epoch), ("began", epoch + 1)]


async def test_given_a_partition_that_goes_to_others_then_who_runs_on_it_is_told_and_its_files_go(
    tmp_path: Path,
) -> None:
    cluster, heard = ACluster(ONE, TWO).with_features(), Heard()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)), (1, (ONE, TWO))))
    async with a_manager(tmp_path, heard) as manager:
        await manager.start(cluster.image)
        partition = manager.find("orders", 0)

        tell(manager, cluster, TWO)

        assert heard.story == [("began", 0), ("began", 0), ("stopped", 0)]
        assert partition.refusal is not None
        assert partition.refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(BrokerError) as refused:
            manager.find("orders", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await manager.caught_up()
        await until(lambda: directories(tmp_path) == ["orders-1"])


@pytest.mark.parametrize("turns", range(8))
async def test_given_a_partition_that_goes_and_comes_back_at_once_then_it_begins_anew_with_files_of_its_own(
    tmp_path: Path, turns: int
) -> None:
    """However far the change before has been carried out by then."""
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        first = manager.find("orders", 0)

        for replicas in ((TWO,), (ONE, TWO), (TWO,), (TWO, ONE), (TWO, THREE, ONE)):
            tell(manager, cluster, *replicas)
            for _ in range(turns):
                await asyncio.sleep(0)
        await manager.caught_up()

        partition = manager.find("orders", 0)
        assert partition is not first
        assert not partition.log.is_failed
        assert partition.leader_epoch == cluster.partition("orders").leader_epoch
        await until(lambda: directories(tmp_path) == ["orders-0"])
        assert (tmp_path / "orders-0" / "partition.metadata").exists()


async def test_given_logs_of_partitions_that_are_on_other_brokers_now_when_started_then_they_go(tmp_path: Path) -> None:
    cluster = ACluster(ONE, TWO).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (ONE, TWO)), (1, (ONE, TWO))))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
    moved = Reassignment(TopicPartition("orders", 0), (TWO,))
    cluster.ask(AlterReassignments((moved,)))

    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)

        await until(lambda: directories(tmp_path) == ["orders-1"])
        with pytest.raises(BrokerError):
            manager.find("orders", 0)
        assert manager.find("orders", 1)


async def test_given_a_disk_that_is_full_when_a_replica_is_to_begin_anew_then_it_does_so_a_little_later(
    tmp_path: Path,
) -> None:
    cluster = ACluster(ONE, TWO).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (TWO, ONE)),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        first, before = manager.find("orders", 0), cluster.image
        await manager.checkpoint()
        in_the_way = tmp_path / "recovery-point-offset-checkpoint.tmp"
        in_the_way.mkdir()
        epoch = cluster.image.session_epoch(ONE)
        assert epoch is not None
        (result,) = cluster.ask(ResignReplicas(ONE, epoch, (ResignedReplica(first.topic_id, 0, ONE, is_spoilt=True),)))
        assert result.error is None

        manager.follow(before, cluster.image, difference(before, cluster.image))
        await manager.caught_up()  # or not, for now
        assert not any(name.endswith("-spoilt") for name in directories(tmp_path))
        in_the_way.rmdir()

        await until(lambda: any(name.endswith("-spoilt") for name in directories(tmp_path)))
        await until(lambda: manager.by_name[b"orders"][0] not in (None, first))


async def test_given_a_configuration_that_changes_before_a_log_is_open_then_it_holds_from_the_start(
    tmp_path: Path,
) -> None:
    cluster = ACluster(ONE)
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        before = cluster.image
        cluster.create("orders")
        manager.follow(before, cluster.image, difference(before, cluster.image))
        before = cluster.image
        assert cluster.alter_topic("orders", ("max.message.bytes", AlterOperation.SET, "1234")) is None
        manager.follow(before, cluster.image, difference(before, cluster.image))
        await manager.caught_up()

        assert manager.find("orders", 0).limits.max_message_bytes == 1234


async def test_given_a_replica_that_begins_anew_in_one_session_after_another_then_only_what_was_damaged_is_kept(
    tmp_path: Path,
) -> None:
    cluster = ACluster(ONE, TWO).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (TWO, ONE)),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        damaged = with_record(manager)
        epoch = cluster.image.session_epoch(ONE)
        assert epoch is not None
        lost = ResignedReplica(damaged.topic_id, 0, ONE, is_spoilt=True)

        async def follows(before: ClusterImage) -> Partition:
            manager.follow(before, cluster.image, difference(before, cluster.image))
            await manager.caught_up()
            return manager.find("orders", 0)

        before = cluster.image
        cluster.ask(ResignReplicas(ONE, epoch, (lost,)))
        copy = await follows(before)
        before = cluster.image
        cluster.broker_starts(ONE)
        copy_in_next_session = await follows(before)

        assert damaged is not copy is not copy_in_next_session
        await until(lambda: not any(name.endswith("-delete") for name in directories(tmp_path)))
        ours, (kept,) = "orders-0", [name for name in directories(tmp_path) if name.endswith("-spoilt")]
        assert directories(tmp_path) == [ours, kept]
        assert (tmp_path / kept / "00000000000000000000.log").stat().st_size > 0


async def test_given_a_log_that_is_damaged_where_it_was_committed_to_when_started_then_it_is_under_suspicion(
    tmp_path: Path,
) -> None:
    """One damaged log must not keep a broker from starting."""
    cluster = ACluster(ONE, TWO).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (TWO, ONE)),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        with_record(manager).log.roll(0)
        with_record(manager).log.close()
        await manager.checkpoint()
    file = tmp_path / "orders-0" / "00000000000000000000.log"
    content = bytearray(file.read_bytes())
    content[MAGIC_AT] ^= 0x40
    file.write_bytes(content)
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version": "0", "broker_epoch": "1"}')

    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)

        assert manager.find("orders", 0).log.suspicion is not None


async def test_given_a_partition_that_went_and_came_back_unseen_then_it_begins_anew(tmp_path: Path) -> None:
    """While it was elsewhere, nobody kept tombstones for what is in its log."""
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (TWO, ONE)),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        first, before = with_record(manager), cluster.image

        for replicas in ((TWO,), (TWO, ONE)):
            cluster.ask(AlterReassignments((Reassignment(TopicPartition("orders", 0), replicas),)))
        manager.follow(before, cluster.image, difference(before, cluster.image))
        await manager.caught_up()

        partition = manager.find("orders", 0)
        assert partition is not first
        assert partition.log.log_end_offset == 0


@pytest.mark.parametrize(("policy", "kept"), [("compact", 0), ("delete", 1)])
async def test_given_a_partition_that_went_and_came_back_while_its_broker_was_away_then_a_compacted_one_begins_anew(
    tmp_path: Path, policy: str, kept: int
) -> None:
    cluster = ACluster(ONE, TWO, THREE).with_features()
    cluster.create("orders", -1, -1, assignments=((0, (TWO, ONE)),), configs=(("cleanup.policy", policy),))
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        with_record(manager).log.close()
    for replicas in ((TWO,), (TWO, ONE)):
        cluster.ask(AlterReassignments((Reassignment(TopicPartition("orders", 0), replicas),)))

    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)

        assert manager.find("orders", 0).log.log_end_offset == kept


async def test_given_a_thread_that_reads_a_log_that_is_to_be_cut_then_that_is_waited_for_and_nobody_else_begins(
    tmp_path: Path,
) -> None:
    """A leader that has gone on without knowing it: a consumer is behind, and what others have not has to go."""
    cluster = ACluster(ONE)
    cluster.create("orders")
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        partition, files, may_end = with_record(manager), manager._files, threading.Event()
        log = partition.log
        reading = spawn(log.in_thread(files, may_end.wait, 10), name="reading")
        partition.follow(partition.leader_epoch + 1)
        assert partition.follower is not None
        partition.follower._shorten(Truncate(0))

        cutting = spawn(manager._shorten(partition, Truncate(0)), name="cutting")
        await asyncio.wait((cutting,), timeout=0.1)
        with pytest.raises(BrokerError, match="being cut"):
            await log.in_thread(files, lambda: None)
        assert log.log_end_offset == 1

        may_end.set()
        await asyncio.wait_for(cutting, 10)
        assert await reading
        assert log.log_end_offset == 0
        assert await log.in_thread(files, lambda: "as before") == "as before"


# Partitions that are not here yet


@pytest.mark.parametrize("by", ["name", "id"])
async def test_given_a_batch_for_a_topic_that_is_not_here_yet_when_it_is_then_the_next_is_not_taken_for_the_first(
    tmp_path: Path, by: str
) -> None:
    """Others tell of a leader before it has its log. Of a batch that is taken, librdkafka takes all before it for
    delivered, too.
    """
    cluster, told = ACluster(ONE), Told()
    async with a_manager(tmp_path, Heard()) as manager:
        await manager.start(cluster.image)
        before = cluster.image
        cluster.create("orders")
        topic_id = cluster.image.topics["orders"].topic_id
        manager.missed(b"orders" if by == "name" else topic_id, 0, read_header(a_numbered_batch(5)))
        manager.missed(b"others", 0, read_header(a_numbered_batch(1)))
        manager.follow(before, cluster.image, difference(before, cluster.image))
        await manager.caught_up()
        partition = manager.find("orders", 0)

        def outcome(sequence: int) -> ErrorCode | None:
            batch = a_numbered_batch(sequence)
            try:
                partition.append(memoryview(batch), read_header(batch), 1, 0, 1e15, told, 0)
            except BrokerError as error:
                return error.code
            return None

        assert outcome(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [outcome(5), outcome(6)] == [None, None]
        partition._write()


def test_given_batches_without_end_for_topics_that_never_come_then_few_are_kept() -> None:
    missed, error = Missed(), BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
    batches = [read_header(a_numbered_batch(0, producer_id=number)) for number in range(2 * MAX_MISSED_BATCHES)]

    for at, batch in enumerate(batches):
        missed.told(b"%d" % (at // 100), 0, batch, error, now_ms=0)
    missed.told(b"x" * (MAX_TOPIC_NAME_LENGTH + 1), 0, batches[0], error, now_ms=0)
    kept = {at: len(each) for at in range(200) for each in missed.of(b"%d" % at, bytes(16), 0, now_ms=0)}
    assert kept == dict.fromkeys(range(100, 200), 100)
    assert not missed._turned_away and not missed._batches_count

    missed.told(b"orders", 0, batches[0], error, now_ms=0)
    assert missed.of(b"orders", bytes(16), 0, now_ms=AWAITED_MS) == []
