"""trap C7, B3: the files of aborted transactions, byte by byte, damaged, cut, deleted and rebuilt."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, files, flush, reopen
from tests.storage.transaction_kit import abort, batches_of, commit, committed, txn_batch

from penstock.storage.index import BadIndex
from penstock.storage.log import Log
from penstock.storage.log_file import ColdRead
from penstock.storage.txn_index import TxnIndexEntry

Damage = Callable[[bytes], bytes]
ENTRY_BYTES = 34


def txn_files(log: Log) -> dict[str, bytes]:
    return {name: content for name, content in files(log.directory).items() if name.endswith(".txnindex")}


def fill(log: Log) -> None:
    """Transactions of three producers that begin and end across each other, aborted ones and others."""
    sequences = {1: 0, 2: 0, 3: 0}

    def data(producer_id: int) -> None:
        append(log, txn_batch((producer_id, 0, sequences[producer_id]), 2))
        sequences[producer_id] += 2

    data(1)
    for turn in range(12):
        data(2)
        append(log, a_batch())
        data(3)
        (abort if turn % 3 else commit)(log, 2)
        abort(log, 3)
        if turn == 8:
            abort(log, 1)


def test_given_an_abort_when_written_then_the_file_has_kafkas_bytes(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((21, 0, 0), 3))
    append(log, txn_batch((22, 0, 0)))
    abort(log, 22)
    abort(log, 21)

    assert txn_files(log) == {
        "00000000000000000000.txnindex": struct.pack(">hqqqq", 0, 22, 3, 4, 0) + struct.pack(">hqqqq", 0, 21, 0, 5, 6)
    }


def test_given_a_transaction_across_segments_when_aborted_then_its_entry_is_where_its_marker_is(
    new_log: NewLog,
) -> None:
    log = new_log(segment_bytes=200)
    append(log, txn_batch((21, 0, 0)))
    for _ in range(8):
        append(log, a_batch())
    assert len(log.segments) > 3

    abort(log, 21)

    assert list(txn_files(log)) == [f"{log.segments[-1].base_offset:020d}.txnindex"]
    for offset in range(log.log_end_offset):
        assert [each.first_offset for each in log.aborted_transactions(offset, offset + 1)] == [0]


@pytest.mark.parametrize("recovery_point", [0, 20, 50])
@pytest.mark.parametrize("clean", [True, False])
def test_given_a_reopened_log_when_indexes_are_compared_then_they_are_the_same(
    new_log: NewLog, clean: bool, recovery_point: int
) -> None:
    log = new_log(segment_bytes=400)
    fill(log)
    flush(log)
    before, told = txn_files(log), [log.aborted_transactions(offset, 99) for offset in range(log.log_end_offset)]

    again = reopen(log, clean=clean, recovery_point=recovery_point)

    assert txn_files(again) == before
    assert [again.aborted_transactions(offset, 99) for offset in range(log.log_end_offset)] == told


DAMAGES: list[Damage] = [
    lambda content: content[:-1],
    lambda content: content + b"\x00",
    lambda content: content[:20],
    lambda content: bytes(len(content)),
    lambda content: bytes(ENTRY_BYTES) + content,
    lambda content: content[::-1],
    lambda content: content + content[-ENTRY_BYTES:],
    lambda content: b"\x00\x01" + content[2:],
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_given_damaged_indexes_when_used_then_they_are_rebuilt_from_the_log(
    new_log: NewLog, damage: Damage, clean: bool
) -> None:
    log = new_log(segment_bytes=400)
    fill(log)
    log.close()
    log = reopen(log)
    before = txn_files(log)
    told = [log.aborted_transactions(offset, 99) for offset in range(log.log_end_offset)]
    log.close()
    for name, content in before.items():
        with open(f"{log.directory}/{name}", "wb") as file:
            file.write(damage(content))

    again = reopen(log, clean=clean, recovery_point=log.recovery_point)

    assert [again.aborted_transactions(offset, 99) for offset in range(log.log_end_offset)] == told
    assert txn_files(again) == before


def test_given_an_active_index_that_is_damaged_when_opened_after_a_clean_stop_then_it_is_right_before_the_next_abort(
    new_log: NewLog,
) -> None:
    log = new_log()
    fill(log)
    log.close()
    (name,) = txn_files(log)
    with open(f"{log.directory}/{name}", "r+b") as file:
        file.truncate(40)

    again = reopen(log)
    append(again, txn_batch((9, 0, 0)))
    abort(again, 9)

    entries = list(again.segments[-1].txn_index.entries_from(0))
    assert len(entries) == 22
    assert [entry.last_offset for entry in entries] == sorted({entry.last_offset for entry in entries})


def test_given_retention_when_segments_go_then_their_indexes_go_with_them(new_log: NewLog) -> None:
    log = new_log(segment_bytes=400, retention_ms=1)
    fill(log)
    flush(log)
    plan = log.plan_retention(log.log_end_offset, NOW_MS * 2)
    assert plan is not None

    log.retire(plan, NOW_MS).remove()

    assert txn_files(log) == {}
    assert log.aborted_transactions(log.log_start_offset, 99) == []


def test_given_any_offset_when_truncated_then_later_entries_are_gone_and_earlier_ones_stay(new_log: NewLog) -> None:
    for offset in range(90):
        log = new_log(f"cut-{offset}", segment_bytes=400)
        fill(log)
        log = reopen(log)
        batches, all_told = batches_of(log), log.aborted_transactions(0, 999)

        log.truncate_to(offset, NOW_MS)

        end = log.log_end_offset
        told = [entry for segment in log.segments for entry in segment.txn_index.entries_from(0)]
        markers = [header.base_offset for header, _ in batches if header.is_control and header.base_offset < end]
        assert all(entry.last_offset in markers for entry in told)
        assert {entry[:2] for entry in told} <= {tuple(each) for each in all_told}
        expected = committed([each for each in batches if each[0].base_offset < end], all_told, 0, end)
        upper = log.first_unstable_offset(end)
        seen = committed(batches_of(log), log.aborted_transactions(0, end), 0, end if upper is None else upper)
        assert seen == [each for each in expected if upper is None or each < upper]


@pytest.mark.parametrize("damage", DAMAGES)
def test_given_damaged_indexes_when_truncated_then_the_segment_that_becomes_active_has_a_sound_one(
    new_log: NewLog, damage: Damage
) -> None:
    log = new_log(segment_bytes=400)
    fill(log)
    log.close()
    sound = Log.open(log.directory, log.config, now_ms=NOW_MS)
    told = [entry for segment in sound.segments for entry in segment.txn_index.entries_from(0)]
    for name, content in txn_files(log).items():
        with open(f"{log.directory}/{name}", "wb") as file:
            file.write(damage(content))

    again = Log.open(log.directory, log.config, now_ms=NOW_MS)
    again.truncate_to(40, NOW_MS)
    append(again, txn_batch((9, 0, 0)))
    abort(again, 9)

    kept = [entry for entry in told if entry.last_offset < 40]
    assert kept
    last = again.segments[-1].txn_index
    assert [*last.entries_from(0)][:-1] == [entry for entry in kept if entry.last_offset >= last.base_offset]
    assert len(again.aborted_transactions(0, 99)) == len(kept) + 1


def test_given_a_segment_that_rolls_when_flushed_then_its_index_is_flushed_before_the_recovery_point_moves(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(segment_bytes=400)
    fill(log)
    synced: list[str] = []
    monkeypatch.setattr("penstock.storage.checkpoints.sync_file", synced.append)

    flush(log)

    closed = [segment.txn_index.path for segment in log.segments[:-1] if segment.txn_index.count]
    assert closed
    assert {path for path in synced if path.endswith(".txnindex")} == set(closed)


def test_given_a_stale_file_beyond_the_end_when_a_segment_begins_there_then_it_has_no_entries(new_log: NewLog) -> None:
    log = new_log()
    append(log, txn_batch((1, 0, 0)))
    with open(f"{log.directory}/00000000000000000001.txnindex", "wb") as file:
        file.write(struct.pack(">hqqqq", 0, 5, 0, 1, 2))

    log.roll(NOW_MS)

    assert txn_files(log) == {}


def test_given_a_file_that_is_gone_when_checked_then_it_is_a_bad_index(new_log: NewLog) -> None:
    log = new_log()
    fill(log)
    os.unlink(log.segments[-1].txn_index.path)

    with pytest.raises(BadIndex):
        log.segments[-1].txn_index.check(99)


def test_given_many_entries_when_looked_up_from_any_marker_then_the_rest_comes_in_order(new_log: NewLog) -> None:
    index = new_log().segments[0].txn_index
    entries = [TxnIndexEntry(1, 2 * number, 2 * number + 1, 2 * number + 2) for number in range(300)]
    for start in range(0, 300, 50):
        index.append(entries[start : start + 50])

    for offset in range(0, 602, 7):
        assert list(index.entries_from(offset)) == [entry for entry in entries if entry.last_offset >= offset]


@pytest.mark.parametrize("count", [1, 127, 128, 129, 300])
def test_given_many_entries_when_the_loop_looks_them_up_then_the_first_come_and_a_long_rest_is_for_a_thread(
    new_log: NewLog, count: int
) -> None:
    index = new_log().segments[0].txn_index
    index.append([TxnIndexEntry(1, 2 * number, 2 * number + 1, 2 * number + 2) for number in range(count)])

    for offset in range(0, 2 * count + 2, 3):
        expected = list(index.entries_from(offset))
        found: list[TxnIndexEntry] = []
        try:
            found.extend(index.entries_from(offset, wait=False))
            assert found == expected
        except ColdRead:
            assert len(expected) > 1
        assert next(index.entries_from(offset, wait=False), None) == next(iter(expected), None)


def test_given_entries_that_were_looked_up_when_the_end_is_cut_and_written_anew_then_the_new_ones_are_found(
    new_log: NewLog,
) -> None:
    index = new_log().segments[0].txn_index
    index.append([TxnIndexEntry(1, 2 * number, 2 * number + 1, 2 * number + 2) for number in range(9)])
    assert len(list(index.entries_from(0, wait=False))) == 9

    index.cut_after(11)
    assert len(list(index.entries_from(0, wait=False))) == 5
    index.append([TxnIndexEntry(2, 10, 30, 31)])

    assert [entry.producer_id for entry in index.entries_from(3, wait=False)] == [1, 1, 1, 1, 2]
    index.rewrite([TxnIndexEntry(3, 0, 1, 2)])
    assert [entry.producer_id for entry in index.entries_from(0, wait=False)] == [3]


def test_given_an_index_that_nobody_has_checked_when_the_loop_looks_then_it_is_for_a_thread(new_log: NewLog) -> None:
    log = new_log()
    fill(log)
    log.roll(NOW_MS)
    flush(log)
    again = reopen(log)

    with pytest.raises(ColdRead):
        again.aborted_transactions(0, 99, wait=False)
    told = again.aborted_transactions(0, 99)

    assert told
    assert again.aborted_transactions(0, 99, wait=False) == told
