from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, files, flush, headers, records, reopen, stage

from penstock.protocol.batch import place, read_header, seal, split
from penstock.storage import producer_snapshot, scan
from penstock.storage.log import DuplicateBatch, Log

ACTIVE = "00000000000000000000.log"


def a_log_with_a_tail(new_log: NewLog, **settings: object) -> Log:
    """Twenty batches of some idempotent producer, epochs 0 to 3; nothing flushed."""
    log = new_log(**{"index_interval_bytes": 300, **settings})
    for number in range(20):
        append(
            log, a_batch(2, value=bytes([number]) * 60, timestamp=NOW_MS + number, producer=(9, 0, 2 * number)),
            epoch=number // 6,
        )  # fmt: skip
    return log


class Crashed:
    """A copy of a directory as a crash left it, to be damaged and opened again and again."""

    def __init__(self, log: Log, tmp_path: Path) -> None:
        self.log = log
        self.content = files(log.directory)
        self.directory = str(tmp_path / "crashed-0")

    def open_with(self, name: str, content: bytes, *, recovery_point: int = 0) -> Log:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.mkdir(self.directory)
        for each, original in {**self.content, name: content}.items():
            with open(f"{self.directory}/{each}", "wb") as file:
                file.write(original)
        return Log.open(self.directory, self.log.config, recovery_point=recovery_point, clean=False, now_ms=NOW_MS)


def sound_prefix(content: bytes, length: int) -> int:
    """The end of the last batch that lies wholly within the first `length` bytes of the undamaged file."""
    return max((at + header.size for at, header in split(content) if at + header.size <= length), default=0)


def assert_is_prefix(log: Log, original: bytes, end: int) -> None:
    """The log holds exactly the first `end` bytes, and everything that goes with them agrees."""
    kept = list(split(original[:end]))
    with open(log.segments[-1].path, "rb") as file:
        assert file.read() == original[:end]
    assert log.log_end_offset == (kept[-1][1].next_offset if kept else 0)
    assert log.end_position.position == end
    if kept:
        last = kept[-1][1]
        entry = log.producers.entries[9]
        assert entry.batches[-1].last_sequence == last.last_sequence
        assert entry.known_sequences == last.last_sequence + 1
        assert log.leader_epochs.latest_epoch == last.partition_leader_epoch
        assert log.segments[-1].max_timestamp == last.max_timestamp
    else:
        assert not log.producers.entries
        assert not log.leader_epochs.entries


def test_given_a_file_cut_at_any_byte_of_the_last_three_batches_when_opened_then_the_whole_batches_remain(
    new_log: NewLog, tmp_path: Path
) -> None:
    """traps B1."""
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    first = list(split(original))[-3][0]

    for length in range(first, len(original) + 1):
        log = crashed.open_with(ACTIVE, original[:length])
        assert_is_prefix(log, original, sound_prefix(original, length))


def test_given_a_flipped_bit_anywhere_in_the_tail_when_opened_then_the_log_ends_before_it(
    new_log: NewLog, tmp_path: Path
) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    batches = list(split(original))
    rng = random.Random(11)

    for _ in range(400):
        position = rng.randrange(batches[-4][0], len(original))
        start = next(at for at, _ in reversed(batches) if at <= position)
        if 12 <= position - start < 16:
            continue  # the leader epoch is under no checksum and may be anything
        damaged = bytearray(original)
        damaged[position] ^= 1 << rng.randrange(8)

        log = crashed.open_with(ACTIVE, bytes(damaged))

        assert_is_prefix(log, original, start)


def test_given_a_file_cut_inside_a_batch_when_opened_then_it_may_be_a_write_that_was_never_finished(
    new_log: NewLog, tmp_path: Path
) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    last = list(split(original))[-1][0]

    for length in range(last + 1, len(original)):
        report = crashed.open_with(ACTIVE, original[:length]).recovery_report

        assert report is not None
        assert (report.is_torn, report.truncated_bytes) == (True, length - last)


@pytest.mark.parametrize("which", [-1, -2, -20])
def test_given_any_bit_of_a_length_flipped_when_opened_then_it_is_damage_and_no_write_that_was_never_finished(
    new_log: NewLog, tmp_path: Path, which: int
) -> None:
    """A length that leads beyond the file, with a whole batch before it."""
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    start = list(split(original))[which][0]

    for bit in range(32):
        damaged = bytearray(original)
        damaged[start + 11 - bit // 8] ^= 1 << bit % 8

        log = crashed.open_with(ACTIVE, bytes(damaged))

        assert_is_prefix(log, original, start)
        assert log.recovery_report is not None
        assert not log.recovery_report.is_torn, bit


def test_given_a_damaged_length_before_a_gap_of_compaction_when_opened_then_it_is_damage(
    new_log: NewLog, tmp_path: Path
) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    *_, damaged_at, gap_at = [start for start, _ in split(original)]
    content = bytearray(original)
    content[damaged_at + 8] ^= 0x40  # the length leads far beyond the file
    content[gap_at + 6] ^= 0x01  # the next batch begins 256 offsets later

    report = crashed.open_with(ACTIVE, bytes(content)).recovery_report

    assert report is not None
    assert not report.is_torn


@pytest.mark.parametrize("length", [1, 11, 60, 61, 62, 4_096, 65_536])
def test_given_zeros_behind_the_last_batch_when_opened_then_they_are_cut_off(
    new_log: NewLog, tmp_path: Path, length: int
) -> None:
    """traps B2."""
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]

    assert_is_prefix(crashed.open_with(ACTIVE, original + bytes(length)), original, len(original))


def test_given_garbage_behind_the_last_batch_when_opened_then_it_is_cut_off(new_log: NewLog, tmp_path: Path) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    rng = random.Random(3)

    for _ in range(60):
        log = crashed.open_with(ACTIVE, original + rng.randbytes(rng.randint(1, 3_000)))
        assert_is_prefix(log, original, len(original))


def test_given_an_old_batch_behind_the_end_when_opened_then_its_offset_gives_it_away(
    new_log: NewLog, tmp_path: Path
) -> None:
    """Bytes of an earlier life of the file have a good CRC."""
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    size = read_header(original).size

    assert_is_prefix(crashed.open_with(ACTIVE, original + original[:size]), original, len(original))


def test_given_a_gap_before_the_last_batch_when_opened_then_only_a_compacted_log_may_have_it(new_log: NewLog) -> None:
    for compacted, expected in ((False, 1), (True, 8)):
        log = new_log(name=f"gap-{int(compacted)}", is_compacted=compacted)
        append(log, a_batch())
        append(log, a_batch())
        with open(log.segments[0].path, "r+b") as file:
            file.seek(headers(log)[0].size)
            file.write((7).to_bytes(8, "big"))

        assert reopen(log, clean=False).log_end_offset == expected


def test_given_a_gap_that_the_next_batch_confirms_when_opened_then_it_is_kept(new_log: NewLog) -> None:
    """A topic that was compacted once and is not any more."""
    log = new_log()
    for _ in range(3):
        append(log, a_batch())
    size = headers(log)[0].size
    with open(log.segments[0].path, "r+b") as file:
        for place, offset in ((1, 7), (2, 8)):
            file.seek(place * size)
            file.write(offset.to_bytes(8, "big"))

    assert reopen(log, clean=False).log_end_offset == 9


def test_given_a_bad_batch_in_an_older_segment_when_opened_then_no_later_segment_remains(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    assert len(log.segments) > 3
    flush(log)
    second = log.segments[1]
    with open(second.path, "r+b") as file:
        file.seek(second.size - 1)
        file.write(b"\xff")

    again = reopen(log, clean=False, recovery_point=0)

    assert [segment.base_offset for segment in again.segments] == [0, second.base_offset]
    assert [each.offset for each in records(again)] == list(range(again.log_end_offset))
    assert again.recovery_report is not None
    assert again.recovery_report.removed_segments == len(log.segments) - 2
    later = {segment.base_offset for segment in log.segments[2:]}
    assert not [name for name in files(log.directory) if name[:20].isdigit() and int(name[:20]) in later]
    assert append(again, a_batch(producer=(1, 0, 0))) == again.log_end_offset - 1


@pytest.mark.parametrize("is_next_empty", [False, True])
@pytest.mark.parametrize("is_flushed_before", [False, True])
def test_given_a_power_cut_that_took_the_end_of_a_segment_and_left_the_next_when_opened_then_there_is_no_hole(
    new_log: NewLog, is_flushed_before: bool, is_next_empty: bool
) -> None:
    """Found by the simulation: who sent again what was lost in the hole was told that it is there."""
    log = new_log(segment_bytes=600)
    while is_flushed_before and len(log.segments) < 3:
        append(log, a_batch(2, value=b"before", producer=(9, 0, log.log_end_offset)))
        flush(log)
    count = len(log.segments)
    while len(log.segments) < count + 1:
        append(log, a_batch(2, value=b"never flushed", producer=(9, 0, log.log_end_offset)))
    torn, left = log.segments[-2:]
    last = list(split(Path(torn.path).read_bytes()))[-1][0]
    os.truncate(torn.path, last)
    if is_next_empty:
        os.truncate(left.path, 0)

    again = reopen(log, clean=False, recovery_point=0)

    assert again.segments[-1].base_offset == torn.base_offset
    assert [each.offset for each in records(again)] == list(range(again.log_end_offset))
    assert again.log_end_offset == left.base_offset - 2
    assert again.recovery_report is not None
    assert again.recovery_report.is_torn, "nothing of it was ever said to be on disk"
    assert append(again, a_batch(2, producer=(9, 0, again.log_end_offset))) == left.base_offset - 2


def test_given_gaps_of_compaction_between_segments_when_opened_then_they_are_kept(new_log: NewLog) -> None:
    """A follower has gaps from its leader, and may begin a segment behind one; the cleaner makes others."""
    log = new_log(segment_bytes=400, is_compacted=True)
    for base_offset in range(0, 100, 10):
        batch = a_batch(2, value=b"value" * 10)
        place(batch, 0, base_offset, 0)
        log.append_replicated(memoryview(batch), 0, NOW_MS)
    assert len(log.segments) > 3

    assert reopen(log, clean=False, recovery_point=0).log_end_offset == 92
    flush(log)
    cleaned = log.segments[1]
    os.truncate(cleaned.path, list(split(Path(cleaned.path).read_bytes()))[-1][0])
    assert reopen(log, clean=False, recovery_point=0).log_end_offset == 92


def test_given_a_segment_inside_another_when_opened_then_it_and_what_follows_it_goes(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    first, second = log.segments[:2]
    shutil.copy(second.path, f"{log.directory}/{first.base_offset + 2:020d}.log")

    again = reopen(log, clean=False)

    assert [segment.base_offset for segment in again.segments] == [0]
    assert [each.offset for each in records(again)] == list(range(second.base_offset))


def test_given_a_recovery_point_when_opened_then_only_what_lies_behind_it_is_checked(
    new_log: NewLog, tmp_path: Path
) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    batches = list(split(original))
    damaged = bytearray(original)
    damaged[batches[5][0] + 70] ^= 1  # in the records of the sixth batch

    below = crashed.open_with(ACTIVE, bytes(damaged), recovery_point=batches[6][1].base_offset)
    behind = crashed.open_with(ACTIVE, bytes(damaged), recovery_point=batches[5][1].base_offset)

    assert below.log_end_offset == batches[-1][1].next_offset
    assert behind.log_end_offset == batches[5][1].base_offset


def test_given_a_recovery_point_in_the_last_segment_when_opened_then_earlier_segments_are_not_read(
    new_log: NewLog,
) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)

    again = reopen(log, clean=False, recovery_point=log.segments[-1].base_offset + 1)

    assert again.recovery_report is not None
    assert again.recovery_report.scanned_bytes == log.segments[-1].size
    assert again.producers.entries.keys() == log.producers.entries.keys()
    assert again.producers.entries[9].batches == log.producers.entries[9].batches
    assert again.leader_epochs.entries == log.leader_epochs.entries


def test_given_a_recovery_point_of_another_log_when_opened_then_everything_is_checked(
    new_log: NewLog, tmp_path: Path
) -> None:
    """A topic created again under the same name must not inherit trust from the one before."""
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    batches = list(split(original))
    damaged = bytearray(original)
    damaged[batches[5][0] + 70] ^= 1

    log = crashed.open_with(ACTIVE, bytes(damaged), recovery_point=10_000)

    assert_is_prefix(log, original, batches[5][0])


def test_given_a_batch_larger_than_what_is_read_at_once_when_opened_then_it_is_checked_all_the_same(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_CHUNK_BYTES", 1_000)
    log = new_log()
    for size in (10, 5_000, 900, 20_000, 10):
        append(log, a_batch(value=bytes(size)))
    assert reopen(log, clean=False).log_end_offset == 5

    with open(log.segments[0].path, "r+b") as file:
        file.seek(headers(log)[0].size + 4_000)
        file.write(b"\xff")
    assert reopen(log, clean=False).log_end_offset == 1


def test_given_an_unclean_stop_when_opened_then_flushed_is_what_was_flushed_until_the_next_flush(
    new_log: NewLog,
) -> None:
    """traps B9: reading bytes from the page cache does not put them on the disk."""
    log = a_log_with_a_tail(new_log)

    again = reopen(log, clean=False, recovery_point=10)

    assert (again.flushed_offset, again.recovery_point, again.is_dirty) == (10, 10, True)
    flush(again)
    assert again.flushed_position == again.end_position
    assert again.recovery_point == again.log_end_offset


def test_given_a_log_start_beyond_what_survived_when_opened_then_the_log_is_empty_there(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)
    with open(log.segments[1].path, "r+b") as file:
        file.truncate(400)

    again = reopen(log, clean=False, log_start_offset=39)

    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (39, 39, 0)
    assert append(again, a_batch()) == 39
    assert reopen(again, log_start_offset=39).log_end_offset == 40


def test_given_a_crash_after_every_append_when_reopened_then_appends_go_on_where_they_ended(new_log: NewLog) -> None:
    log = new_log(segment_bytes=900, index_interval_bytes=100)
    for number in range(25):
        assert append(log, a_batch(2, value=bytes(70), producer=(4, 0, 2 * number))) == 2 * number
        log = reopen(log, clean=bool(number % 3 == 0))
    assert [each.offset for each in records(log)] == list(range(50))


# Producer state (traps C3)


def test_given_snapshots_are_gone_when_opened_after_a_crash_then_retries_are_still_known(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)
    for name in files(log.directory):
        if name.endswith(".snapshot"):
            os.unlink(f"{log.directory}/{name}")

    again = reopen(log, clean=False, recovery_point=log.segments[-1].base_offset)

    assert again.producers.entries[9].batches == log.producers.entries[9].batches


def test_given_a_damaged_snapshot_when_opened_then_the_one_before_it_serves(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)
    newest = max(name for name in files(log.directory) if name.endswith(".snapshot"))
    with open(f"{log.directory}/{newest}", "r+b") as file:
        file.write(b"\x00\x07")

    again = reopen(log, clean=False, recovery_point=log.segments[-1].base_offset)

    assert again.producers.entries[9].batches == log.producers.entries[9].batches


@pytest.mark.parametrize("clean", [True, False])
def test_given_a_restart_when_any_of_the_last_five_batches_is_retried_then_its_offset_is_told(
    new_log: NewLog, clean: bool
) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)

    again = reopen(log, clean=clean, recovery_point=log.recovery_point)

    for number in range(15, 20):
        with pytest.raises(DuplicateBatch) as duplicate:
            stage(again, a_batch(2, value=bytes([number]) * 60, producer=(9, 0, 2 * number)))
        assert duplicate.value.base_offset == 2 * number


def test_given_all_records_expired_when_a_batch_is_retried_after_a_crash_then_it_is_not_appended_twice(
    new_log: NewLog,
) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200, retention_ms=1)
    plan = log.plan_retention(log.log_end_offset, NOW_MS * 2)
    assert plan is not None
    log.retire(plan, NOW_MS).remove()
    assert log.log_start_offset == log.log_end_offset == 40
    flush(log)

    again = reopen(log, clean=False, recovery_point=log.recovery_point)

    with pytest.raises(DuplicateBatch):
        stage(again, a_batch(2, producer=(9, 0, 38)))


def test_given_a_crash_before_the_snapshot_of_a_roll_when_retention_and_a_second_crash_follow_then_retries_are_known(
    new_log: NewLog,
) -> None:
    """The state must not hang on segments that retention may take."""
    log = a_log_with_a_tail(new_log, segment_bytes=1_200, retention_bytes=400)
    append(log, a_batch(producer=(7, 0, 0)))
    again = reopen(log, clean=False)
    flush(again)
    plan = again.plan_retention(again.log_end_offset, NOW_MS)
    assert plan is not None
    again.retire(plan, NOW_MS).remove()
    assert not [each for each in headers(again) if each.base_sequence == 30]

    third = reopen(again, clean=False, recovery_point=again.recovery_point)

    with pytest.raises(DuplicateBatch):
        stage(third, a_batch(2, producer=(9, 0, 30)))


def test_given_a_recovery_point_older_than_the_snapshots_when_opened_after_a_crash_then_idle_producers_are_known(
    new_log: NewLog,
) -> None:
    """Recovery points are written now and then, snapshots with every roll; retention goes by the latter."""
    log = new_log(segment_bytes=1_200, retention_bytes=3_000, index_interval_bytes=300)
    for number in range(7):
        append(log, a_batch(2, value=bytes(60), producer=(5, 0, 2 * number)))
    for number in range(40):
        append(log, a_batch(2, value=bytes(60), producer=(9, 0, 2 * number)))
        if number == 30:
            append(log, a_batch(2, value=bytes(60), producer=(5, 0, 14)))
        flush(log)
    plan = log.plan_retention(log.log_end_offset, NOW_MS)
    assert plan is not None
    log.retire(plan, NOW_MS).remove()
    for number in range(40, 50):  # over a roll that is not flushed, so that its snapshot is not there
        append(log, a_batch(2, value=bytes(60), producer=(9, 0, 2 * number)))
    written_down = log.log_start_offset + 1
    known = log.producers.entries
    assert min(each.base_offset for each in known[5].batches) < log.log_start_offset

    again = reopen(log, clean=False, recovery_point=written_down)

    assert {id: entry.batches for id, entry in again.producers.entries.items()} == {
        id: entry.batches for id, entry in known.items()
    }
    flush(again)
    third = reopen(again, clean=False, recovery_point=again.recovery_point)
    with pytest.raises(DuplicateBatch):
        stage(third, a_batch(2, producer=(5, 0, 12)))


def test_given_a_snapshot_beyond_the_end_of_a_cut_log_when_opened_then_it_is_of_no_account(new_log: NewLog) -> None:
    """Its producers have batches that are lost: taking them for duplicates would acknowledge what is not there."""
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    flush(log)
    with open(log.segments[1].path, "r+b") as file:
        file.truncate(100)

    again = reopen(log, clean=False, recovery_point=0)

    last = again.producers.entries[9].batches[-1]
    assert last.last_offset == again.log_end_offset - 1
    assert snapshot_offsets(log) == [offset for offset in snapshot_offsets(log) if offset <= again.log_end_offset]


def snapshot_offsets(log: Log) -> list[int]:
    return [int(name[:20]) for name in files(log.directory) if name.endswith(".snapshot")]


def test_given_rolls_inside_a_tick_when_the_snapshots_are_written_then_each_holds_what_lies_before_it_and_no_more(
    new_log: NewLog,
) -> None:
    """A snapshot that knows batches from behind its offset would call them duplicates after a crash lost them."""
    log = new_log(segment_bytes=1_000)
    for number in range(30):
        stage(log, a_batch(2, value=bytes(60), producer=(9, 0, 2 * number)))
    stage(log, a_batch(producer=(10, 0, 0)))
    log.write_staged()
    flush(log)

    assert len(log.segments) > 4
    for segment in log.segments[1:]:
        entries = producer_snapshot.read(log.directory, segment.base_offset, NOW_MS)
        assert entries.keys() == {9}
        assert entries[9].batches[-1].last_offset == segment.base_offset - 1
        assert entries[9].known_sequences == segment.base_offset


# Clean stops


def test_given_a_clean_stop_when_opened_then_nothing_is_scanned_and_everything_is_as_before(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log, segment_bytes=1_200)
    log.close()

    again = reopen(log)

    assert again.recovery_report is None
    assert (again.end_position, again.flushed_position) == (log.end_position, log.end_position)
    assert again.producers.entries == log.producers.entries
    assert again.leader_epochs.entries == log.leader_epochs.entries
    assert again.segments[-1].max_timestamp == log.segments[-1].max_timestamp
    assert not again.is_dirty


def test_given_a_clean_stop_without_any_change_when_closed_again_then_no_file_is_touched(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log)
    log.close()
    again = reopen(log)
    before = {name: os.stat(f"{log.directory}/{name}").st_mtime_ns for name in os.listdir(log.directory)}

    again.close()

    assert {name: os.stat(f"{log.directory}/{name}").st_mtime_ns for name in os.listdir(log.directory)} == before


@pytest.mark.parametrize("damage", ["cut", "grown"])
def test_given_a_log_that_is_not_as_the_marker_says_when_opened_then_it_is_repaired(
    new_log: NewLog, damage: str
) -> None:
    log = a_log_with_a_tail(new_log)
    log.close()
    with open(log.segments[0].path, "r+b") as file:
        if damage == "cut":
            file.truncate(log.end_position.position - 5)
        else:
            file.seek(0, os.SEEK_END)
            file.write(bytes(500))

    again = reopen(log)

    assert again.recovery_report is not None
    assert again.log_end_offset == (38 if damage == "cut" else 40)


def test_given_many_restarts_when_closed_then_no_more_than_a_few_snapshots_remain(new_log: NewLog) -> None:
    log = new_log()
    for number in range(12):
        append(log, a_batch(producer=(9, 0, number)))
        log = reopen(log)

    assert len([name for name in files(log.directory) if name.endswith(".snapshot")]) <= 4


def test_given_a_torn_leader_epoch_file_when_opened_then_epochs_come_from_the_batches(new_log: NewLog) -> None:
    log = a_log_with_a_tail(new_log)
    log.close()
    with open(f"{log.directory}/leader-epoch-checkpoint", "wb") as file:
        file.write(b"0\n4\n0 0\n1 1")

    again = reopen(log)

    assert again.leader_epochs.entries == log.leader_epochs.entries


def test_given_a_resealed_batch_of_wrong_magic_when_opened_then_it_is_no_batch(new_log: NewLog, tmp_path: Path) -> None:
    crashed = Crashed(a_log_with_a_tail(new_log), tmp_path)
    original = crashed.content[ACTIVE]
    start, _ = list(split(original))[-1]
    damaged = bytearray(original)
    damaged[start + 16] = 1
    seal(damaged, start)

    assert_is_prefix(crashed.open_with(ACTIVE, bytes(damaged)), original, start)
