"""traps B4, B7, B9: what counts as flushed, and what happens when a flush fails."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, config, flush, no_descriptor_left, reopen, small_disk, stage

from penstock.core.errors import BrokerError, ErrorCode
from penstock.runtime.files import Files
from penstock.runtime.syncs import Syncs
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log


def test_given_a_ticket_when_more_is_written_before_it_ends_then_it_covers_what_was_there(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3))
    ticket = log.begin_flush()
    append(log, a_batch(2))
    ticket.run()

    assert log.finish_flush(ticket).offset == 3
    assert (log.flushed_offset, log.recovery_point, log.is_dirty) == (3, 3, True)


def test_given_a_ticket_that_was_not_finished_when_asked_then_nothing_counts_as_flushed(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3))
    log.begin_flush().run()

    assert (log.flushed_offset, log.recovery_point) == (0, 0)


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is flushed from now on, in order."""
    names: list[str] = []
    real = {name: getattr(os, name) for name in ("fdatasync", "fsync")}

    def noted(name: str) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            names.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            real[name](fd)

        return sync

    for name in real:
        monkeypatch.setattr(os, name, noted(name))
    return names


def synced(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[str]:
    """The names of what `work` flushes, in order."""
    with monkeypatch.context() as patch:
        names = noted_syncs(patch)
        work()
    return names


def test_given_a_plain_append_when_flushed_then_it_takes_one_fdatasync(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())
    flush(log)
    append(log, a_batch())

    assert synced(monkeypatch, lambda: flush(log)) == ["00000000000000000000.log"]


def test_given_a_roll_when_flushed_then_both_files_the_indexes_the_snapshot_and_the_directory_are_flushed(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())
    flush(log)
    append(log, a_batch())
    log.roll(NOW_MS)
    append(log, a_batch())

    names = synced(monkeypatch, lambda: flush(log))

    assert names[:4] == [
        "00000000000000000000.log",
        "00000000000000000002.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
    ]
    assert names[4:] == ["00000000000000000002.snapshot.tmp", "orders-0"]
    assert log.recovery_point == 3


def test_given_a_new_log_when_first_flushed_then_its_directory_and_the_one_above_are_flushed(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())

    names = synced(monkeypatch, lambda: flush(log))

    assert {os.path.basename(os.path.dirname(log.directory)), "orders-0"} <= set(names)


def test_given_a_truncation_while_a_ticket_is_under_way_when_it_ends_then_the_new_end_is_not_taken_for_flushed(
    new_log: NewLog,
) -> None:
    log = new_log()
    for _ in range(4):
        append(log, a_batch())
    log.roll(NOW_MS)
    ticket = log.begin_flush()
    log.truncate_to(1, NOW_MS)
    append(log, a_batch())
    append(log, a_batch())
    ticket.run()
    log.finish_flush(ticket)

    assert log.flushed_offset <= 1
    assert not os.path.exists(f"{log.directory}/{4:020d}.snapshot")
    flush(log)
    assert log.flushed_offset == 3


def test_given_no_room_for_the_snapshot_when_flushed_then_records_count_as_flushed_and_the_recovery_point_waits(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 128 * 1024) as directory:
        log = Log.open(f"{directory}/orders-0", config(), now_ms=NOW_MS)
        flush(log)
        append(log, a_batch(producer=(1, 0, 0)))
        log.roll(NOW_MS)
        append(log, a_batch(producer=(1, 0, 1)))
        with open(f"{directory}/ballast", "wb", buffering=0) as ballast, pytest.raises(OSError):
            while True:
                ballast.write(bytes(4096))

        flush(log)
        assert (log.flushed_offset, log.recovery_point, log.is_failed) == (2, 0, False)

        os.unlink(f"{directory}/ballast")
        flush(log)
        assert log.recovery_point == 2
        assert os.path.exists(f"{log.directory}/{1:020d}.snapshot")
        again = reopen(log, clean=False, recovery_point=2)
        assert again.producers.entries[1].batches == log.producers.entries[1].batches


def test_given_a_snapshot_that_the_disk_refuses_when_flushed_then_the_flush_fails(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())
    flush(log)
    log.roll(NOW_MS)

    def broken(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".snapshot.tmp"):
            raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="input/output error"):
        log.begin_flush().run()


# The flusher


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Files]:
    files = Files(16, "flush")
    yield files
    files.close()


class Gate:
    """Lets a test decide when fdatasync goes on, and with what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.error: OSError | None = None
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def open(self) -> None:
        self._open.set()

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self._open.wait(20)
        with self._lock:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        self._real(fd)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in threads
            await asyncio.sleep(0.001)


def never(error: BaseException) -> None:
    raise AssertionError(error)


async def test_given_appends_during_a_flush_when_it_ends_then_one_more_flush_covers_them_all(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    flush(log)
    gate = Gate(monkeypatch)
    flusher = Flusher(pool, never)
    flushed: list[int] = []
    for _ in range(10):
        append(log, a_batch())
        flusher.request(log, lambda: flushed.append(log.flushed_offset))

    gate.open()
    await flusher.drain()

    assert flushed == [1, 10]
    assert gate.calls == 2
    assert gate.most_at_once == 1


async def test_given_a_log_that_is_flushed_again_and_again_when_it_is_waited_for_then_until_what_was_there_is_on_disk(
    new_log: NewLog, pool: Files
) -> None:
    """A broker that starts follows at once, and serves when what it has found is on disk, however much comes."""
    log = new_log()
    append(log, a_batch(3))
    flusher = Flusher(pool, never)
    goes_on = True

    def flush_more() -> None:
        if goes_on:
            append(log, a_batch())
            flusher.request(log, flush_more)

    flush_more()
    async with asyncio.timeout(30):
        await flusher.reach({log: 3})
    assert log.flushed_offset >= 3
    assert log.is_dirty

    goes_on = False
    await flusher.drain()


async def test_given_many_logs_when_flushed_then_no_more_than_allowed_at_a_time_and_all_in_the_end(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [new_log(name=f"orders-{number}") for number in range(12)]
    for log in logs:
        flush(log)
        append(log, a_batch())
    gate = Gate(monkeypatch)
    flusher = Flusher(pool, never, parallel=4)
    for log in logs:
        flusher.request(log, lambda: None)
    await until(lambda: gate.calls == 4)
    assert all(map(flusher.is_busy, logs))  # those that wait as well: whoever is to cut one waits for them
    gate.open()
    await flusher.drain()

    assert gate.most_at_once == 4
    assert not any(map(flusher.is_busy, logs))
    assert all(log.flushed_offset == 1 for log in logs)


async def test_given_an_fdatasync_that_fails_when_others_wait_then_all_learn_it_and_it_is_never_tried_again(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """traps B4."""
    failing, other = new_log(name="orders-0"), new_log(name="orders-1")
    for log in (failing, other):
        flush(log)
        append(log, a_batch())
    gate = Gate(monkeypatch)
    gate.error = OSError(errno.EIO, "input/output error")
    failures: list[BaseException] = []
    flusher = Flusher(pool, failures.append, parallel=1)
    notified: list[str] = []
    flusher.request(failing, lambda: notified.append("failing"))
    flusher.request(other, lambda: notified.append("other"))
    flusher.request(failing, lambda: notified.append("failing again"))

    gate.open()
    await flusher.drain()
    gate.error = None
    flusher.request(other, lambda: notified.append("later"))

    assert notified == ["failing", "other", "failing again", "later"]
    assert failures == [gate_error for gate_error in failures if isinstance(gate_error, OSError)]
    assert (len(failures), gate.calls) == (1, 1)
    assert (failing.flushed_offset, other.flushed_offset) == (0, 0)
    assert failing.is_failed
    assert other.is_failed
    with pytest.raises(BrokerError) as refused:
        stage(other, a_batch())
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_given_a_log_that_is_deleted_during_its_flush_when_the_flush_fails_then_the_directory_stays_online(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())
    gate = Gate(monkeypatch)
    flusher = Flusher(pool, never)
    flusher.request(log, lambda: None)
    await until(lambda: gate.calls == 1)
    log.delete()
    os.rename(log.directory, f"{log.directory}.gone")
    gate.open()
    await flusher.drain()

    assert log.flushed_offset == 0


async def test_given_no_descriptor_left_when_flushed_then_those_who_wait_go_on_waiting_until_all_of_it_is_on_disk(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = new_log(name="orders-0"), new_log(name="orders-1")
    append(other, a_batch())
    for each in (log, other):
        flush(each)
    append(log, a_batch(producer=(1, 0, 0)))
    log.roll(NOW_MS)
    append(log, a_batch(producer=(1, 0, 1)), epoch=1)
    append(other, a_batch())
    flusher = Flusher(pool, never, parallel=1)
    notified: list[str] = []

    with no_descriptor_left():
        flusher.request(log, lambda: notified.append("log"))
        flusher.request(other, lambda: notified.append("other"))
        await until(lambda: notified == ["other"])  # it needs no file but the open one, and held nobody up
        assert not log.is_failed
        assert (log.flushed_offset, log.recovery_point) == (0, 0)
        append(log, a_batch(producer=(1, 0, 2)))

    names = noted_syncs(monkeypatch)
    await until(lambda: notified == ["other", "log"])
    assert (log.flushed_offset, log.recovery_point, log.is_dirty) == (3, 3, False)
    assert {name for name in names if name.endswith(("log", "index"))} == {
        "00000000000000000000.log",
        "00000000000000000001.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
    }
    again = reopen(log, clean=False, recovery_point=3)
    assert again.producers.entries[1].batches == log.producers.entries[1].batches
    assert again.leader_epochs.entries == log.leader_epochs.entries


async def test_given_no_descriptor_left_when_a_recovered_log_is_flushed_then_it_stays_online_until_it_is_on_disk(
    new_log: NewLog, pool: Files
) -> None:
    """Its file is opened for its first flush: that open failed, and took the partition offline."""
    before = new_log()
    append(before, a_batch())
    before.roll(NOW_MS)
    append(before, a_batch())
    log = reopen(before, clean=False)
    assert log.is_dirty
    flusher = Flusher(pool, never)
    notified: list[bool] = []

    with no_descriptor_left():
        flusher.request(log, lambda: notified.append(True))
        assert (notified, log.is_failed) == ([], False)

    await until(lambda: notified == [True])
    assert (log.flushed_offset, log.is_failed) == (2, False)


async def test_given_a_flush_that_was_put_off_when_its_log_is_deleted_then_nobody_waits_for_it(
    new_log: NewLog, pool: Files
) -> None:
    log = new_log()
    append(log, a_batch())
    flusher = Flusher(pool, never)
    with no_descriptor_left():
        flusher.request(log, lambda: None)
        await until(lambda: log in flusher._put_off)
        assert flusher.is_busy(log)
        log.delete()
        assert not flusher.is_busy(log)

    async with asyncio.timeout(20):
        await flusher.drain()

    assert log.flushed_offset == 0


@pytest.mark.skipif(not Syncs.are_there(), reason="built without a C compiler: Python's threads flush")
async def test_given_threads_for_syncs_when_flushed_then_they_flush_what_is_only_the_active_file(
    new_log: NewLog, pool: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, a_batch())
    flush(log)
    append(log, a_batch())
    syncs = Syncs(1)
    failures: list[BaseException] = []
    flusher = Flusher(pool, failures.append, syncs=syncs)
    by_python = noted_syncs(monkeypatch)

    flusher.request(log, lambda: None)
    await until(lambda: log.flushed_offset == 2)
    assert by_python == []

    append(log, a_batch())
    log.roll(NOW_MS)
    flusher.request(log, lambda: None)
    await until(lambda: log.flushed_offset == 3)
    assert "00000000000000000000.log" in by_python

    append(log, a_batch())
    file = log.begin_flush().only_file()
    assert file is not None
    for end in (pipe := os.pipe()):
        os.dup2(end, file.fd)  # which cannot be flushed
    flusher.request(log, lambda: None)
    await until(lambda: log.is_failed)
    assert [error.errno for error in failures if isinstance(error, OSError)] == [errno.EINVAL]
    assert log.flushed_offset == 3
    for end in pipe:
        os.close(end)
    syncs.close()


async def test_given_nothing_to_flush_when_requested_then_it_is_told_at_once(new_log: NewLog, pool: Files) -> None:
    log = new_log()
    flush(log)
    told: list[bool] = []

    Flusher(pool, never).request(log, lambda: told.append(True))

    assert told == [True]


async def test_given_work_in_a_thread_when_it_raises_then_the_caller_gets_it(pool: Files) -> None:
    def fails(number: int) -> int:
        raise ValueError(number)

    with pytest.raises(ValueError, match="7"):
        await pool.run(fails, 7)
    assert await pool.run(len, "four") == 4
