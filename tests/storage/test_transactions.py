"""trap C5 to C8: what a log makes of transactional batches and of the markers that end them, one check at a time."""

from __future__ import annotations

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, config, file_size_limit, flush, reopen, stage
from tests.storage.transaction_kit import a_marker, abort, commit, stage_all, txn_batch

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import read_header
from penstock.protocol.records import Record, build_batch
from penstock.storage.log import AbortedTransaction, DuplicateBatch, Log

PRODUCER = 7
OTHER = 8


def code_of(log: Log, batch: bytearray, *, transaction_version: int = 0) -> ErrorCode:
    """Why the batch is refused; nothing may have changed then."""
    before = dict(log.producers.entries), log.open_transactions(), log.log_end_offset
    with pytest.raises(BrokerError) as refused:
        log.stage(memoryview(batch), read_header(batch), 0, NOW_MS, transaction_version)
    assert (dict(log.producers.entries), log.open_transactions(), log.log_end_offset) == before
    return refused.value.code


def test_given_a_transactional_batch_when_appended_then_a_transaction_is_open_from_its_offset(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3))
    append(log, txn_batch((PRODUCER, 0, 0), 2))
    append(log, txn_batch((PRODUCER, 0, 2)))

    assert log.open_transactions() == {PRODUCER: 3}
    assert log.first_unstable_offset(log.log_end_offset) == 3


def test_given_a_log_without_transactions_when_asked_then_everything_is_stable(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(3, producer=(PRODUCER, 0, 0)))

    assert log.first_unstable_offset(3) is None
    assert not log.may_have_aborted(0)
    assert log.aborted_transactions(0, 3) == []


def test_given_an_open_transaction_when_its_producer_writes_outside_of_it_then_the_state_is_invalid(
    new_log: NewLog,
) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))

    assert code_of(log, a_batch(producer=(PRODUCER, 0, 1))) == ErrorCode.INVALID_TXN_STATE
    append(log, a_batch(producer=(OTHER, 0, 0)))


def test_given_a_retry_of_a_transactional_batch_when_staged_then_it_is_a_duplicate(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0), 2))

    with pytest.raises(DuplicateBatch) as duplicate:
        stage(log, txn_batch((PRODUCER, 0, 0), 2))

    assert duplicate.value.base_offset == 0


@pytest.mark.parametrize("is_commit", [True, False])
def test_given_a_marker_when_the_high_watermark_passes_it_then_what_it_ended_is_stable(
    new_log: NewLog, is_commit: bool
) -> None:
    log = new_log()
    append(log, a_batch())
    append(log, txn_batch((PRODUCER, 0, 0)))
    marker_offset = append(log, a_marker(PRODUCER, commit=is_commit))

    assert log.open_transactions() == {}
    assert log.first_unstable_offset(marker_offset) == 1
    assert log.first_unstable_offset(marker_offset + 1) is None


def test_given_transactions_that_overlap_when_the_later_ends_first_then_the_earlier_keeps_the_offset(
    new_log: NewLog,
) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    append(log, txn_batch((OTHER, 0, 0)))
    commit(log, OTHER)

    assert log.first_unstable_offset(log.log_end_offset) == 0

    commit(log, PRODUCER)
    assert log.first_unstable_offset(2) == 0
    assert log.first_unstable_offset(3) == 0
    assert log.first_unstable_offset(4) is None


def test_given_a_marker_of_an_older_epoch_when_staged_then_it_is_refused(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 3, 0)))

    assert code_of(log, a_marker(PRODUCER, 2, commit=True)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_given_a_marker_of_a_replaced_coordinator_when_staged_then_the_coordinator_is_fenced(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_marker(PRODUCER, commit=True, coordinator_epoch=5))
    append(log, txn_batch((PRODUCER, 0, 0)))

    assert (
        code_of(log, a_marker(PRODUCER, commit=True, coordinator_epoch=4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    append(log, a_marker(PRODUCER, commit=True, coordinator_epoch=5))
    assert log.producers.entries[PRODUCER].coordinator_epoch == 5


def test_given_a_marker_with_a_higher_epoch_when_appended_then_the_producer_is_fenced_and_begins_at_zero(
    new_log: NewLog,
) -> None:
    """KIP-890: every transaction ends with the next epoch, which the producer uses from then on."""
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0), 4))
    abort(log, PRODUCER, 1)

    assert code_of(log, txn_batch((PRODUCER, 0, 4))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(log, txn_batch((PRODUCER, 1, 4))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, txn_batch((PRODUCER, 1, 0))) == 5


def test_given_a_marker_with_the_same_epoch_when_appended_then_the_sequence_goes_on(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0), 4))
    commit(log, PRODUCER)

    assert code_of(log, txn_batch((PRODUCER, 0, 0), 4)) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert code_of(log, txn_batch((PRODUCER, 0, 5))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert append(log, txn_batch((PRODUCER, 0, 4))) == 5
    assert log.open_transactions() == {PRODUCER: 5}


def test_given_transactions_with_epoch_bumps_when_a_late_marker_has_the_open_ones_epoch_then_it_is_refused(
    new_log: NewLog,
) -> None:
    """It would end the next transaction: that of epoch 1 is ended by epoch 2."""
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    commit(log, PRODUCER, 1)
    log.stage(memoryview(again := a_marker(PRODUCER, 1, commit=True)), read_header(again), 0, NOW_MS, 2)
    log.write_staged()
    append(log, txn_batch((PRODUCER, 1, 0)))

    late = a_marker(PRODUCER, 1, commit=True)
    assert code_of(log, late, transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert append(log, late) == 4  # before transaction version 2 it is what ends it


def test_given_a_coordinators_batches_when_appended_then_the_epoch_is_checked_and_nothing_is_a_repetition(
    new_log: NewLog,
) -> None:
    """Offsets that a group coordinator writes in a producer's name have no sequence numbers."""
    log = new_log()
    for _ in range(2):
        append(log, txn_batch((PRODUCER, 2, -1)))

    assert log.open_transactions() == {PRODUCER: 0}
    assert code_of(log, txn_batch((PRODUCER, 1, -1))) == ErrorCode.INVALID_PRODUCER_EPOCH
    for again in (log, reopen(log, clean=False)):
        assert again.open_transactions() == {PRODUCER: 0}


def test_given_a_control_record_of_another_kind_when_staged_then_it_is_refused(new_log: NewLog) -> None:
    log = new_log()
    for key in (b"\x00\x00\x00\x02", b"\x00"):
        record = Record(key, b"\x00\x00\x00\x00\x00\x00", timestamp=NOW_MS)
        batch = build_batch([record], producer_id=PRODUCER, producer_epoch=0, is_transactional=True, is_control=True)
        assert code_of(log, batch) == ErrorCode.INVALID_RECORD


def test_given_an_aborted_transaction_when_asked_for_any_overlapping_range_then_it_is_told(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(5))
    append(log, txn_batch((PRODUCER, 0, 0), 2))
    append(log, a_batch(3))
    abort(log, PRODUCER)
    append(log, a_batch(4))

    told = [AbortedTransaction(PRODUCER, 5)]
    for from_offset in range(15):
        for upper_offset in range(from_offset + 1, 16):
            expected = told if from_offset <= 10 and upper_offset > 5 else []
            assert log.aborted_transactions(from_offset, upper_offset) == expected
        assert log.may_have_aborted(from_offset) == (from_offset <= 10)


def test_given_an_abort_of_nothing_when_appended_then_there_is_no_entry_and_no_file(new_log: NewLog) -> None:
    log = new_log()
    abort(log, PRODUCER)
    append(log, txn_batch((OTHER, 0, 0)))
    commit(log, OTHER)

    assert log.aborted_transactions(0, 10) == []
    assert log.segments[0].txn_index.count == 0
    assert not [path for path in log.segments[0].paths() if path.endswith(".txnindex") and _exists(path)]


def _exists(path: str) -> bool:
    try:
        with open(path, "rb"):
            return True
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("room", [0, 30, 90, 250, 480])
def test_given_a_write_that_fails_when_undone_then_transactions_are_as_before(new_log: NewLog, room: int) -> None:
    log = new_log(segment_bytes=300)
    append(log, txn_batch((PRODUCER, 0, 0)))
    append(log, txn_batch((OTHER, 0, 0)))
    abort(log, OTHER)
    append(log, txn_batch((OTHER, 0, 1)))
    before = dict(log.producers.entries), log.open_transactions(), log.aborted_transactions(0, 99)
    staged = [
        a_marker(PRODUCER, 1, commit=False), txn_batch((PRODUCER, 1, 0), 3), txn_batch((9, 0, 0), 3),
        a_marker(OTHER, 1, commit=False), a_marker(9, commit=True), txn_batch((9, 0, 3), 9),
    ]  # fmt: skip

    stage_all(log, staged)
    with file_size_limit(min(log.end_position.position + room, 300)), pytest.raises(BrokerError):
        log.write_staged()

    assert (dict(log.producers.entries), log.open_transactions(), log.aborted_transactions(0, 99)) == before
    assert log.first_unstable_offset(log.log_end_offset) == 0
    stage_all(log, staged)
    log.write_staged()
    for again in (log, reopen(log, clean=False), reopen(log)):
        assert again.open_transactions() == {PRODUCER: 5, 9: log.log_end_offset - 9}
        assert len(again.aborted_transactions(0, 99)) == 3


def test_given_an_index_that_cannot_be_written_when_its_marker_is_then_the_marker_is_not_in_the_log(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))

    def full(entries: object) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr("penstock.storage.txn_index.TxnIndex.append", lambda index, entries: full(entries))
        with pytest.raises(BrokerError):
            abort(log, PRODUCER)

    assert (log.log_end_offset, log.open_transactions()) == (1, {PRODUCER: 0})
    assert abort(log, PRODUCER) == 1
    assert log.aborted_transactions(0, 2) == [AbortedTransaction(PRODUCER, 0)]


def test_given_an_open_transaction_when_the_log_is_reopened_then_it_is_still_open(new_log: NewLog) -> None:
    log = new_log(segment_bytes=200)
    append(log, txn_batch((PRODUCER, 4, 0)))
    for number in range(6):
        append(log, a_batch(producer=(OTHER, 0, number)))
    assert len(log.segments) > 2

    for again in (reopen(log, clean=False), reopen(log), reopen(log, clean=False, recovery_point=5)):
        assert again.open_transactions() == {PRODUCER: 0}
        assert again.first_unstable_offset(again.log_end_offset) == 0
        assert code_of(again, a_marker(PRODUCER, 3, commit=True)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_given_a_marker_above_the_flushed_offset_when_recovered_then_it_is_unstable_until_it_is_flushed(
    new_log: NewLog,
) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    flush(log)
    commit(log, PRODUCER)

    again = reopen(log, clean=False, recovery_point=1)

    assert again.flushed_offset == 1
    assert again.first_unstable_offset(again.flushed_offset) == 0
    flush(again)
    assert again.first_unstable_offset(again.flushed_offset) is None


def test_given_a_log_start_within_a_transaction_when_asked_then_nothing_below_it_is_unstable(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0), 5))
    log.move_log_start(3)

    assert log.first_unstable_offset(5) == 3


def test_given_a_truncation_when_it_takes_the_marker_then_the_transaction_is_open_again(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    append(log, txn_batch((OTHER, 0, 0)))
    commit(log, OTHER)
    abort(log, PRODUCER)

    log.truncate_to(3, NOW_MS)

    assert log.open_transactions() == {PRODUCER: 0}
    assert log.aborted_transactions(0, 9) == []
    assert log.first_unstable_offset(2) == 0
    commit(log, PRODUCER)
    assert log.first_unstable_offset(2) == 0  # both markers are at or above it
    assert log.first_unstable_offset(4) is None


def test_given_a_snapshot_behind_the_marker_when_truncated_then_the_marker_is_still_above_the_high_watermark(
    new_log: NewLog,
) -> None:
    """A snapshot does not say which transactions ended before it."""
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    commit(log, PRODUCER)
    log.roll(NOW_MS)
    flush(log)
    append(log, a_batch())
    append(log, a_batch())

    log.truncate_to(3, NOW_MS)

    assert log.first_unstable_offset(1) == 0


def test_given_a_snapshot_behind_the_marker_when_recovered_then_the_marker_is_still_above_the_high_watermark(
    new_log: NewLog,
) -> None:
    log = new_log()
    append(log, txn_batch((PRODUCER, 0, 0)))
    flush(log)
    checkpointed = log.recovery_point
    commit(log, PRODUCER)
    log.roll(NOW_MS)
    flush(log)

    again = reopen(log, clean=False, recovery_point=checkpointed)

    assert again.flushed_offset == checkpointed == 1
    assert again.first_unstable_offset(again.flushed_offset) == 0


def test_given_a_write_that_fails_in_the_next_segment_when_undone_then_the_entry_in_the_first_is_gone(
    new_log: NewLog,
) -> None:
    log = new_log(segment_bytes=400)
    append(log, txn_batch((PRODUCER, 0, 0)))

    stage_all(log, [a_marker(PRODUCER, commit=False), a_batch(value=bytes(310))])
    with file_size_limit(300), pytest.raises(BrokerError):
        log.write_staged()

    assert log.segments[0].txn_index.count == 0
    assert not _exists(log.segments[0].txn_index.path)
    commit(log, PRODUCER)
    assert log.aborted_transactions(0, 9) == []


def test_given_a_fetched_span_when_its_upper_offset_is_asked_then_all_in_it_is_below_and_the_next_entry_is_not_far(
    new_log: NewLog,
) -> None:
    log = new_log(segment_bytes=4_000, index_interval_bytes=200)
    for _ in range(100):
        append(log, a_batch())
    for offset in range(100):
        for max_bytes in (1, 300, 1_000):
            span = log.read(offset, max_bytes, log.end_position, at_least_one=True)
            assert span is not None
            upper = log.upper_offset_of(span, offset, log.end_position)
            in_span = offset + span.length // len(a_batch())
            assert in_span <= upper <= in_span + 200 // len(a_batch()) + 3


def test_given_only_a_marker_when_snapshots_are_written_then_epochs_survive(new_log: NewLog) -> None:
    log = new_log(segment_bytes=config().segment_bytes)
    append(log, a_marker(PRODUCER, 6, commit=True, coordinator_epoch=9))

    again = reopen(log)

    entry = again.producers.entries[PRODUCER]
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.batches) == (6, 9, ())
    assert code_of(again, txn_batch((PRODUCER, 5, 0))) == ErrorCode.INVALID_PRODUCER_EPOCH
