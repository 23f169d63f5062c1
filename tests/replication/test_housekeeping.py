"""Retention on a disk that gets full: no segment goes before what remembers its producers is on disk."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.machines.controlled_cluster import ONE, ACluster
from tests.storage.kit import small_disk

from penstock.core.config import Assignment, BrokerConfig
from penstock.core.errors import BrokerError
from penstock.protocol.batch import read_header
from penstock.protocol.records import Record, build_batch
from penstock.replication.appends import ACKS_ALL
from penstock.replication.housekeeping import Housekeeping
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.log_dirs import DataDirectory

PRODUCER_ID = 7
NO_TIMESTAMP = -1  # such records are as old as their file, and need no entry in the time index to expire


@asynccontextmanager
async def a_broker_with(directory: str, **configs: str) -> AsyncIterator[tuple[Partition, Callable[[], None]]]:
    """The partition orders-0 of a broker, and what starts its housekeeping."""
    cluster = ACluster(ONE)
    cluster.create("orders", configs=tuple((name.replace("_", "."), value) for name, value in configs.items()))
    config = BrokerConfig([Assignment("log.retention.check.interval.ms", "10", "test")])
    files, tasks, clock = Files(4, "test"), TaskGroup(), SystemClock()
    manager = ReplicaManager(
        ONE,
        lambda: config,
        DataDirectory.open(directory),
        tick=Tick(asyncio.get_running_loop()),
        flusher=Flusher(files, _never),
        files=files,
        tasks=tasks,
        clock=clock,
    )
    await manager.start(cluster.image)
    try:
        yield manager.find("orders", 0), Housekeeping(manager, lambda: config, files, tasks, clock).start
    finally:
        await tasks.stop()
        files.close()


def _never(error: BaseException) -> None:
    raise AssertionError(error)


class Told:
    def __init__(self) -> None:
        self.base_offset: int | None = None

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self.base_offset = base_offset

    def failed(self, slot: int, error: BrokerError) -> None:
        raise AssertionError(error)


async def append(partition: Partition) -> None:
    batch = build_batch(
        [Record(None, b"value", (), NO_TIMESTAMP)], producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0
    )
    told = Told()
    partition.append(memoryview(batch), read_header(batch), ACKS_ALL, SystemClock().now_ms(), 1e15, told, 0)
    await until(lambda: told.base_offset is not None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - about files, which have no event
            await asyncio.sleep(0.005)


async def until_tried(partition: Partition) -> None:
    """The snapshot was begun, or, wrongly, not waited for."""
    begun = "00000000000000000001.snapshot.tmp"
    await until(lambda: holds(partition, begun) or partition.log.log_start_offset > 0)


def holds(partition: Partition, file_name: str) -> bool:
    return os.path.exists(f"{partition.log.directory}/{file_name}")


def fill(directory: str) -> str:
    ballast = f"{directory}/ballast"
    with open(ballast, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    return ballast


def producers_after_a_crash(partition: Partition, copy: Path) -> set[int]:
    """Of a log opened over a copy of what is there now."""
    shutil.copytree(partition.log.directory, copy)
    opened = Log.open(
        str(copy),
        partition.log.config,
        recovery_point=partition.log.recovery_point,
        clean=False,
        now_ms=SystemClock().now_ms(),
    )
    return set(opened.producers.entries)


async def test_given_no_room_for_the_snapshot_when_all_records_expire_then_they_stay_until_it_is_on_disk(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 256 * 1024) as directory:
        async with a_broker_with(directory, retention_ms="1") as (partition, start_housekeeping):
            await append(partition)
            ballast = fill(directory)
            start_housekeeping()
            await until_tried(partition)

            assert holds(partition, "00000000000000000000.log")
            assert partition.log.log_start_offset == 0
            assert producers_after_a_crash(partition, tmp_path / "while-full") == {PRODUCER_ID}

            os.unlink(ballast)
            await until(lambda: partition.log.log_start_offset == 1)
            assert not holds(partition, "00000000000000000000.log")
            assert producers_after_a_crash(partition, tmp_path / "after") == {PRODUCER_ID}


@pytest.mark.parametrize("flush_messages", ["1", str(2**63 - 1)], ids=["fdatasync", "page-cache"])
async def test_given_no_room_for_the_snapshot_when_a_closed_segment_expires_then_it_stays_until_it_is_on_disk(
    tmp_path: Path, flush_messages: str
) -> None:
    """It went: only the active segment waited for its snapshot, and a round later it was active no more."""
    with small_disk(tmp_path / "disk", 256 * 1024) as directory:
        async with a_broker_with(directory, retention_ms="1", flush_messages=flush_messages) as (partition, start):
            await append(partition)
            ballast = fill(directory)
            partition.log.roll(SystemClock().now_ms())
            start()
            await until_tried(partition)

            assert holds(partition, "00000000000000000000.log")
            assert partition.log.log_start_offset == 0
            assert producers_after_a_crash(partition, tmp_path / "while-full") == {PRODUCER_ID}

            os.unlink(ballast)
            await until(lambda: partition.log.log_start_offset == 1)
            assert producers_after_a_crash(partition, tmp_path / "after") == {PRODUCER_ID}
