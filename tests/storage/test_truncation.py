from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, bytes_of, config, flush, headers, records, reopen

from penstock.protocol.batch import read_header
from penstock.storage.log import Log


def fill(log: Log, batches: int) -> None:
    for number in range(batches):
        header = (9, 0, 2 * (log.log_end_offset // 2))
        append(log, a_batch(2, value=bytes(50), timestamp=NOW_MS + number % 7, producer=header), epoch=number // 5)


@given(st.integers(0, 40), st.booleans())
@settings(max_examples=41, deadline=None)
def test_given_any_offset_when_truncated_then_the_log_is_as_if_nothing_after_it_had_ever_been(
    tmp_path_factory: pytest.TempPathFactory, offset: int, flushed: bool
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    small = config(segment_bytes=1_000, index_interval_bytes=200)
    log = Log.open(str(directory / "cut-0"), small, now_ms=NOW_MS)
    fill(log, 20)
    if flushed:
        flush(log)
    shorter = Log.open(str(directory / "short-0"), small, now_ms=NOW_MS)
    fill(shorter, offset // 2)

    log.truncate_to(offset, NOW_MS)

    for cut in (log, reopen(log)):
        assert cut.log_end_offset == offset - offset % 2
        assert headers(cut) == headers(shorter)
        assert cut.end_position.offset == shorter.end_position.offset
        assert {pid: entry.batches for pid, entry in cut.producers.entries.items()} == {
            pid: entry.batches for pid, entry in shorter.producers.entries.items()
        }
        assert cut.leader_epochs.entries == shorter.leader_epochs.entries
        newest = cut.offset_of_max_timestamp(cut.end_position)
        assert newest == shorter.offset_of_max_timestamp(shorter.end_position)
        assert cut.flushed_offset <= cut.log_end_offset
        assert cut.recovery_point <= cut.log_end_offset


def test_given_a_truncated_log_when_appended_to_then_offsets_go_on_and_reads_find_the_new_records(
    new_log: NewLog,
) -> None:
    log = new_log(segment_bytes=1_000, index_interval_bytes=100)
    fill(log, 20)
    for offset in range(40):
        log.read(offset, 10, log.end_position, at_least_one=True)

    log.truncate_to(16, NOW_MS)
    for number in range(20):
        append(log, a_batch(value=bytes([number]) * 30), epoch=9)

    assert [each.offset for each in records(log)] == list(range(36))
    for offset in range(16, 36):
        span = log.read(offset, 10, log.end_position, at_least_one=True)
        assert span is not None
        assert read_header(bytes_of(span)).base_offset == offset
    assert reopen(log, clean=False).log_end_offset == 36


def test_given_an_offset_below_the_log_when_truncated_then_an_empty_log_starts_there(new_log: NewLog) -> None:
    log = new_log(segment_bytes=500, retention_ms=1)
    fill(log, 10)
    plan = log.plan_retention(10, NOW_MS * 2)
    assert plan is not None
    log.retire(plan, NOW_MS).remove()
    assert log.log_start_offset > 3

    log.truncate_to(3, NOW_MS)

    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    assert append(log, a_batch()) == 3


def test_given_a_truncation_that_was_not_flushed_when_a_clean_stop_follows_a_crash_then_no_epoch_returns(
    new_log: NewLog,
) -> None:
    log = new_log()
    append(log, a_batch(), epoch=5)
    flush(log)

    log.truncate_to(0, NOW_MS)
    crashed = reopen(log, clean=False)

    assert crashed.leader_epochs.entries == ()
    assert reopen(crashed).leader_epochs.entries == ()
