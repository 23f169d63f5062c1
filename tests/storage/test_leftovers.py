"""traps B8: files of deletions and swaps that a crash interrupted."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import a_batch, append, files, records, reopen

from penstock.storage.log import Log


def a_log_of_segments(new_log: NewLog) -> Log:
    """Segments at 0, 2, 4, 6; closed."""
    log = new_log(segment_bytes=200)
    for number in range(8):
        append(log, a_batch(value=bytes([number]) * 20))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    log.close()
    return log


def path(log: Log, base_offset: int, suffix: str) -> str:
    return f"{log.directory}/{base_offset:020d}.{suffix}"


def write_merged(log: Log, suffix: str) -> None:
    """What a compaction of the segments at 0 and 2 writes: offsets 0 and 3 in one segment at 0."""
    with open(path(log, 0, "log"), "rb") as first, open(path(log, 2, "log"), "rb") as second:
        size = os.path.getsize(first.name) // 2
        merged = first.read()[:size] + second.read()[size:]
    with open(path(log, 0, f"log.{suffix}"), "wb") as file:
        file.write(merged)


@pytest.mark.parametrize("suffix", ["log.deleted", "index.deleted", "log.cleaned", "timeindex.cleaned", "index.tmp"])
def test_given_leftovers_of_deletion_or_cleaning_when_opened_then_they_go_and_the_log_is_whole(
    new_log: NewLog, suffix: str
) -> None:
    log = a_log_of_segments(new_log)
    shutil.copy(path(log, 0, "log"), path(log, 2, suffix))

    again = reopen(log, clean=False)

    assert [each.offset for each in records(again)] == list(range(8))
    assert not os.path.exists(path(log, 2, suffix))


@pytest.mark.parametrize("renamed_to_deleted", [(), (2,), (0, 2)])
def test_given_an_interrupted_swap_when_opened_then_it_is_completed(
    new_log: NewLog, renamed_to_deleted: tuple[int, ...]
) -> None:
    log = a_log_of_segments(new_log)
    write_merged(log, "swap")
    for base_offset in renamed_to_deleted:
        os.rename(path(log, base_offset, "log"), path(log, base_offset, "log.deleted"))

    again = reopen(log, clean=False)

    assert [segment.base_offset for segment in again.segments] == [0, 4, 6]
    assert [each.offset for each in records(again)] == [0, 3, 4, 5, 6, 7]
    assert not [name for name in files(log.directory) if name.endswith((".swap", ".deleted"))]


def test_given_a_cleaned_file_beside_a_swap_that_follows_it_when_opened_then_the_old_segments_remain(
    new_log: NewLog,
) -> None:
    log = a_log_of_segments(new_log)
    shutil.copy(path(log, 0, "log"), path(log, 0, "log.cleaned"))
    shutil.copy(path(log, 4, "log"), path(log, 2, "log.swap"))

    again = reopen(log, clean=False)

    assert [each.offset for each in records(again)] == list(range(8))


def test_given_files_that_nobody_knows_when_opened_then_they_stay_and_orphaned_indexes_go(new_log: NewLog) -> None:
    log = a_log_of_segments(new_log)
    shutil.copy(path(log, 0, "log"), path(log, 0, "log.bak"))
    shutil.copy(path(log, 0, "log"), f"{log.directory}/notes.txt")
    shutil.copy(path(log, 0, "index"), path(log, 99, "index"))

    reopen(log)

    assert {"00000000000000000000.log.bak", "notes.txt"} <= set(files(log.directory))
    assert not os.path.exists(path(log, 99, "index"))
