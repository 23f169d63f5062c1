"""trap B8: compaction is stopped before and after every step it takes in the file system, and the log opened again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.storage.compaction_kit import (
    COMPACTED,
    MEMORY,
    check_indexes,
    check_offsets,
    clean,
    keyed_batch,
    start_cleaning,
)
from tests.storage.kit import NOW_MS, append, bytes_of, records, reopen
from tests.storage.transaction_kit import a_marker, batches_of, committed, txn_batch

from penstock.protocol.batch import Codec, read_header
from penstock.protocol.records import StoredRecord, iterate
from penstock.storage.log import Log

STEPS = ("open", "rename", "unlink", "fsync", "fdatasync", "pwritev", "utime")


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where that is possible: this is about the order of steps, and there are thousands of them."""
    with tempfile.TemporaryDirectory(prefix="compaction-", dir=MEMORY) as path:
        yield Path(path)


class Killed(BaseException):
    """The process is gone: nothing after this runs, no tidying up either."""


class StepCounter:
    """Counts the calls that change files, and kills before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kill_at: int, *, after: bool) -> None:
        self.taken: list[str] = []
        self.is_dead = False
        for name in STEPS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name), kill_at, after))

    def _counted(self, name: str, call: Callable[..., object], kill_at: int, after: bool) -> Callable[..., object]:
        def counted(*args: object, **options: object) -> object:
            if name == "open" and not int(str(args[1])) & os.O_CREAT:
                return call(*args, **options)
            if self.is_dead:
                raise Killed
            self.taken.append(f"{name} {args[0]}")
            dies_here = len(self.taken) == kill_at
            if dies_here and not after:
                self.is_dead = True
                raise Killed
            result = call(*args, **options)
            if dies_here:
                self.is_dead = True
                raise Killed
            return result

        return counted


def a_log(path: Path) -> Log:
    """Closed segments of a few batches each, of which several become one, and the active one."""
    log = Log.open(str(path), dataclasses.replace(COMPACTED, segment_bytes=500), now_ms=NOW_MS)
    for number in range(24):
        codec = Codec.LZ4 if number % 7 == 3 else Codec.NONE
        pairs = [(b"k%d" % (number % 5), b"v" * 80 if number % 11 else None), (b"once-%d" % number, b"%d" % number)]
        append(log, keyed_batch(pairs, codec=codec, producer=(9, 0, 2 * number), timestamp=NOW_MS + number))
    assert len(log.segments) > 8
    log.config = COMPACTED
    return log


def latest(log: Log) -> dict[bytes | None, StoredRecord]:
    return {record.key: record for record in records(log)}


def steps_of_a_round(directory: Path) -> int:
    with pytest.MonkeyPatch.context() as monkeypatch:
        log = a_log(directory / "count")
        counter = StepCounter(monkeypatch, -1, after=False)
        clean(log)
        return len(counter.taken)


def every_step(directory: Path) -> Iterator[tuple[int, bool]]:
    for step in range(1, steps_of_a_round(directory) + 1):
        yield step, False
        yield step, True


def run_until_killed(log: Log, step: int, *, after: bool) -> bool:
    """Whether it was killed, and not at its end already."""
    cleaning = start_cleaning(log)
    assert cleaning is not None
    with pytest.MonkeyPatch.context() as monkeypatch:
        StepCounter(monkeypatch, step, after=after)
        steps = cleaning.steps()
        try:
            for work in steps:
                work()
            for retired in cleaning.retired:
                retired.remove()
        except Killed:
            with contextlib.suppress(Killed):
                steps.close()
            return True
    return False


@pytest.mark.parametrize("is_clean", [True, False])
def test_given_a_kill_at_every_step_when_opened_then_nothing_that_counts_is_lost(
    directory: Path, is_clean: bool
) -> None:
    killed = 0
    for step, after in every_step(directory):
        log = a_log(directory / f"{step}-{after}")
        before, written = latest(log), {record.offset: record for record in records(log)}
        windows = {key: entry.batches for key, entry in log.producers.entries.items()}
        log.close()
        log = Log.open(log.directory, log.config, now_ms=NOW_MS)
        killed += run_until_killed(log, step, after=after)

        again = Log.open(
            log.directory,
            log.config,
            recovery_point=0 if step % 2 else log.recovery_point,
            clean=is_clean,
            now_ms=NOW_MS,
        )

        assert latest(again) == before, (step, after)
        assert all(written[record.offset] == record for record in records(again))
        assert again.log_end_offset == log.log_end_offset
        assert again.recovery_report is None or again.recovery_report.truncated_bytes == 0
        assert {key: entry.batches for key, entry in again.producers.entries.items()} == windows
        check_offsets(again)
        leftovers = [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert leftovers == []
        # And it goes on from there.
        clean(again)
        assert latest(again) == before
        check_indexes(again)
    assert killed > 80


def a_log_with_transactions(path: Path) -> Log:
    """Two producers, a transaction of one across segments; every second one of the other is aborted."""
    log = Log.open(str(path), dataclasses.replace(COMPACTED, segment_bytes=500), now_ms=NOW_MS)
    append(log, txn_batch((8, 0, 0), keys=[b"across", b"k0"], value=b"aborted"))
    for number in range(14):
        append(log, txn_batch((9, 0, 2 * number), keys=[b"k%d" % (number % 3), b"once-%d" % number], value=b"v" * 40))
        append(log, a_marker(9, 0, commit=number % 2 == 0))
        if number == 9:
            append(log, a_marker(8, 1, commit=False))
    append(log, keyed_batch([(b"plain", b"v" * 400)]))
    assert len(log.segments) > 6
    log.config = COMPACTED
    return log


def committed_records(log: Log) -> dict[bytes | None, bytes | None]:
    batches, end = batches_of(log), log.log_end_offset
    seen = set(committed(batches, log.aborted_transactions(0, end), 0, end))
    return {
        record.key: record.value for header, batch in batches if header.base_offset in seen for record in iterate(batch)
    }


@pytest.mark.parametrize("is_clean", [True, False])
def test_given_transactions_and_a_kill_at_every_step_when_opened_then_no_abort_is_forgotten_and_nothing_is_open(
    directory: Path, is_clean: bool
) -> None:
    """Unlike the other indexes the one of aborted transactions is missed by readers when a swap loses it."""
    step = killed = 0
    is_over = False
    while not is_over:
        step += 1
        for after in (False, True):
            log = a_log_with_transactions(directory / f"{step}-{after}")
            before = committed_records(log)
            assert len(log.aborted_transactions(0, 99)) == 8
            log.close()
            log = Log.open(log.directory, log.config, now_ms=NOW_MS)
            was_killed = run_until_killed(log, step, after=after)
            killed += was_killed
            is_over = not was_killed

            point = 0 if step % 2 else log.recovery_point
            again = Log.open(log.directory, log.config, recovery_point=point, clean=is_clean, now_ms=NOW_MS)

            assert committed_records(again) == before, (step, after)
            assert again.open_transactions() == {}
            clean(again)
            assert committed_records(again) == before
            check_indexes(again)
    assert killed > 20


def test_given_a_round_when_its_steps_are_traced_then_nothing_is_renamed_before_it_is_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(directory / "traced")
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    next(steps)()
    counter = StepCounter(monkeypatch, -1, after=False)
    work = next(steps)
    for _ in range(3):  # write, commit, finish: one group
        work()
        work = next(steps)

    shape = [each.split(" ")[0] if "/" not in each else _short(each) for each in counter.taken]
    commit = [at for at, each in enumerate(shape) if each.startswith("rename") and each.endswith(".cleaned")]
    deleted = [at for at, each in enumerate(shape) if each.startswith("rename") and each.endswith((".log", "index"))]
    final = [at for at, each in enumerate(shape) if each.startswith("rename") and each.endswith(".swap")]
    assert len(commit) == len(final) == 3
    assert shape[commit[-1]].endswith(".log.cleaned")
    # The three new files before, and the directory between: fsyncs by their descriptors.
    assert sum(each == "fsync" for each in shape[: commit[0]]) == 3
    assert "fsync" in shape[commit[-1] + 1 : deleted[0]]
    assert "fsync" in shape[deleted[-1] + 1 : final[0]]
    assert "fsync" in shape[final[-1] + 1 :]


def _short(step: str) -> str:
    name, path = step.split(" ", 1)
    return f"{name} {os.path.basename(path)}"


def test_given_a_swap_under_way_when_read_then_old_and_new_readers_get_their_bytes(directory: Path) -> None:
    log = a_log(directory / "reading")
    expected = {record.offset: record for record in records(log)}
    cleaning = start_cleaning(log)
    assert cleaning is not None
    old_list = log.segments
    spans = [segment.file() for segment in old_list]
    old_bytes = [os.pread(file.fd, segment.size, 0) for file, segment in zip(spans, old_list, strict=True)]
    del spans

    def look() -> None:
        # Whoever took the list before all this finds every batch in it, also when descriptors are short.
        for segment in (*old_list, *log.segments):
            for each in (segment, segment.offset_index, segment.time_index):
                each.evict()
        for segment, content in zip(old_list, old_bytes, strict=True):
            assert os.pread(segment.file().fd, len(content), 0) == content
            first = segment.locate(segment.base_offset, segment.size, wait=True)
            assert first is not None
            assert first.position == 0
        for offset in range(0, log.log_end_offset, 7):
            span = log.read(offset, 1, log.end_position, at_least_one=True, wait=True)
            assert span is not None
            assert read_header(bytes_of(span)).last_offset >= offset

    for work in cleaning.steps():
        look()
        work()
        look()
    for retired in cleaning.retired:
        retired.remove()
    assert all(expected[record.offset] == record for record in records(log))


def test_given_a_failing_rename_when_committed_then_the_old_segments_serve_and_the_next_round_works(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(directory / "failing")
    before = latest(log)
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    next(steps)()
    next(steps)()
    commit = next(steps)
    rename, calls = os.rename, []

    def failing(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 3:
            raise OSError(5, "no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError) as failed:
        commit()
    with pytest.raises(OSError):
        steps.throw(failed.value)
    monkeypatch.undo()

    assert not log.is_swapping
    assert not log.is_failed
    assert latest(log) == before
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]
    clean(log)
    assert latest(log) == before
    check_indexes(log)


def test_given_a_failing_rename_when_finished_then_the_log_is_offline_and_a_start_finishes_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(directory / "failing")
    before = latest(log)
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    for _ in range(3):
        next(steps)()
    finish = next(steps)

    def failing(source: str, target: str) -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(OSError) as failed:
        finish()
    with pytest.raises(OSError):
        steps.throw(failed.value)
    monkeypatch.undo()

    assert log.is_failed
    assert not log.is_swapping
    again = reopen(log, clean=False)
    assert latest(again) == before
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]
