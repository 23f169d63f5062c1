from __future__ import annotations

import os

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, config, file_size_limit, files, flush, headers, reopen, stage
from tests.storage.replication_kit import copy, copy_all, fetched, state_of
from tests.storage.transaction_kit import a_marker, batches_of, txn_batch

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import place
from penstock.storage.epochs import EpochEntry
from penstock.storage.log import Log
from penstock.storage.replicated import BeginsEarlier

BATCH = len(a_batch())


def a_leader(new_log: NewLog, batches: int = 5, *, epoch: int = 0) -> Log:
    leader = new_log("leader-0")
    for _ in range(batches):
        append(leader, a_batch(), epoch=epoch)
    return leader


def refused(follower: Log, records: bytes | bytearray, *, leader_epoch: int = 9) -> BrokerError:
    before, state = follower.end_position, state_of(follower)
    with pytest.raises(BrokerError) as refusal:
        follower.append_replicated(memoryview(records), leader_epoch, NOW_MS)
    assert follower.end_position == before
    assert state_of(follower) == state
    return refusal.value


def test_given_an_answer_that_ends_inside_a_batch_when_appended_then_the_whole_ones_are(new_log: NewLog) -> None:
    leader, follower = a_leader(new_log), new_log("follower-0")

    for length in range(BATCH, 5 * BATCH):
        records = memoryview(fetched(leader, follower.log_end_offset))[:length]
        end = follower.append_replicated(records, 0, NOW_MS)
        assert end.offset == follower.log_end_offset == length // BATCH
        follower.truncate_to(0, NOW_MS)

    copy_all(leader, follower)
    assert batches_of(follower) == batches_of(leader)


def test_given_less_than_one_batch_when_appended_then_it_is_no_answer_of_a_leader(new_log: NewLog) -> None:
    records = fetched(a_leader(new_log), 0)

    for length in (1, 60, BATCH - 1):
        assert refused(new_log("follower-0"), records[:length]).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("at", [16, 17, 21, BATCH - 1, BATCH + 16, 2 * BATCH - 1])
def test_given_a_flipped_bit_when_appended_then_nothing_of_the_answer_is(new_log: NewLog, at: int) -> None:
    records = bytearray(fetched(a_leader(new_log), 0))
    records[at] ^= 1

    assert refused(new_log("follower-0"), records).code == ErrorCode.CORRUPT_MESSAGE


def test_given_offsets_or_epochs_that_fall_when_appended_then_nothing_is(new_log: NewLog) -> None:
    follower = new_log("follower-0")
    copy_all(a_leader(new_log, 3, epoch=4), follower)

    for base_offset, epoch in ((2, 4), (0, 5), (3, 3)):
        batch = a_batch()
        place(batch, 0, base_offset, epoch)
        assert refused(follower, batch).code == ErrorCode.CORRUPT_MESSAGE


def test_given_batches_of_a_later_epoch_when_the_leader_answered_in_its_own_then_they_are_left_out(
    new_log: NewLog,
) -> None:
    leader, follower = a_leader(new_log, 3, epoch=4), new_log("follower-0")
    append(leader, a_batch(), epoch=5)

    follower.append_replicated(memoryview(fetched(leader, 0)), 4, NOW_MS)

    assert follower.log_end_offset == 3
    assert follower.append_replicated(memoryview(fetched(leader, 3)), 4, NOW_MS) == follower.end_position


def test_given_gaps_of_compaction_when_appended_then_the_offsets_are_the_leaders(new_log: NewLog) -> None:
    follower = new_log("follower-0", is_compacted=True)
    records = bytearray()
    for base_offset, epoch in ((7, 2), (12, 2), (40, 6)):
        batch = a_batch(2)
        place(batch, 0, base_offset, epoch)
        records += batch

    follower.append_replicated(memoryview(records), 6, NOW_MS)

    for log in (follower, reopen(follower), reopen(follower, clean=False)):
        assert [header.base_offset for header in headers(log)] == [7, 12, 40]
        assert log.log_end_offset == 42
        assert log.leader_epochs.entries == (EpochEntry(2, 7), EpochEntry(6, 40))


def test_given_what_a_leader_would_refuse_of_a_producer_when_replicated_then_it_is_taken(new_log: NewLog) -> None:
    follower = new_log("follower-0")
    records = bytearray()
    for base_offset, sequence in enumerate((7, 3, 3)):
        batch = a_batch(producer=(9, 0, sequence))
        place(batch, 0, base_offset, 0)
        records += batch

    follower.append_replicated(memoryview(records), 0, NOW_MS)

    assert [each.base_sequence for each in follower.producers.entries[9].batches] == [7, 3, 3]


def test_given_many_batches_when_appended_then_they_are_written_as_one_piece(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = new_log("leader-0"), new_log("follower-0")
    for _ in range(3_000):
        stage(leader, a_batch())
    leader.write_staged()
    records = fetched(leader, 0)
    writes: list[int] = []
    pwritev = os.pwritev

    def counted(fd: int, views: list[memoryview], position: int) -> int:
        writes.append(len(views))
        return pwritev(fd, views, position)

    monkeypatch.setattr(os, "pwritev", counted)

    follower.append_replicated(memoryview(records), 0, NOW_MS)

    assert writes == [1]
    assert files(follower.directory)["0" * 20 + ".log"] == files(leader.directory)["0" * 20 + ".log"]


def test_given_a_batch_above_the_segments_size_when_replicated_then_it_has_a_segment_of_its_own(
    new_log: NewLog,
) -> None:
    leader, follower = new_log("leader-0"), new_log("follower-0", segment_bytes=200)
    for size in (10, 5_000, 10):
        append(leader, a_batch(value=bytes(size)))

    copy(leader, follower)

    assert [segment.base_offset for segment in follower.segments] == [0, 1, 2]
    assert batches_of(follower) == batches_of(leader)


def test_given_a_full_disk_when_a_transaction_ends_then_all_is_as_before_and_goes_on_later(new_log: NewLog) -> None:
    leader, follower = new_log("leader-0"), new_log("follower-0", segment_bytes=250)
    append(leader, txn_batch((3, 0, 0)), epoch=1)
    copy_all(leader, follower)
    append(leader, txn_batch((3, 0, 1), value=bytes(80)), epoch=2)
    append(leader, txn_batch((4, 0, 0), value=bytes(90)), epoch=3)
    append(leader, a_marker(3, commit=False), epoch=3)
    records = fetched(leader, 1)

    with file_size_limit(160):
        assert refused(follower, records).code == ErrorCode.KAFKA_STORAGE_ERROR

    assert not follower.is_failed
    copy_all(leader, follower)
    assert state_of(follower) == state_of(leader)
    assert follower.aborted_transactions(0, 9) == leader.aborted_transactions(0, 9)


# Starting anew


def test_given_a_log_that_starts_behind_the_followers_end_when_it_starts_there_then_it_goes_on(
    new_log: NewLog,
) -> None:
    leader, follower = a_leader(new_log, 10, epoch=3), new_log("follower-0", segment_bytes=200)
    copy_all(leader, follower)
    flush(follower)
    follower.truncate_to(5, NOW_MS)
    leader.move_log_start(8)

    follower.start_at(8, NOW_MS)

    assert (follower.log_start_offset, follower.log_end_offset, follower.size_bytes) == (8, 8, 0)
    assert (follower.flushed_offset, follower.recovery_point) == (8, 8)
    assert state_of(follower) == ({}, {}, ())
    copy_all(leader, follower)
    for log in (follower, reopen(follower, recovery_point=5), reopen(follower, clean=False, recovery_point=5)):
        assert [header.base_offset for header in headers(log)] == [8, 9]
        assert log.leader_epochs.entries == (EpochEntry(3, 8),)
        assert (log.log_start_offset, log.log_end_offset) == (8, 10)


def test_given_a_new_partition_when_it_starts_elsewhere_then_its_first_flush_still_covers_its_names(
    new_log: NewLog,
) -> None:
    follower = new_log("follower-0")
    follower.flush_also(f"{follower.directory}/partition.metadata")

    follower.start_at(8, NOW_MS)

    due = follower.begin_flush().due
    assert f"{follower.directory}/partition.metadata" in due.paths
    assert {follower.directory, os.path.dirname(follower.directory)} <= set(due.directories)


def test_given_a_leader_whose_log_starts_inside_a_batch_when_copied_then_the_follower_has_the_whole_batch(
    new_log: NewLog,
) -> None:
    leader, follower = new_log("leader-0"), new_log("follower-0")
    for _ in range(3):
        append(leader, a_batch(4))
    leader.move_log_start(6)
    follower.start_at(6, NOW_MS)
    records = memoryview(fetched(leader, 6))

    with pytest.raises(BeginsEarlier) as early:
        follower.append_replicated(records, 0, NOW_MS)
    follower.start_at(early.value.base_offset, NOW_MS, log_start_offset=6)
    follower.append_replicated(records, 0, NOW_MS)

    for log in (follower, reopen(follower, log_start_offset=6)):
        assert [header.base_offset for header in headers(log)] == [4, 8]
        assert (log.log_start_offset, log.log_end_offset) == (6, 12)
    assert fetched(follower, 6) == fetched(leader, 6)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("log_start_offset", [0, 3])
@pytest.mark.parametrize("steps", range(40))
def test_given_a_crash_anywhere_in_starting_anew_when_opened_then_it_is_a_beginning_or_empty(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch, steps: int, log_start_offset: int
) -> None:
    leader, follower = new_log("leader-0"), new_log("follower-0", segment_bytes=250)
    for number in range(8):
        append(leader, a_batch(producer=(9, 0, number)), epoch=number // 2)
    copy_all(leader, follower)
    flush(follower)
    before, settings = headers(follower), config(segment_bytes=250)
    unlink, left = os.unlink, [steps]

    def crash_later(path: str) -> None:
        if left[0] == 0:
            raise Crash
        left[0] -= 1
        unlink(path)

    monkeypatch.setattr(os, "unlink", crash_later)
    try:
        follower.start_at(20, NOW_MS)
    except Crash:
        pass
    else:
        assert steps > 10
    monkeypatch.undo()

    log = Log.open(
        follower.directory, settings, recovery_point=8, log_start_offset=log_start_offset, clean=False, now_ms=NOW_MS
    )

    found = headers(log)
    assert found == before[: len(found)]
    assert log.log_end_offset in (max(len(found), log_start_offset), 20)
    epochs = {header.partition_leader_epoch for header in found if header.last_offset >= log_start_offset - 1}
    assert [entry.epoch for entry in log.leader_epochs.entries] == sorted(epochs)
    assert reopen(log, log_start_offset=log_start_offset).leader_epochs.entries == log.leader_epochs.entries
    log.start_at(20, NOW_MS)
    batch = a_batch()
    place(batch, 0, 20, 7)
    log.append_replicated(memoryview(batch), 7, NOW_MS)
    assert reopen(log, clean=False).leader_epochs.entries == (EpochEntry(7, 20),)
