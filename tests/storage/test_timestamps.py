"""traps B11, and ListOffsets by time: exact to the record, whatever the timestamps are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, config, records, reopen, stage

from penstock.protocol.batch import Codec, read_header, stamp_log_append_time
from penstock.protocol.records import StoredRecord
from penstock.storage.log import Log
from penstock.storage.lookup import TimestampAndOffset


def first_at_or_after(found: list[StoredRecord], timestamp: int, start: int, end: int) -> tuple[int, int] | None:
    """What a reader of every record says."""
    return next(
        ((each.timestamp, each.offset) for each in found if start <= each.offset < end and each.timestamp >= timestamp),
        None,
    )


def largest(found: list[StoredRecord], start: int, end: int) -> tuple[int, int] | None:
    visible = [each for each in found if start <= each.offset < end and each.timestamp >= 0]
    return max(((each.timestamp, each.offset) for each in visible), key=lambda each: (each[0], -each[1]), default=None)


def pair(answer: TimestampAndOffset | None) -> tuple[int, int] | None:
    return (answer.timestamp, answer.offset) if answer is not None else None


batches = st.lists(
    st.tuples(st.lists(st.integers(-1, 40), min_size=1, max_size=4), st.sampled_from([Codec.NONE, Codec.GZIP])),
    min_size=1,
    max_size=25,
)


@given(batches, st.integers(0, 100), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_given_any_timestamps_when_looked_up_then_the_answer_is_that_of_reading_every_record(
    tmp_path_factory: pytest.TempPathFactory,
    shape: list[tuple[list[int], Codec]],
    start_share: int,
    end_share: int,
) -> None:
    directory = str(tmp_path_factory.mktemp("time") / "t-0")
    log = Log.open(directory, config(segment_bytes=500, index_interval_bytes=100), now_ms=NOW_MS)
    ends = [log.end_position]
    for timestamps, codec in shape:
        append(log, a_batch(timestamps=timestamps, codec=codec))
        ends.append(log.end_position)
    upper = ends[len(ends) * end_share // 101]
    log.move_log_start(upper.offset * start_share // 101)
    found = records(log)

    for again in (log, reopen(log, log_start_offset=log.log_start_offset)):
        for timestamp in range(-1, 42):
            expected = first_at_or_after(found, timestamp, log.log_start_offset, upper.offset)
            assert pair(again.offset_for_timestamp(timestamp, upper)) == expected
        assert pair(again.offset_of_max_timestamp(upper)) == largest(found, log.log_start_offset, upper.offset)


def test_given_log_append_time_when_looked_up_then_the_first_record_of_the_batch_is_told(new_log: NewLog) -> None:
    log = new_log()
    for number in range(3):
        batch = a_batch(4, timestamp=5)
        stamp_log_append_time(batch, 0, NOW_MS + number)
        log.stage(memoryview(batch), read_header(batch), 0, NOW_MS)
    log.write_staged()

    assert pair(log.offset_for_timestamp(NOW_MS + 1, log.end_position)) == (NOW_MS + 1, 4)
    assert log.segments[0].max_timestamp == NOW_MS + 2


def test_given_a_found_record_when_told_then_its_leader_epoch_is_told_too(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(timestamp=1), epoch=4)
    append(log, a_batch(timestamp=2), epoch=6)

    assert log.offset_for_timestamp(2, log.end_position) == TimestampAndOffset(2, 1, 6)


def test_given_a_compressed_batch_that_cannot_be_opened_when_looked_up_then_its_start_is_told(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3, timestamp=5))
    broken = a_batch(3, timestamp=9)
    header = read_header(broken)
    broken[22] |= Codec.GZIP
    log.stage(memoryview(broken), header, 0, NOW_MS)
    log.write_staged()

    assert pair(log.offset_for_timestamp(7, log.end_position)) == (9, 3)


# Retention by time


def retire(log: Log, now_ms: int) -> list[int]:
    plan = log.plan_retention(log.log_end_offset, now_ms)
    if plan is None:
        return []
    retired = log.retire(plan, now_ms)
    retired.remove()
    return [segment.base_offset for segment in retired.segments]


def a_log_of_days(new_log: NewLog, *days: int) -> Log:
    """One segment a batch, with these record times; the topic keeps two days."""
    log = new_log(segment_bytes=120, retention_ms=2)
    for day in days:
        append(log, a_batch(value=bytes(20), timestamp=day))
    return log


def test_given_old_segments_when_retired_then_the_log_starts_behind_them_and_their_files_go(new_log: NewLog) -> None:
    log = a_log_of_days(new_log, 1, 2, 3, 4, 5)

    assert retire(log, 5) == [0, 1]
    assert (log.log_start_offset, log.segments[0].base_offset) == (2, 2)
    assert retire(log, 5) == []
    assert reopen(log).log_start_offset == 2


def test_given_everything_is_old_when_retired_then_the_active_segment_goes_too_and_offsets_go_on(
    new_log: NewLog,
) -> None:
    log = a_log_of_days(new_log, 1, 2, 3)

    assert retire(log, 100) == [0, 1, 2]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    assert append(log, a_batch()) == 3
    assert reopen(log).log_end_offset == 4


def test_given_an_active_segment_that_grew_since_the_plan_when_retired_then_it_stays(new_log: NewLog) -> None:
    log = new_log(retention_ms=2)
    append(log, a_batch(timestamp=1))
    plan = log.plan_retention(log.log_end_offset, 100)
    assert plan is not None

    append(log, a_batch(timestamp=100))
    retired = log.retire(plan, 100)

    assert not retired.segments
    assert [each.offset for each in records(log)] == [0, 1]


def test_given_a_record_from_the_future_when_the_clock_is_now_then_its_segment_and_the_later_ones_stay(
    new_log: NewLog,
) -> None:
    ten_years = 10 * 365 * 24 * 3_600_000
    log = a_log_of_days(new_log, 1, ten_years, 1, 1)

    assert retire(log, 1_000) == [0]


def test_given_records_without_time_when_retired_then_the_file_time_counts(new_log: NewLog) -> None:
    log = a_log_of_days(new_log, -1, -1, 0)

    assert retire(log, 1_000) == []


def test_given_a_clock_that_was_set_back_when_retired_then_nothing_goes_early(new_log: NewLog) -> None:
    log = a_log_of_days(new_log, 1_000, 1_001, 1_002)

    assert retire(log, 1_001) == []


@pytest.mark.parametrize("content", [b"", bytes(12)], ids=["emptied", "zeroed"])
def test_given_a_damaged_time_index_when_retired_then_the_records_decide(new_log: NewLog, content: bytes) -> None:
    """A lost index entry must not make a segment look old: that would delete acknowledged records."""
    log = a_log_of_days(new_log, 1_000, 1_001, 1_002)
    log.close()
    with open(log.segments[0].time_index.path, "wb") as file:
        file.write(content)

    assert retire(reopen(log), 1_002) == []


def test_given_deleted_files_when_the_log_is_opened_before_they_are_removed_then_they_go(new_log: NewLog) -> None:
    log = a_log_of_days(new_log, 1, 2, 3, 4, 5)
    plan = log.plan_retention(log.log_end_offset, 5)
    assert plan is not None
    log.retire(plan, 5)

    again = reopen(log, clean=False)

    assert (again.log_start_offset, [each.offset for each in records(again)]) == (2, [2, 3, 4])


def test_given_a_moved_log_start_when_retired_then_segments_wholly_below_it_go(new_log: NewLog) -> None:
    log = new_log(segment_bytes=250)
    for _ in range(6):
        stage(log, a_batch(2, value=bytes(20)))
    log.write_staged()
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]

    log.move_log_start(7)

    assert retire(log, NOW_MS) == [0]
    assert log.log_start_offset == 7
