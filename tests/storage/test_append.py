from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import (
    NOW_MS,
    a_batch,
    append,
    config,
    file_size_limit,
    files,
    flush,
    headers,
    records,
    reopen,
    small_disk,
    stage,
)

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import read_header, split
from penstock.storage.log import DuplicateBatch, Log


def test_given_staged_batches_when_written_then_they_lie_in_the_file_with_their_offsets_and_epoch(
    new_log: NewLog,
) -> None:
    log = new_log()
    offsets = [stage(log, a_batch(count), epoch=3) for count in (1, 5, 2)]

    end = log.write_staged()

    assert offsets == [0, 1, 6]
    assert [(each.base_offset, each.partition_leader_epoch) for each in headers(log)] == [(0, 3), (1, 3), (6, 3)]
    assert end == log.end_position == (8, 0, os.path.getsize(log.segments[0].path))


def test_given_nothing_written_yet_when_staged_then_the_end_offset_counts_it_and_the_end_position_does_not(
    new_log: NewLog,
) -> None:
    log = new_log()

    stage(log, a_batch(4))

    assert (log.log_end_offset, log.end_position.offset) == (4, 0)
    assert files(log.directory) == {"00000000000000000000.log": b""}


def test_given_many_batches_in_one_tick_when_written_then_it_is_one_system_call(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    calls: list[int] = []
    pwritev = os.pwritev

    def counted(fd: int, views: list[memoryview], position: int) -> int:
        calls.append(len(views))
        return pwritev(fd, views, position)

    monkeypatch.setattr(os, "pwritev", counted)
    for _ in range(100):
        stage(log, a_batch())
    log.write_staged()

    assert calls == [100]


def test_given_more_batches_than_a_system_call_takes_when_written_then_all_are_there(new_log: NewLog) -> None:
    log = new_log()
    for _ in range(2_500):
        stage(log, a_batch())
    log.write_staged()

    assert [each.base_offset for each in headers(log)] == list(range(2_500))


@pytest.mark.parametrize("step", [1, 17, 61, 1000])
def test_given_writes_that_are_cut_short_when_written_then_the_rest_follows(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """traps B6."""
    log = new_log()
    pwritev = os.pwritev

    def short(fd: int, views: list[memoryview], position: int) -> int:
        return pwritev(fd, [views[0][:step]], position)

    monkeypatch.setattr(os, "pwritev", short)
    for count in (1, 3, 2):
        stage(log, a_batch(count, value=bytes(200)))
    log.write_staged()

    assert [each.offset for each in records(log)] == list(range(6))


# Rolling


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_given_a_batch_that_fits_exactly_when_written_then_it_stays_in_the_segment(new_log: NewLog) -> None:
    batch = a_batch(value=bytes(100))
    log = new_log(segment_bytes=3 * len(batch))
    for _ in range(4):
        stage(log, bytearray(batch))
    log.write_staged()

    assert bases(log) == [0, 3]
    assert log.end_position == (4, 3, len(batch))


def test_given_a_batch_larger_than_a_segment_when_staged_then_it_is_refused(new_log: NewLog) -> None:
    log = new_log(segment_bytes=100)

    with pytest.raises(BrokerError) as refused:
        stage(log, a_batch(value=bytes(100)))

    assert refused.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_given_segment_ms_when_a_record_is_that_much_younger_than_the_first_then_a_segment_begins(
    new_log: NewLog,
) -> None:
    log = new_log(segment_ms=1_000)
    for timestamp in (5_000, 5_500, 6_000, 6_001, 6_500, 3_000):
        append(log, a_batch(timestamp=timestamp))

    assert bases(log) == [0, 3]


def test_given_records_without_time_when_the_wall_clock_passes_segment_ms_then_a_segment_begins(
    new_log: NewLog,
) -> None:
    log = new_log(segment_ms=1_000)
    append(log, a_batch(timestamp=-1), now_ms=NOW_MS + 900)
    append(log, a_batch(timestamp=-1), now_ms=NOW_MS + 1_000)
    append(log, a_batch(timestamp=-1), now_ms=NOW_MS + 1_001)

    assert bases(log) == [0, 2]


def test_given_a_reopened_log_when_segment_ms_passes_then_it_counts_from_the_first_record_all_the_same(
    new_log: NewLog,
) -> None:
    log = new_log(segment_ms=1_000)
    append(log, a_batch(timestamp=5_000))
    log = reopen(log)

    append(log, a_batch(timestamp=6_001))

    assert bases(log) == [0, 1]


def test_given_a_full_index_when_appended_then_a_segment_begins(new_log: NewLog) -> None:
    log = new_log(segment_index_bytes=5 * 8, index_interval_bytes=1)
    for number in range(20):
        append(log, a_batch(timestamp=NOW_MS + number))

    # 40 bytes hold three time entries, of which the last is kept for closing: two indexed batches a segment.
    assert bases(log) == [0, 3, 6, 9, 12, 15, 18]


def test_given_offsets_that_would_not_fit_into_the_index_when_appended_then_a_segment_begins(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch())
    wide = a_batch()
    log.stage(memoryview(wide), read_header(wide)._replace(last_offset_delta=2**31 - 2), 0, NOW_MS)
    log.write_staged()
    append(log, a_batch())

    assert bases(log) == [0, 2**31]


def test_given_a_roll_in_the_middle_of_a_tick_when_written_then_indexes_and_closing_time_entry_are_there(
    new_log: NewLog,
) -> None:
    log = new_log(segment_bytes=20_000, index_interval_bytes=1_000)
    for number in range(60):
        stage(log, a_batch(value=bytes(900), timestamp=NOW_MS + number))
    log.write_staged()

    assert len(log.segments) > 2
    for segment in log.segments[:-1]:
        with open(segment.path, "rb") as file:
            found = list(split(file.read()))
        last = found[-1][1]
        assert os.path.getsize(segment.offset_index.path) == segment.offset_index.count * 8 > 0
        assert segment.time_index.entry(segment.time_index.count - 1) == (last.max_timestamp, last.last_offset)
        for slot in range(segment.offset_index.count):
            entry = segment.offset_index.entry(slot)
            assert (entry.position, entry.last_offset) in {(at, header.last_offset) for at, header in found}


def test_given_an_empty_log_when_rolled_then_nothing_happens(new_log: NewLog) -> None:
    log = new_log()
    log.roll(NOW_MS)

    assert bases(log) == [0]


# Failing writes


def state_of(log: Log) -> tuple[object, ...]:
    return (
        log.log_end_offset,
        log.end_position,
        dict(log.producers.entries),
        log.leader_epochs.entries,
        log.leader_epochs.latest_epoch,
        [(segment.savepoint(), segment.is_active) for segment in log.segments],
    )


def fill_until_it_fails(log: Log) -> None:
    """Three idempotent batches of a new epoch in one tick, the second of which crosses the limit."""
    for number in range(3):
        stage(log, a_batch(2, value=bytes(3_000), timestamp=NOW_MS + 9, producer=(5, 0, 10 + 2 * number)), epoch=8)
    stage(log, a_batch(1, producer=(6, 0, 0)), epoch=8)
    with pytest.raises(BrokerError) as failed:
        log.write_staged()
    assert failed.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def a_log_to_fill(log: Log) -> Log:
    append(log, a_batch(10, value=bytes(800), producer=(5, 0, 0)), epoch=1)
    return log


def test_given_a_write_that_fails_half_way_when_written_then_nothing_of_it_remains(new_log: NewLog) -> None:
    """traps B5, B6: the first write is short for real, the second one an error."""
    log = a_log_to_fill(new_log())
    before, content = state_of(log), files(log.directory)["00000000000000000000.log"]

    with file_size_limit(len(content) + 7_000):
        fill_until_it_fails(log)

    assert state_of(log) == before
    assert files(log.directory)["00000000000000000000.log"] == content
    assert not log.is_failed


def test_given_a_failed_write_when_space_is_free_again_then_the_same_batches_are_appended(new_log: NewLog) -> None:
    log = a_log_to_fill(new_log())
    with file_size_limit(log.end_position.position + 7_000):
        fill_until_it_fails(log)

    assert append(log, a_batch(2, value=bytes(3_000), producer=(5, 0, 10)), epoch=8) == 10
    assert [each.base_offset for each in headers(log)] == [0, 10]
    assert [each.offset for each in records(reopen(log, clean=False))] == list(range(12))


def test_given_a_roll_before_the_write_that_fails_when_written_then_the_old_segment_is_the_active_one_again(
    new_log: NewLog,
) -> None:
    log = a_log_to_fill(new_log(segment_bytes=16_000, index_interval_bytes=1_000))
    before, names = state_of(log), set(files(log.directory))
    small, large = a_batch(2, value=bytes(3_000), producer=(5, 0, 10)), a_batch(value=bytes(15_000))

    stage(log, bytearray(small), epoch=8)
    stage(log, bytearray(large), epoch=8)
    with file_size_limit(14_800), pytest.raises(BrokerError):
        log.write_staged()

    assert state_of(log) == before
    assert set(files(log.directory)) - {"00000000000000000000.index", "00000000000000000000.timeindex"} == names
    assert not log.has_rolled  # else a snapshot would be written that knows what is not in the log
    assert append(log, small) == 10
    assert append(log, large) == 12
    flush(log)
    assert [each.base_offset for each in headers(reopen(log))] == [0, 10, 12]


def test_given_a_full_disk_when_it_has_room_again_then_appends_and_reads_go_on(tmp_path: Path) -> None:
    """traps B5, with a real full disk: no room for the log, the index or the new segment, wherever it ends."""
    with small_disk(tmp_path / "disk", 512 * 1024) as directory:
        log = Log.open(f"{directory}/orders-0", config(segment_bytes=40_000, index_interval_bytes=500), now_ms=NOW_MS)
        ballast = os.open(f"{directory}/ballast", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(ballast, 0, 200 * 1024)
        appended = failures = 0
        for number in range(700):
            try:
                append(log, a_batch(value=bytes(700), timestamp=NOW_MS + number, producer=(1, 0, appended)))
                appended += 1
            except BrokerError as error:
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
                assert log.read(0, 10, log.end_position, at_least_one=True) is not None
                failures += 1
                if failures == 5:
                    os.ftruncate(ballast, 0)
        os.close(ballast)

        assert failures >= 5
        assert not log.is_failed
        assert [each.offset for each in records(log)] == list(range(appended))
        assert [each.offset for each in records(reopen(log, clean=False))] == list(range(appended))


def test_given_a_write_that_can_not_be_undone_when_it_fails_then_the_log_takes_no_more(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log_to_fill(new_log())

    def broken(_fd: int, _length: int) -> None:
        raise OSError(5, "the disk is gone")

    with file_size_limit(log.end_position.position + 7_000), monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", broken)
        fill_until_it_fails(log)

    assert log.is_failed
    with pytest.raises(BrokerError) as refused:
        stage(log, a_batch())
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.read(0, 100, log.end_position, at_least_one=True) is not None


# Idempotence, through the log


def test_given_a_retry_in_the_same_tick_when_staged_then_it_is_told_the_offset_of_the_first(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3))
    stage(log, a_batch(2, producer=(5, 0, 0)))

    with pytest.raises(DuplicateBatch) as duplicate:
        stage(log, a_batch(2, producer=(5, 0, 0)))
    log.write_staged()

    assert (duplicate.value.base_offset, duplicate.value.last_offset) == (3, 4)
    assert [each.base_offset for each in headers(log)] == [0, 3]


def test_given_a_refused_batch_between_others_when_written_then_offsets_have_no_gap(new_log: NewLog) -> None:
    log = new_log()
    stage(log, a_batch(2, producer=(5, 0, 0)))
    with pytest.raises(BrokerError):
        stage(log, a_batch(2, producer=(5, 0, 7)))
    stage(log, a_batch(2, producer=(5, 0, 2)))
    log.write_staged()

    assert [each.base_offset for each in headers(log)] == [0, 2]
