"""The background of compaction: which log comes next, what stops it and what does not (trap D6)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.storage.compaction_kit import COMPACTED, keyed_batch
from tests.storage.kit import NOW_MS, append, flush, records

from penstock.core.ids import TopicPartition
from penstock.core.metrics import CleanerMetrics
from penstock.runtime.clock import SystemClock
from penstock.runtime.tasks import TaskGroup
from penstock.storage import cleaner as cleaner_module
from penstock.storage.cleaner import Candidate, Cleaner, CleanerSettings
from penstock.storage.compaction import CleanerLimits, Cleaning, plan_cleaning
from penstock.storage.compaction_plan import CleaningPlan
from penstock.storage.log import Log
from penstock.storage.pace import Pace

SETTINGS = CleanerSettings(
    is_enabled=True, threads=2, limits=CleanerLimits(io_buffer_bytes=8192), max_bytes_per_s=1e308, backoff_ms=10
)


async def until(condition: Callable[[], object], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of a thread's doing
            await asyncio.sleep(0.005)


class Shop:
    """Some logs and a cleaner for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs: dict[TopicPartition, Log] = {}
        self.settings = SETTINGS
        self.metrics = CleanerMetrics()
        self.checkpoints = 0
        self.looks = 0
        self.crashed: list[str] = []
        self.tasks = TaskGroup(on_crash=lambda name, _: self.crashed.append(name))
        self.cleaner = Cleaner(
            self.candidates, self.look, self.checkpoint, metrics=self.metrics, tasks=self.tasks,
            clock=SystemClock(),
        )  # fmt: skip

    def look(self) -> CleanerSettings:
        """What the cleaner reads before each of its decisions."""
        self.looks += 1
        return self.settings

    def candidates(self) -> list[Candidate]:
        return [Candidate(tp, log, log.log_end_offset) for tp, log in self.logs.items() if log.config.is_compacted]

    async def checkpoint(self) -> None:
        self.checkpoints += 1

    def add(self, partition: int, count: int = 20, **changes: object) -> Log:
        settings = dataclasses.replace(COMPACTED, file_delete_delay_ms=0, **changes)  # type: ignore[arg-type]
        log = Log.open(str(self.path / f"t-{partition}"), settings, now_ms=NOW_MS)
        for number in range(count):
            append(log, keyed_batch([(b"a", b"%d" % number * 40)]))
        log.roll(NOW_MS)
        flush(log)
        self.logs[TopicPartition("t", partition)] = log
        return log

    def start(self) -> None:
        self.tasks.spawn(self.cleaner.run(), name="cleaner")


@pytest_asyncio.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    await shop.tasks.stop()
    assert not shop.crashed
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cleaner")]


def damage(log: Log) -> None:
    with open(log.segments[0].path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 20)


def is_clean(log: Log) -> bool:
    return log.cleaning.cleaned_offset == log.log_end_offset and not log.cleaning.is_busy


async def test_given_dirty_logs_when_the_cleaner_runs_then_all_are_cleaned_and_old_files_go(shop: Shop) -> None:
    logs = [shop.add(partition) for partition in range(4)]
    shop.start()

    await until(lambda: all(map(is_clean, logs)))

    assert [len(records(log)) for log in logs] == [1] * 4
    assert shop.metrics.runs == shop.checkpoints == 4
    assert shop.metrics.bytes_read > shop.metrics.bytes_written > 0
    await until(lambda: not [name for log in logs for name in os.listdir(log.directory) if "." in name[-8:-7]])
    await until(lambda: shop.metrics.max_dirty_ratio == 0)
    assert shop.metrics.last_run_ms is not None


async def test_given_the_dirtiest_of_several_when_one_at_a_time_is_cleaned_then_it_comes_first(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shop.settings = dataclasses.replace(SETTINGS, threads=1)
    half_clean, dirty = shop.add(0), shop.add(1)
    half_clean.cleaning.cleaned_offset = half_clean.segments[-2].base_offset
    shop.start()

    await until(lambda: is_clean(half_clean) and is_clean(dirty))

    told = [record for record in caplog.records if record.getMessage() == "log compacted"]
    assert [record.__dict__["partition"].partition for record in told] == [1, 0]


async def test_given_a_policy_that_changes_when_the_cleaner_runs_then_it_follows(shop: Shop) -> None:
    log = shop.add(0)
    log.config = dataclasses.replace(log.config, is_compacted=False)
    other = shop.add(1)
    shop.start()
    await until(lambda: is_clean(other))
    assert log.cleaning.cleaned_offset == 0

    log.config = dataclasses.replace(log.config, is_compacted=True)

    await until(lambda: is_clean(log))


async def test_given_a_corrupt_partition_when_the_cleaner_runs_then_it_is_said_once_and_others_are_cleaned(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = shop.add(0), shop.add(1)
    damage(bad)
    shop.start()

    await until(lambda: is_clean(good) and bad.cleaning.uncleanable)
    append(good, keyed_batch([(b"b", b"1")]))
    good.roll(NOW_MS)
    flush(good)
    await until(lambda: is_clean(good) and shop.metrics.runs == 2)

    assert "CRC-32C" in str(bad.cleaning.uncleanable)
    assert shop.metrics.uncleanable_partitions == 1
    assert len([each for each in caplog.records if "cannot be compacted" in each.getMessage()]) == 1
    assert len(records(good)) == 2


async def test_given_a_bug_in_choosing_when_the_cleaner_dies_then_it_is_counted_and_begins_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = shop.add(0)
    calls: list[object] = []

    def broken(*args: object) -> object:
        calls.append(args)
        if len(calls) < 3:
            raise ZeroDivisionError
        return plan_cleaning(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cleaner_module, "plan_cleaning", broken)
    shop.start()

    await until(lambda: is_clean(log))

    assert shop.metrics.restarts == 2
    assert "the cleaner died and begins anew" in caplog.text


async def test_given_a_bug_in_cleaning_when_it_shows_then_that_partition_alone_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = shop.add(0), shop.add(1)
    look = Cleaning._look

    def broken(self: Cleaning, *args: object) -> None:
        if self._log is bad:
            raise ZeroDivisionError("a bug")
        look(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Cleaning, "_look", broken)
    shop.start()

    await until(lambda: is_clean(good) and bad.cleaning.uncleanable == "a bug")


async def test_given_a_full_disk_when_cleaned_then_it_is_tried_again_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = shop.add(0)
    pwritev, calls = os.pwritev, []

    def full(*args: object) -> int:
        calls.append(args)
        if len(calls) < 4:
            raise OSError(28, "No space left on device")
        return pwritev(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "pwritev", full)
    shop.start()

    await until(lambda: is_clean(log))

    assert log.cleaning.uncleanable is None
    assert len(records(log)) == 1


async def test_given_a_log_that_is_deleted_when_it_is_being_cleaned_then_the_thread_lets_go_of_it(shop: Shop) -> None:
    shop.settings = dataclasses.replace(SETTINGS, max_bytes_per_s=1)
    log = shop.add(0)
    shop.start()
    await until(lambda: log.cleaning.is_busy)

    log.delete()
    del shop.logs[TopicPartition("t", 0)]

    await until(lambda: not log.cleaning.is_busy)
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]


async def test_given_a_log_that_is_to_be_cut_when_it_is_being_cleaned_then_the_thread_lets_go_of_it_soon(
    shop: Shop,
) -> None:
    """Whoever cuts it holds up all partitions of the same leader for as long."""
    shop.settings = dataclasses.replace(SETTINGS, max_bytes_per_s=1)
    log = shop.add(0)
    shop.start()
    await until(lambda: log.cleaning.is_busy)

    log.is_being_cut = True

    await until(lambda: not log.cleaning.is_busy)
    assert len(records(log)) == 20


async def test_given_a_round_under_way_when_stopped_then_it_ends_at_once_and_leaves_no_thread(shop: Shop) -> None:
    shop.settings = dataclasses.replace(SETTINGS, max_bytes_per_s=1_000)
    log = shop.add(0)
    shop.start()
    await until(lambda: log.cleaning.is_busy)

    async with asyncio.timeout(2):
        await shop.tasks.stop()

    assert not log.cleaning.is_busy
    assert len(records(log)) == 20


async def test_given_a_round_that_has_not_begun_when_stopped_then_its_log_is_free(shop: Shop) -> None:
    log = shop.add(0)
    shop.start()
    async with asyncio.timeout(10):
        while not log.cleaning.is_busy:  # noqa: ASYNC110 - turn by turn, so as not to miss the moment
            await asyncio.sleep(0)

    await shop.tasks.stop()

    assert not log.cleaning.is_busy


async def test_given_a_log_that_is_being_cut_when_others_are_cleaned_then_it_is_left_alone_until_that_is_over(
    shop: Shop,
) -> None:
    cut, other = shop.add(0), shop.add(1)
    cut.is_being_cut = True
    shop.start()
    await until(lambda: is_clean(other))
    looks = shop.looks
    await until(lambda: shop.looks > looks + 1)
    assert not is_clean(cut)

    cut.is_being_cut = False

    await until(lambda: is_clean(cut))


async def test_given_a_log_that_was_cut_after_it_was_looked_at_then_that_look_is_worth_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more logs than are looked at by one thread at once: the first has time to change."""
    monkeypatch.setattr(cleaner_module, "PLANS_AT_ONCE", 1)
    first, other = shop.add(0, segment_bytes=300), shop.add(1)
    planned = Cleaner._planned

    async def cutting(self: Cleaner, free: list[Candidate], now_ms: int) -> list[tuple[Candidate, CleaningPlan]]:
        if free[0].log is not first:
            first.truncate_to(15, NOW_MS)
        return await planned(self, free, now_ms)

    monkeypatch.setattr(Cleaner, "_planned", cutting)
    chosen = await shop.cleaner._choose()
    shop.cleaner._files.close()

    assert first.generation == 1
    assert chosen is not None and chosen[0].log is other


async def test_given_it_is_turned_off_when_time_passes_then_nothing_is_cleaned(shop: Shop) -> None:
    shop.settings = dataclasses.replace(SETTINGS, is_enabled=False)
    log = shop.add(0)
    shop.start()
    await until(lambda: shop.looks > 3)
    assert log.cleaning.cleaned_offset == 0

    shop.settings = SETTINGS

    await until(lambda: is_clean(log))


class Waits(threading.Event):
    """An event that nobody sets, with a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_ms += round(timeout * 1000)
        return False


@dataclasses.dataclass
class Spent:
    """CPU time, as a test has it."""

    thread_s: float = 0.0
    process_s: float = 0.0

    def more(self, thread_s: float, others_s: float) -> None:
        self.thread_s += thread_s
        self.process_s += thread_s + others_s


def rests_of(*slices_s: tuple[float, float]) -> list[int]:
    """In milliseconds, after each slice of what the thread computed, and others meanwhile."""
    clock, spent = Waits(), Spent()
    pace = Pace(lambda: clock.now_ms, clock, computed_s=lambda: spent.thread_s, process_s=lambda: spent.process_s)
    spent.more(1.0, 10.0)  # before it was asked for anything
    assert pace.passed(1, lambda: True) and clock.now_ms == 1_000
    rests = []
    for slice_s in slices_s:
        spent.more(*slice_s)
        before_ms = clock.now_ms
        assert pace.passed(1, lambda: True)
        rests.append(clock.now_ms - before_ms)
    return rests


def test_given_others_that_serve_when_a_thread_computes_then_it_rests_for_as_long() -> None:
    assert rests_of((0.005, 0.001), (0.0, 0.0), (0.02, 0.05)) == [5, 0, 20]


def test_given_nobody_else_when_a_thread_computes_then_it_does_not_rest() -> None:
    assert rests_of((0.005, 0.0), (0.02, 0.0)) == [0, 0]


def test_given_requests_now_and_then_when_a_thread_computes_then_the_rest_they_are_owed_outlasts_the_gaps() -> None:
    a_request, a_gap = (0.002, 0.0003), (0.002, 0.0)

    assert rests_of(a_request, a_gap, a_gap, a_gap, a_gap) == [2, 2, 2, 0, 0]


def test_given_much_that_was_served_when_it_is_over_then_the_rest_owed_for_it_ends_soon() -> None:
    assert sum(rests_of((0.01, 100.0), *[(0.01, 0.0)] * 100)) == 250


def test_given_a_thread_that_was_away_when_it_computes_again_then_what_others_did_meanwhile_is_past() -> None:
    clock, spent = Waits(), Spent()
    pace = Pace(lambda: clock.now_ms, clock, computed_s=lambda: spent.thread_s, process_s=lambda: spent.process_s)
    assert pace.passed(1, lambda: True)
    spent.more(0.1, 5.0)
    clock.now_ms += 60_000

    for _ in range(3):
        before_ms = clock.now_ms
        assert pace.passed(1, lambda: True)
        assert clock.now_ms == before_ms
        spent.more(0.01, 0.0)


def test_given_a_rate_when_work_is_done_then_it_is_held_to_it() -> None:
    clock = Waits()
    stop = threading.Event()
    pace = Pace(lambda: clock.now_ms, clock, bytes_per_s=1_000, computed_s=lambda: 0.0)
    assert pace.passed(500, lambda: True)
    assert clock.now_ms == 1_500
    clock.now_ms += 10_000  # idle time is not saved up
    assert pace.passed(2_000, lambda: True)
    assert clock.now_ms == 13_500
    pace.bytes_per_s = 1e308
    assert pace.passed(10**12, lambda: True)
    assert clock.now_ms == 13_500
    stop.set()
    assert not Pace(lambda: 0, stop).passed(1, lambda: True)
    assert not pace.passed(10**12, lambda: False)
