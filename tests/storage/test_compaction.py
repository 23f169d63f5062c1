"""What a round of compaction keeps, drops, writes down and leaves alone."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from tests.storage.compaction_kit import (
    COMPACTED,
    DAY_MS,
    check_indexes,
    clean,
    drive,
    keyed_batch,
    producer_windows,
    start_cleaning,
)
from tests.storage.kit import NOW_MS, append, bytes_of, flush, headers, records, reopen

from penstock.protocol.batch import DELETE_HORIZON_BIT, Codec, read_header, stamp_log_append_time
from penstock.storage.compaction import CleanerLimits, CleaningAborted, plan_cleaning
from penstock.storage.compaction_plan import SegmentFacts, groups
from penstock.storage.log import DuplicateBatch, Log
from penstock.storage.log_config import LogConfig
from penstock.storage.segment import CorruptSegment

CODECS = pytest.mark.parametrize("codec", list(Codec))


def a_log(tmp_path: Path, **changes: object) -> Log:
    settings: LogConfig = dataclasses.replace(COMPACTED, **changes)  # type: ignore[arg-type]
    return Log.open(str(tmp_path / "t-0"), settings, now_ms=NOW_MS)


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], now_ms: int = NOW_MS, codec: Codec = Codec.NONE) -> None:
    append(log, keyed_batch(pairs, timestamp=now_ms, codec=codec), now_ms=now_ms)


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(log)]


@CODECS
def test_given_several_values_of_a_key_when_cleaned_then_the_last_stays_at_its_offset(
    tmp_path: Path, codec: Codec
) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), codec=codec)
    put(log, (b"c", b"4"), (b"b", b"5"), codec=codec)
    log.roll(NOW_MS)
    put(log, (b"c", b"6"))  # active: it neither goes nor counts

    clean(log)

    assert pairs(log) == [(2, b"a", b"3"), (3, b"c", b"4"), (4, b"b", b"5"), (5, b"c", b"6")]
    first, second, _ = headers(log)
    assert (first.base_offset, first.last_offset_delta, first.records_count, first.codec) == (0, 2, 1, codec)
    assert first.max_timestamp == NOW_MS + 2
    assert (second.base_offset, second.records_count, second.codec) == (3, 2, codec)
    check_indexes(log)


def test_given_records_without_a_key_when_cleaned_then_they_go(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, (None, b"1"), (b"a", b"2"), (None, None))
    put(log, (None, b"3"))
    put(log, (b"b", b"4"))
    log.roll(NOW_MS)

    clean(log)

    assert pairs(log) == [(1, b"a", b"2"), (4, b"b", b"4")]


def test_given_everything_is_superseded_when_cleaned_then_the_last_batch_stays_empty_and_the_end_survives(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path)
    put(log, (None, b"1"))
    put(log, (None, b"2"), (None, b"3"))
    log.roll(NOW_MS)

    clean(log)

    (last,) = headers(log)
    assert (last.base_offset, last.last_offset, last.records_count, last.max_timestamp) == (1, 2, 0, NOW_MS + 1)
    again = reopen(log)
    assert again.log_end_offset == 3
    again = reopen(again, clean=False)
    assert again.log_end_offset == 3


# Tombstones (trap D2)


@CODECS
def test_given_a_tombstone_when_first_cleaned_then_its_batch_says_until_when_it_stays(
    tmp_path: Path, codec: Codec
) -> None:
    log = a_log(tmp_path, delete_retention_ms=1_000)
    put(log, (b"a", b"1"), (b"a", None), (b"b", b"2"), codec=codec)
    log.roll(NOW_MS)

    clean(log, now_ms=NOW_MS + 50)

    header = headers(log)[0]
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == NOW_MS + 50 + 1_000
    assert header.max_timestamp == NOW_MS + 2
    assert [(each.offset, each.timestamp) for each in records(log)] == [(1, NOW_MS + 1), (2, NOW_MS + 2)]
    check_indexes(log)


def test_given_many_rounds_when_the_clock_is_stepped_then_a_tombstone_goes_only_after_its_horizon(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, delete_retention_ms=DAY_MS)
    put(log, (b"gone", b"1"), (b"gone", None))
    log.roll(NOW_MS)
    seen = {}
    for now_ms in (NOW_MS, NOW_MS + DAY_MS // 2, NOW_MS - DAY_MS, NOW_MS + DAY_MS - 1, NOW_MS + DAY_MS):
        put(log, (b"other", b"%d" % now_ms), now_ms=NOW_MS)
        log.roll(NOW_MS)
        clean(log, now_ms=now_ms)
        seen[now_ms] = b"gone" in {record.key for record in records(log)}

    assert list(seen.values()) == [True, True, True, True, False]


@CODECS
def test_given_a_replica_that_has_not_compacted_when_a_tombstones_time_is_over_then_it_stays_until_that_has(
    tmp_path: Path, codec: Codec
) -> None:
    """Trap D4."""
    log = a_log(tmp_path, delete_retention_ms=0)
    seen = []
    put(log, (b"gone", b"1"), (b"gone", None), codec=codec)
    for removable_end in (0, 1, 1, 2):
        log.roll(NOW_MS)
        put(log, (b"other", b"2"), codec=codec)
        log.roll(NOW_MS)
        clean(log, removable_end=removable_end)
        seen.append(b"gone" in {record.key for record in records(log)})

    assert seen == [True, True, True, False]


def test_given_a_tombstone_behind_the_end_of_the_map_when_cleaned_then_its_time_does_not_begin(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"b", None))
    log.roll(NOW_MS)

    first = clean(log, limits=CleanerLimits(dedupe_buffer_bytes=0, io_buffer_bytes=8192))

    assert first is not None
    assert first.clean_end == 1
    assert [header.attributes & DELETE_HORIZON_BIT for header in headers(log)] == [0, 0]
    clean(log)
    assert [header.attributes & DELETE_HORIZON_BIT for header in headers(log)] == [0, DELETE_HORIZON_BIT]


def test_given_log_append_time_when_cleaned_then_records_keep_the_time_of_their_batch(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    batch = keyed_batch([(b"a", b"1"), (b"a", b"2"), (b"b", None)])
    stamp_log_append_time(batch, 0, NOW_MS + 77)
    append(log, batch)
    log.roll(NOW_MS)

    clean(log)

    assert [(each.offset, each.timestamp) for each in records(log)] == [(1, NOW_MS + 77), (2, NOW_MS + 77)]
    found = log.offset_for_timestamp(NOW_MS + 77, log.end_position)
    assert found is not None
    assert (found.offset, found.timestamp) == (1, NOW_MS + 77)


# How far


def test_given_a_last_stable_offset_inside_a_segment_when_planned_then_it_is_left_alone(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    for value in (b"1", b"2", b"3"):
        put(log, (b"a", value))
        log.roll(NOW_MS)
    put(log, (b"a", b"4"), (b"a", b"5"))
    log.roll(NOW_MS)

    clean(log, upper_offset=4)

    assert [offset for offset, _, _ in pairs(log)] == [2, 3, 4]


def test_given_what_is_not_flushed_when_planned_then_it_is_left_alone(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll(NOW_MS)

    assert plan_cleaning(log, log.log_end_offset, NOW_MS) is None
    flush(log)
    assert plan_cleaning(log, log.log_end_offset, NOW_MS) is not None


def test_given_min_compaction_lag_when_planned_then_young_segments_wait(tmp_path: Path) -> None:
    log = a_log(tmp_path, min_compaction_lag_ms=1_000)
    for timestamp in (NOW_MS, NOW_MS + 500):
        put(log, (b"a", b"%d" % timestamp), now_ms=timestamp)
        log.roll(NOW_MS)
    flush(log)

    ends = [plan_cleaning(log, 2, NOW_MS + later) for later in (999, 1_000, 1_499, 1_500)]

    assert [plan.end_offset if plan is not None else None for plan in ends] == [None, 1, 1, 2]


def test_given_a_dirty_ratio_when_planned_then_a_log_is_due_above_it_or_when_a_record_is_too_old(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=10_000)
    put(log, (b"a", b"x" * 500))
    log.roll(NOW_MS)
    clean(log)
    put(log, (b"b", b"y"), now_ms=NOW_MS + 1)
    log.roll(NOW_MS)
    flush(log)

    plans = [plan_cleaning(log, 2, NOW_MS + later) for later in (1, 10_001, 10_002)]

    assert [plan is not None and plan.is_due for plan in plans] == [False, False, True]
    assert plans[0] is not None
    assert 0 < plans[0].dirty_ratio < 0.5


def test_given_a_map_for_one_key_when_cleaned_again_and_again_then_everything_is_clean_in_the_end(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path)
    for number in range(30):
        put(log, (b"k%d" % (number % 3), b"%d" % number), (b"k%d" % (number % 4), b"%d" % number))
    log.roll(NOW_MS)
    rounds = 0
    while clean(log, limits=CleanerLimits(dedupe_buffer_bytes=0, io_buffer_bytes=512)) is not None:
        rounds += 1

    assert rounds > 5
    assert {key: value for _, key, value in pairs(log)} == {b"k0": b"28", b"k1": b"29", b"k2": b"29", b"k3": b"27"}
    assert len(pairs(log)) == 4


def test_given_small_segments_when_cleaned_then_neighbours_become_one_up_to_segment_bytes(tmp_path: Path) -> None:
    log = a_log(tmp_path, segment_bytes=500)
    for number in range(30):
        put(log, (b"key-%d" % number, b"v" * 50))
        log.roll(NOW_MS)
    before = log.segments

    clean(log)

    assert len(log.segments) < len(before) / 2
    assert all(segment.size <= 500 for segment in log.segments)
    assert [offset for offset, _, _ in pairs(log)] == list(range(30))
    assert {segment.base_offset for segment in log.segments} <= {segment.base_offset for segment in before}
    check_indexes(log)
    again = reopen(log)
    assert [offset for offset, _, _ in pairs(again)] == list(range(30))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        ([SegmentFacts(0, 5, 900)], [range(1)]),
        ([SegmentFacts(0, 5, 60), SegmentFacts(5, 9, 40), SegmentFacts(9, 10, 1)], [range(2), range(2, 3)]),
        ([SegmentFacts(0, 5, 1, 7, 0), SegmentFacts(5, 9, 1, 4, 0)], [range(1), range(1, 2)]),
        ([SegmentFacts(0, 5, 1, 0, 7), SegmentFacts(5, 9, 1, 0, 4)], [range(1), range(1, 2)]),
        (
            [SegmentFacts(0, 5, 1), SegmentFacts(5, 2**31, 1), SegmentFacts(2**31, 2**31 + 1, 1)],
            [range(2), range(2, 3)],
        ),
    ],
)
def test_given_segments_when_grouped_then_bytes_indexes_and_offsets_fit_into_one(
    facts: list[SegmentFacts], expected: list[range]
) -> None:
    assert groups(facts, segment_bytes=100, segment_index_bytes=10) == expected


# Producers (trap D5)


def test_given_a_producer_whose_records_are_all_superseded_when_rebuilt_from_the_log_then_repeats_are_known(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path)
    batches = [keyed_batch([(b"a", b"%d" % n)], producer=(7, 0, n)) for n in range(7)]
    for batch in batches:
        append(log, batch)
    put(log, (b"a", b"another's"))
    log.roll(NOW_MS)
    windows = producer_windows(log)

    clean(log)

    kept = [(header.base_offset, header.records_count, header.base_sequence) for header in headers(log)]
    assert kept == [(2, 0, 2), (3, 0, 3), (4, 0, 4), (5, 0, 5), (6, 0, 6), (7, 1, -1)]
    for name in os.listdir(log.directory):
        if name.endswith(".snapshot"):
            os.unlink(f"{log.directory}/{name}")
    again = reopen(log, clean=False)
    assert producer_windows(again) == windows
    with pytest.raises(DuplicateBatch) as duplicate:
        again.stage(memoryview(batches[2]), read_header(batches[2]), 0, NOW_MS)
    assert duplicate.value.base_offset == 2


# Others at the same log


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("change", ["truncate", "delete", "retain", "policy"])
def test_given_a_log_that_changes_when_a_round_goes_on_then_it_gives_up_and_leaves_nothing(
    tmp_path: Path, change: str, step: int
) -> None:
    log = a_log(tmp_path, retention_ms=1, is_deleted_by_retention=True)
    for number in range(6):
        put(log, (b"a", b"%d" % number))
        log.roll(NOW_MS)
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    for _ in range(step):
        next(steps)()

    if change == "truncate":
        log.truncate_to(4, NOW_MS)
        put(log, (b"b", b"new"))
        log.roll(NOW_MS)
    elif change == "delete":
        log.delete()
    elif change == "policy":
        log.config = dataclasses.replace(log.config, is_compacted=False)
    else:
        plan = log.plan_retention(3, NOW_MS * 2)
        assert plan is not None
        log.retire(plan, NOW_MS).remove()
    before = pairs(log)

    if change == "policy" and step == 2:
        drive(steps)  # what is written already is as good as ever
    else:
        with pytest.raises(CleaningAborted):
            drive(steps)
        assert pairs(log) == before
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]
    assert not log.is_swapping


def test_given_a_segment_that_was_cut_and_grew_again_when_a_round_goes_on_then_its_new_records_stay(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll(NOW_MS)
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    next(steps)()
    next(steps)()
    log.truncate_to(1, NOW_MS)
    put(log, (b"b", b"3"))
    log.roll(NOW_MS)

    with pytest.raises(CleaningAborted):
        drive(steps)

    assert pairs(log) == [(0, b"a", b"1"), (1, b"b", b"3")]


def test_given_a_swap_under_way_when_retention_comes_then_it_waits(tmp_path: Path) -> None:
    log = a_log(tmp_path, retention_ms=1, is_deleted_by_retention=True)
    put(log, (b"a", b"1"))
    log.roll(NOW_MS)
    plan = log.plan_retention(1, NOW_MS * 2)
    assert plan is not None
    cleaning = start_cleaning(log)
    assert cleaning is not None
    steps = cleaning.steps()
    next(steps)()
    next(steps)()
    next(steps)  # commit is next: the swap has begun

    assert log.plan_retention(1, NOW_MS * 2) is None
    assert log.retire(plan, NOW_MS).segments == ()


def test_given_compact_and_delete_when_retention_comes_after_a_round_then_old_segments_go(tmp_path: Path) -> None:
    log = a_log(tmp_path, retention_ms=1_000, is_deleted_by_retention=True, segment_bytes=150)
    for number in range(4):
        put(log, (b"k%d" % number, b"v"), now_ms=NOW_MS + 1_000 * number)
        log.roll(NOW_MS)
    clean(log, now_ms=NOW_MS)

    plan = log.plan_retention(log.log_end_offset, NOW_MS + 3_001)
    assert plan is not None
    log.retire(plan, NOW_MS).remove()

    assert [key for _, key, _ in pairs(log)] == [b"k2", b"k3"]
    assert log.log_start_offset == 2
    put(log, (b"k2", b"new"), now_ms=NOW_MS + 3_500)
    log.roll(NOW_MS)
    clean(log, now_ms=NOW_MS)
    assert [key for _, key, _ in pairs(log)] == [b"k3", b"k2"]
    assert log.log_start_offset == 2


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("position", [5, 25, 62, -1])
def test_given_a_damaged_segment_when_cleaned_then_it_is_said_where_and_nothing_changes(
    tmp_path: Path, position: int, codec: Codec
) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2" * 30), codec=codec)
    log.roll(NOW_MS)
    put(log, (b"a", b"3"))
    log.roll(NOW_MS)
    segment = log.segments[0]
    with open(segment.path, "r+b") as file:
        content = bytearray(file.read())
        at = position if position < 0 else read_header(content).size + position
        if position == 5:
            at = read_header(content).size + 16  # magic
        content[at] ^= 0xFF
        file.seek(0)
        file.write(content)
    before = [each.path for each in log.segments]

    with pytest.raises(CorruptSegment, match=r"00000\.log"):
        clean(log)

    assert [each.path for each in log.segments] == before
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]


def test_given_an_emptied_batch_with_the_largest_timestamp_when_looked_up_then_a_record_is_found(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path)
    append(log, keyed_batch([(b"a", b"1")], producer=(7, 0, 0), timestamp=NOW_MS + 100))
    put(log, (b"a", b"2"), now_ms=NOW_MS + 5)
    put(log, (b"b", b"3"), now_ms=NOW_MS + 3)
    log.roll(NOW_MS)
    clean(log)
    assert headers(log)[0].records_count == 0

    largest = log.offset_of_max_timestamp(log.end_position)
    first = log.offset_for_timestamp(NOW_MS + 1, log.end_position)

    assert largest is not None
    assert first is not None
    assert (largest.offset, largest.timestamp) == (1, NOW_MS + 5)
    assert (first.offset, first.timestamp) == (1, NOW_MS + 5)


def test_given_a_high_watermark_in_a_segment_that_became_shorter_when_read_then_it_is_its_end(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    put(log, (b"a", b"1" * 200))
    put(log, (b"a", b"2"))
    old_end = log.end_position
    log.roll(NOW_MS)
    clean(log)

    span = log.read(0, 1 << 20, old_end, at_least_one=True, wait=True)

    assert span is not None
    assert span.length == log.segments[0].size < old_end.position


def test_given_a_segment_of_which_nothing_is_left_when_read_and_truncated_then_what_follows_is_found(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, segment_bytes=140)
    for number in range(4):
        put(log, (b"a", b"%d" % number * 60))
    put(log, (b"b", b"x"))
    clean(log)
    assert [segment.size > 0 for segment in log.segments[:-1]] == [False, False, False, True]

    span = log.read(0, 1 << 20, log.end_position, at_least_one=True, wait=True)
    first = log.offset_for_timestamp(NOW_MS, log.end_position)
    largest = log.offset_of_max_timestamp(log.end_position)

    assert span is not None
    assert read_header(bytes_of(span)).base_offset == 3
    assert first is not None
    assert largest is not None
    assert first.offset == largest.offset == 3
    log.truncate_to(2, NOW_MS)
    assert (log.log_end_offset, log.log_start_offset) == (2, 0)
    put(log, (b"c", b"new"))
    assert pairs(log) == [(2, b"c", b"new")]
    assert pairs(reopen(log)) == [(2, b"c", b"new")]
