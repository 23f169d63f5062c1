"""What is special about the embedded store: its file, its SQLite, and the disk underneath."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import apsw
import pytest

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata import sqlite_store
from penstock.metadata.records import InvalidMetadata
from penstock.metadata.sqlite_database import SqliteDatabase, refuse_unsafe_sqlite
from penstock.metadata.sqlite_leases import SqliteLeases
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Changes, LeaseExpired, Put, Transaction
from penstock.runtime.tasks import spawn


class FaultyDisk(apsw.VFS):
    """SQLite's way to the disk, which can be made to fail: every write from the n-th on, or every fsync."""

    def __init__(self) -> None:
        self.writes_until_full: int | None = None
        self.fsync_fails = False
        self.real_disk = apsw.vfs_names()[0]
        super().__init__("faulty-disk", self.real_disk, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(disk.real_disk, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.writes_until_full is not None:
            if self._disk.writes_until_full == 0:
                raise apsw.exception_for(apsw.SQLITE_FULL)
            self._disk.writes_until_full -= 1
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.fsync_fails:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)
        super().xSync(flags)


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    apsw.set_default_vfs(disk.real_disk)
    disk.unregister()


def put(key: str, value: bytes) -> Transaction:
    return Transaction(puts=(Put(key, value),))


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2"])
def test_given_a_sqlite_that_can_corrupt_shared_files_when_started_then_refused(version: str) -> None:
    with pytest.raises(InvalidMetadata, match=version):
        refuse_unsafe_sqlite(version)


@pytest.mark.parametrize("was_there", [False, True])
def test_given_the_clusters_key_in_a_file_then_only_its_owner_can_read_it(tmp_path: Path, was_there: bool) -> None:
    path = tmp_path / "metadata.db"
    if was_there:
        path.touch(mode=0o644)

    database = SqliteDatabase(path)
    database.commit(Transaction(puts=(Put("cluster-key", b"{}"),)))

    assert {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {
        "metadata.db": 0o600,
        "metadata.db-wal": 0o600,
        "metadata.db-shm": 0o600,
    }
    database.close()


async def test_given_a_new_file_when_read_then_it_is_at_revision_zero(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")

    assert (await store.read("")).revision == 0
    await store.close()


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "4.0.0"])
def test_given_a_sound_sqlite_when_started_then_accepted(version: str) -> None:
    refuse_unsafe_sqlite(version)


async def test_given_a_file_of_a_newer_format_when_opened_then_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    SqliteDatabase(path).close()
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version = 7")
    newer.close()

    with pytest.raises(InvalidMetadata, match="format 7, this release reads 1"):
        await SqliteStore.open(path)


def test_given_a_new_file_that_another_process_is_about_to_use_when_opened_then_it_waits(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "metadata.db"))
    other.execute("BEGIN IMMEDIATE")

    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(SqliteDatabase, tmp_path / "metadata.db")
        assert not wait([opening], timeout=0.1).done
        other.execute("COMMIT")

        opening.result().close()


async def test_given_a_file_that_is_no_database_when_opened_then_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"this is no database, whatever its name says" * 100)

    with pytest.raises(InvalidMetadata, match=r"metadata\.db is damaged"):
        await SqliteStore.open(path)


def test_given_a_new_store_when_opened_then_commits_wait_for_the_disk(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "metadata.db")

    ((synchronous,),) = database._connection.execute("PRAGMA synchronous").fetchall()
    ((journal_mode,),) = database._connection.execute("PRAGMA journal_mode").fetchall()

    assert (synchronous, journal_mode) == (2, "wal")


@pytest.mark.parametrize("writes_until_full", range(6))
async def test_given_a_disk_that_fills_when_committing_then_clear_error_and_all_well_after_space_is_freed(
    tmp_path: Path, disk: FaultyDisk, writes_until_full: int
) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    first = await store.commit(put("a", b"1"))
    disk.writes_until_full = writes_until_full

    with pytest.raises(BrokerError, match=r"metadata\.db") as refused:
        for number in range(6):
            await store.commit(put("b", bytes(20_000) + b"%d" % number))

    while_full = await store.read("")
    disk.writes_until_full = None
    after = await store.commit(put("c", b"3"))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert while_full.entries[0].value == b"1"
    assert after.revision == while_full.revision + 1 > first.revision
    await store.close()
    reopened = await SqliteStore.open(tmp_path / "metadata.db")
    assert [entry.key for entry in (await reopened.read("")).entries if entry.key != "b"] == ["a", "c"]
    await reopened.close()


async def test_given_a_failed_fsync_when_committing_again_then_refused_until_restart(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    await store.commit(put("a", b"1"))
    disk.fsync_fails = True
    with pytest.raises(BrokerError):
        await store.commit(put("b", b"2"))
    disk.fsync_fails = False

    with pytest.raises(BrokerError, match="restart the broker"):
        await store.commit(put("c", b"3"))

    assert [entry.key for entry in (await store.read("")).entries] == ["a"]
    await store.close()
    reopened = await SqliteStore.open(tmp_path / "metadata.db")
    await reopened.commit(put("c", b"3"))
    await reopened.close()


def test_given_a_lease_whose_time_is_up_when_renewed_before_anyone_ended_it_then_it_stays_over(tmp_path: Path) -> None:
    leases = SqliteLeases(SqliteDatabase(tmp_path / "metadata.db"))
    over, alive = leases.grant(0), leases.grant(60_000)

    with pytest.raises(LeaseExpired):
        leases.keep_alive(over)

    leases.keep_alive(alive)


def test_given_leases_of_before_a_reboot_when_looked_at_then_they_are_over(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "metadata.db")
    leases = SqliteLeases(database)
    lease = leases.grant(60_000)
    database.commit(Transaction(puts=(Put("leased", b"1", lease),)))
    assert not leases.end_overdue()

    leases._boot_id = b"another boot of this machine........"

    assert leases.end_overdue()
    assert database.read("").entries == ()
    assert database.lease_ids() == []


WRITER = """
import asyncio, os, sys
from pathlib import Path
from penstock.metadata.sqlite_leases import SqliteLeases
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Put, Transaction

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]))
    for number in range(5):
        await store.commit(Transaction(puts=(Put(f"key{number}", b"from another process"),)))
    os._exit(9)  # no clean close

asyncio.run(main())
"""


async def test_given_another_process_that_commits_and_dies_when_watching_then_all_its_commits_are_seen(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    before = (await store.commit(put("mine", b"1"))).revision

    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(tmp_path / "metadata.db"))
    keys: list[str] = []
    async for changes in store.watch("", before):
        keys += [change.key for change in changes.changes]
        if len(keys) == 5:
            break

    assert await writer.wait() == 9
    assert keys == [f"key{number}" for number in range(5)]
    await store.close()


async def test_given_another_process_that_commits_when_watching_then_nobody_waits_for_the_next_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "POLL_INTERVAL_MS", 3_600_000)
    directory = tmp_path / ("deep" * 30)  # longer than a socket's path may be
    directory.mkdir()
    store = await SqliteStore.open(directory / "metadata.db")
    before = (await store.commit(put("mine", b"1"))).revision
    watched = store.watch("", before)

    async def first() -> Changes:
        return await anext(watched)

    seen = spawn(first(), name="watching")

    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(directory / "metadata.db"))

    assert (await asyncio.wait_for(seen, 20)).changes[0].key == "key0"
    await writer.wait()
    watchers = directory / "metadata.db-watchers"
    assert len(list(watchers.iterdir())) == 2
    await store.commit(put("mine", b"2"))  # finds nobody behind the other one
    assert len(list(watchers.iterdir())) == 1
    await watched.aclose()
    await store.close()
    assert list(watchers.iterdir()) == []
