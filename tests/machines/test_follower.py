from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.kit import NOW_MS, a_batch, append, config, flush
from tests.storage.replication_kit import copy_all

from penstock.core.errors import BrokerError, ErrorCode
from penstock.replication.follower import (
    BACKOFF_MAX_MS,
    BACKOFF_MIN_MS,
    FetchAnswer,
    Follower,
    FollowerState,
    Ignore,
    NextFetch,
    StartAnew,
    Take,
    Truncate,
    Wait,
)
from penstock.storage.log import Log

LEADER_EPOCH = 4


def a_log(tmp_path: Path, batches: int, *, name: str = "follower-0", epoch: int = 2) -> Log:
    log = Log.open(str(tmp_path / name), config(), now_ms=NOW_MS)
    for _ in range(batches):
        append(log, a_batch(), epoch=epoch)
    return log


def ask(follower: Follower, now_ms: float = 0) -> NextFetch:
    asked = follower.next_fetch(now_ms)
    assert asked is not None
    return asked


def an_answer(error: ErrorCode = ErrorCode.NONE, *, high_watermark: int = 0, log_start_offset: int = 0) -> FetchAnswer:
    return FetchAnswer(error, high_watermark, log_start_offset)


def test_given_a_log_when_it_asks_then_from_its_end_with_its_epoch_and_what_is_flushed(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    flush(log)
    append(log, a_batch(), epoch=3)
    log.cleaning.cleaned_offset = 2

    asked = Follower(log, LEADER_EPOCH, 1).next_fetch(0)

    assert asked == NextFetch(6, 3, LEADER_EPOCH, 0, 5, 2)


def test_given_a_high_watermark_that_lags_when_the_leader_changes_then_nothing_is_cut(tmp_path: Path) -> None:
    """trap A1"""
    log = a_log(tmp_path, 5)
    follower = Follower(log, LEADER_EPOCH, 2)

    follower.leader_changed(LEADER_EPOCH + 1)

    assert ask(follower).fetch_offset == log.log_end_offset == 5
    assert follower.high_watermark == 2


def test_given_records_when_appended_then_the_high_watermark_is_the_leaders_as_far_as_the_log_goes(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, 3)
    follower = Follower(log, LEADER_EPOCH, 1)
    answer = an_answer(high_watermark=7, log_start_offset=2)

    assert follower.answered(ask(follower), answer, 0) == Take()
    append(log, a_batch())
    append(log, a_batch())

    assert follower.appended(answer) == 2
    assert follower.high_watermark == 5
    follower.appended(an_answer(high_watermark=4))
    assert follower.high_watermark == 5


def test_given_a_diverging_leader_when_it_answers_then_the_log_is_cut_and_asked_again(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    follower = Follower(log, LEADER_EPOCH, 4)

    step = follower.answered(ask(follower), FetchAnswer(ErrorCode.NONE, 9, 0, (2, 3)), 0)

    assert step == Truncate(3)
    assert follower.next_fetch(0) is None
    log.truncate_to(3, NOW_MS)
    follower.shortened()
    assert ask(follower).fetch_offset == follower.high_watermark == 3


def test_given_a_leader_that_disagrees_about_nothing_when_it_answers_then_it_is_asked_again_later(
    tmp_path: Path,
) -> None:
    follower = Follower(a_log(tmp_path, 5), LEADER_EPOCH, 4)

    assert follower.answered(ask(follower), FetchAnswer(ErrorCode.NONE, 9, 0, (2, 8)), 0) == Wait(BACKOFF_MIN_MS)


@pytest.mark.parametrize(("batches", "start", "expected"), [(5, 9, StartAnew(9, 9)), (5, 5, None), (5, -1, None)])
def test_given_an_offset_out_of_range_when_the_leader_starts_behind_it_then_the_log_begins_there(
    tmp_path: Path, batches: int, start: int, expected: StartAnew | None
) -> None:
    log = a_log(tmp_path, batches)
    follower = Follower(log, LEADER_EPOCH, 4)

    step = follower.answered(ask(follower), an_answer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start), 0)

    assert step == (expected or Wait(BACKOFF_MIN_MS))
    if expected is not None:
        log.start_at(expected.offset, NOW_MS, expected.log_start_offset)
        follower.shortened()
        assert ask(follower)[:2] == (9, -1)
        assert follower.high_watermark == 9


def test_given_an_empty_log_when_the_leader_ends_before_it_then_it_begins_where_the_leader_does(tmp_path: Path) -> None:
    log = a_log(tmp_path, 0)
    log.start_at(40, NOW_MS)
    follower = Follower(log, LEADER_EPOCH, 40)

    step = follower.answered(ask(follower), an_answer(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=3), 0)

    assert step == StartAnew(3, 3)


def test_given_a_first_batch_that_begins_earlier_when_started_anew_then_readers_begin_where_they_should(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, 0)
    log.start_at(6, NOW_MS)
    follower = Follower(log, LEADER_EPOCH, 6)

    assert follower.begins_earlier(4) == StartAnew(4, 6)
    assert follower.next_fetch(0) is None


def test_given_errors_when_they_go_on_then_it_waits_longer_each_time_until_an_answer_or_another_leader(
    tmp_path: Path,
) -> None:
    follower = Follower(a_log(tmp_path, 5), LEADER_EPOCH, 4)
    now_ms, waited = 0.0, []
    for error in (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        step = follower.answered(ask(follower, now_ms), an_answer(error), now_ms)
        assert isinstance(step, Wait)
        assert follower.next_fetch(step.until_ms - 1) is None
        waited.append(step.until_ms - now_ms)
        now_ms = step.until_ms

    assert waited == [20, 40, 80, 160, 320, 640, BACKOFF_MAX_MS]
    follower.leader_changed(LEADER_EPOCH + 1)
    assert follower.next_fetch(0) is not None
    assert follower.unanswered("gone", 0) == Wait(BACKOFF_MIN_MS)
    follower.appended(an_answer())
    assert follower.unanswered("gone", 0) == Wait(BACKOFF_MIN_MS)


def test_given_an_answer_to_an_earlier_question_when_it_comes_then_it_is_ignored(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    follower = Follower(log, LEADER_EPOCH, 4)
    asked = ask(follower)
    diverging = FetchAnswer(ErrorCode.NONE, 9, 0, (2, 3))

    append(log, a_batch(), epoch=2)
    assert follower.answered(asked, diverging, 0) == Ignore()
    asked = ask(follower)
    follower.leader_changed(LEADER_EPOCH + 1)
    assert follower.answered(asked, diverging, 0) == Ignore()
    asked = ask(follower)
    assert follower.answered(asked, diverging, 0) == Truncate(3)
    assert follower.answered(asked, diverging, 0) == Ignore()


def test_given_a_log_that_is_not_written_when_it_is_not_known_what_it_holds_then_the_replica_has_failed(
    tmp_path: Path,
) -> None:
    log = a_log(tmp_path, 5)
    follower = Follower(log, LEADER_EPOCH, 4)

    corrupt = BrokerError(ErrorCode.CORRUPT_MESSAGE, "a flipped bit")
    assert follower.not_appended(corrupt, 0) == Wait(BACKOFF_MIN_MS)
    assert follower.next_fetch(BACKOFF_MIN_MS) is not None
    log.fail("EIO")
    assert follower.not_appended(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "EIO"), 0) is None

    assert follower.state is FollowerState.FAILED
    assert follower.next_fetch(1_000_000) is None
    follower.leader_changed(LEADER_EPOCH + 1)
    assert follower.next_fetch(1_000_000) is None
    assert Follower(log, LEADER_EPOCH, 4).state is FollowerState.FAILED


def test_given_a_reader_when_the_offset_is_not_here_yet_then_it_is_not_told_that_it_is_out_of_range(
    tmp_path: Path,
) -> None:
    """trap A12"""
    log = a_log(tmp_path, 5)
    log.move_log_start(2)
    follower = Follower(log, LEADER_EPOCH, 4)

    follower.check_readable(2)
    follower.check_readable(5)
    for offset, code in (
        (1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (6, ErrorCode.OFFSET_NOT_AVAILABLE),
        (99, ErrorCode.OFFSET_NOT_AVAILABLE),
    ):
        with pytest.raises(BrokerError) as refusal:
            follower.check_readable(offset)
        assert refusal.value.code == code


def test_given_a_leader_and_a_new_replica_when_copied_then_nothing_is_left_to_ask(tmp_path: Path) -> None:
    leader, log = a_log(tmp_path, 5, name="leader-0"), a_log(tmp_path, 0)
    follower = Follower(log, LEADER_EPOCH, 0)

    copy_all(leader, log)

    assert ask(follower)[:2] == (5, 2)
