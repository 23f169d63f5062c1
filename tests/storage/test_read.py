from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from itertools import pairwise

import pytest
from tests.storage.conftest import NewLog
from tests.storage.kit import NOW_MS, a_batch, append, bytes_of, flush, headers, open_descriptors, reopen, stage
from tests.testkit.page_cache import can_be_evicted

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import read_header, split
from penstock.protocol.records import KERNEL
from penstock.storage import descriptors
from penstock.storage.index import OffsetIndex
from penstock.storage.log import ColdRead, Log, LogPosition
from penstock.storage.segment import LocatedBatch

EVERYTHING = 1 << 30


def a_filled_log(new_log: NewLog, **settings: object) -> Log:
    """Some 200 batches of 1 to 6 records and 70 to 3,000 bytes over several segments, written in ticks of 1 to 5."""
    log = new_log(**{"segment_bytes": 20_000, "index_interval_bytes": 600, **settings})
    rng = random.Random(7)
    for _ in range(70):
        for _ in range(rng.randint(1, 5)):
            count = rng.randint(1, 6)
            stage(log, a_batch(count, value=bytes(rng.randint(0, 500)), timestamp=NOW_MS + log.log_end_offset))
        log.write_staged()
    return log


def whole(log: Log) -> bytes:
    content = b""
    for segment in log.segments:
        with open(segment.path, "rb") as file:
            content += file.read()
    return content


def read_all(log: Log, offset: int, max_bytes: int, upper: LogPosition) -> bytes:
    """As a consumer reads: whole batches of each answer, then on from the next offset."""
    content = b""
    while True:
        span = log.read(offset, max_bytes, upper, at_least_one=True)
        if span is None:
            return content
        got = bytes_of(span)
        for position, header in split(got):
            content += got[position : position + header.size]
            offset = header.next_offset


def a_log_of_large_and_small_batches(new_log: NewLog) -> Log:
    """Of up to 24 KB: most are longer than what one look at the file brings."""
    log = new_log(segment_bytes=400_000)
    rng = random.Random(7)
    for _ in range(80):
        append(log, a_batch(rng.randint(1, 4), value=bytes(rng.choice([10, 500, 4_000, 6_000]))))
    return log


@pytest.mark.parametrize("filled", [a_filled_log, a_log_of_large_and_small_batches])
def test_given_any_offset_when_read_then_the_answer_starts_with_the_batch_that_holds_it(
    new_log: NewLog, filled: Callable[[NewLog], Log]
) -> None:
    log = filled(new_log)
    starts = {offset: each for each in headers(log) for offset in range(each.base_offset, each.next_offset)}
    assert len(log.segments) > 1

    for offset in range(log.log_end_offset):
        span = log.read(offset, 1, log.end_position, at_least_one=True)
        assert span is not None
        assert read_header(bytes_of(span)) == starts[offset]
        assert span.length == starts[offset].size


@pytest.mark.parametrize("wrong_by", [-1, 1, 61])
def test_given_large_batches_and_an_index_that_points_beside_them_when_read_then_the_right_ones_are_found(
    new_log: NewLog, wrong_by: int
) -> None:
    log = a_log_of_large_and_small_batches(new_log)
    starts = {offset: each for each in headers(log) for offset in range(each.base_offset, each.next_offset)}
    for segment in log.segments:
        index = segment.offset_index
        entries = [index.entry(slot) for slot in range(index.count)]
        wrong = [entry._replace(position=entry.position + wrong_by) for entry in entries]
        index.replace(OffsetIndex.pack(wrong, segment.base_offset))

    for offset in range(log.log_end_offset):
        span = log.read(offset, 1, log.end_position, at_least_one=True, wait=True)
        assert span is not None
        assert read_header(bytes_of(span)) == starts[offset]


@pytest.mark.parametrize("max_bytes", [1, 100, 1_000, 5_000, EVERYTHING])
def test_given_a_consumer_when_it_reads_to_the_end_then_it_has_every_byte_of_the_log(
    new_log: NewLog, max_bytes: int
) -> None:
    log = a_filled_log(new_log)

    assert read_all(log, 0, max_bytes, log.end_position) == whole(log)


def test_given_an_upper_bound_when_read_then_nothing_at_or_above_it_is_told(new_log: NewLog) -> None:
    log = new_log(segment_bytes=5_000)
    ends = []
    for _ in range(40):
        append(log, a_batch(3, value=bytes(200)))
        ends.append(log.end_position)

    for upper in ends:
        content = read_all(log, 0, EVERYTHING, upper)
        assert [header.next_offset for _, header in split(content)][-1] == upper.offset
        assert log.read(upper.offset, EVERYTHING, upper, at_least_one=True) is None


def test_given_a_batch_above_max_bytes_when_it_need_not_be_given_then_nothing_is(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(value=bytes(1_000)))
    append(log, a_batch(value=bytes(10)))
    size = headers(log)[0].size

    assert log.read(0, size - 1, log.end_position, at_least_one=False) is None
    assert log.read(0, size, log.end_position, at_least_one=False) is not None
    assert log.read(0, 0, log.end_position, at_least_one=True) is not None


def test_given_max_bytes_inside_the_second_batch_when_read_then_the_span_is_cut_there(new_log: NewLog) -> None:
    log = new_log()
    append(log, a_batch(value=bytes(1_000)))
    append(log, a_batch(value=bytes(1_000)))

    span = log.read(0, 1_500, log.end_position, at_least_one=True)

    assert span is not None
    assert (span.position, span.length) == (0, 1_500)


@pytest.mark.parametrize("offset", [-1, 5])
def test_given_an_offset_outside_the_log_when_read_then_out_of_range(new_log: NewLog, offset: int) -> None:
    log = new_log()
    append(log, a_batch(4))

    with pytest.raises(BrokerError) as refused:
        log.read(offset, 100, log.end_position, at_least_one=True)

    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_given_a_consumer_at_the_end_when_more_is_appended_then_it_gets_exactly_that(new_log: NewLog) -> None:
    log = new_log(segment_bytes=3_000)
    offset = 0
    for number in range(50):
        assert log.read(offset, EVERYTHING, log.end_position, at_least_one=True) is None
        batch = a_batch(2, value=bytes(number * 10))
        append(log, batch)
        span = log.read(offset, EVERYTHING, log.end_position, at_least_one=True)
        assert span is not None
        assert bytes_of(span) == batch
        offset += 2


def test_given_a_deleted_segment_when_its_span_is_in_flight_then_its_bytes_can_still_be_sent(new_log: NewLog) -> None:
    log = a_filled_log(new_log, retention_ms=1)
    span = log.read(0, 1_000, log.end_position, at_least_one=True)
    assert span is not None
    before = bytes_of(span)

    plan = log.plan_retention(log.log_end_offset, NOW_MS * 2)
    assert plan is not None
    log.retire(plan, NOW_MS).remove()

    assert bytes_of(span) == before
    with pytest.raises(BrokerError):
        log.read(0, 1_000, log.end_position, at_least_one=True)


# Cold reads


def a_cold_log(new_log: NewLog) -> Log:
    log = new_log(segment_bytes=2 << 20)
    for _ in range(40):
        append(log, a_batch(value=bytes(100_000)))
    log = reopen(log)
    if not all(can_be_evicted(segment.path) for segment in log.segments if segment.size):
        pytest.skip("this file system keeps everything in memory")
    return log


def test_given_pages_that_are_not_in_memory_when_read_then_it_says_so_and_a_thread_warms_them(new_log: NewLog) -> None:
    log = a_cold_log(new_log)
    spans = []

    def warm() -> None:
        spans.append(log.read(30, 500_000, log.end_position, at_least_one=True, wait=True))

    thread = threading.Thread(target=warm)
    thread.start()
    thread.join()

    assert log.read(30, 500_000, log.end_position, at_least_one=True) == spans[0]


def test_given_only_the_start_is_in_memory_when_a_long_span_is_read_then_it_counts_as_cold(new_log: NewLog) -> None:
    log = a_cold_log(new_log)
    log.read(0, 10, log.end_position, at_least_one=True, wait=True)
    assert log.read(0, 10, log.end_position, at_least_one=True) is not None

    with pytest.raises(ColdRead):
        log.read(0, 1_500_000, log.end_position, at_least_one=True)


# Descriptors


def test_given_idle_logs_when_they_are_open_then_each_holds_at_most_one_descriptor(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors.DESCRIPTORS, "capacity", 4)
    logs = [a_filled_log(new_log, name=f"orders-{number}") for number in range(3)]
    before = open_descriptors()
    logs += [a_filled_log(new_log, name=f"orders-{number}") for number in range(3, 9)]
    for log in logs:
        flush(log)
        log.read(0, 1, log.end_position, at_least_one=True)

    assert open_descriptors() - before <= 6 + 4


def test_given_a_log_opened_after_a_clean_stop_when_nobody_uses_it_then_it_holds_no_descriptor(
    new_log: NewLog,
) -> None:
    log = a_filled_log(new_log)
    log.close()
    before = open_descriptors()

    again = reopen(log)

    assert open_descriptors() <= before
    assert again.log_end_offset == log.log_end_offset


# Indexes that lie


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "zeroed", "reversed", "cut", "foreign", "shifted"])
@pytest.mark.parametrize("clean", [True, False])
def test_given_damaged_indexes_when_reopened_then_every_read_is_as_without_any(
    new_log: NewLog, suffix: str, damage: str, clean: bool
) -> None:
    """traps B3."""
    log = a_filled_log(new_log)
    log.close()
    expected = {offset: each for each in headers(log) for offset in range(each.base_offset, each.next_offset)}
    for segment in log.segments:
        path = segment.path.removesuffix("log") + suffix
        with open(path, "rb") as file:
            content = file.read()
        width = 8 if suffix == "index" else 12
        entries = [content[at : at + width] for at in range(0, len(content), width)]
        changed = {
            "missing": None,
            "zeroed": bytes(len(content)),
            "reversed": b"".join(reversed(entries)),
            "cut": b"".join(entries[: len(entries) // 2]),
            # Plausible by itself and right about nothing: every entry a little off.
            "foreign": b"".join(entry[:-1] + bytes([entry[-1] ^ 1]) for entry in entries),
            # Every entry points to a batch, but to the next one.
            "shifted": b"".join(
                entry[:4] + later[4:] if suffix == "index" else later[:8] + entry[8:]
                for entry, later in pairwise(entries)
            ),
        }[damage]
        os.unlink(path)
        if changed is not None:
            with open(path, "wb") as file:
                file.write(changed)

    again = reopen(log, clean=False) if not clean else Log.open(log.directory, log.config, now_ms=NOW_MS)

    assert again.log_end_offset == log.log_end_offset
    for offset in range(0, log.log_end_offset, 3):
        span = again.read(offset, 1, again.end_position, at_least_one=True, wait=True)
        assert span is not None
        assert read_header(bytes_of(span)) == expected[offset]
        # Records carry their offset as time, so this is the offset itself.
        found = again.offset_for_timestamp(NOW_MS + expected[offset].base_offset, again.end_position)
        assert found is not None
        assert found.offset == expected[offset].base_offset


def spoil_an_entry(log: Log) -> None:
    index = log.segments[-1].offset_index
    entries = [index.entry(slot) for slot in range(index.count)]
    wrong = [*entries[:2], entries[2]._replace(position=entries[2].position + 7), *entries[3:]]
    index.replace(OffsetIndex.pack(wrong, index.base_offset))


@pytest.mark.parametrize("max_bytes", [1, 700, 5_000, EVERYTHING])
@pytest.mark.parametrize("filled", [a_filled_log, a_log_of_large_and_small_batches])
@pytest.mark.parametrize("harm", [lambda log: None, spoil_an_entry])
def test_what_c_finds_of_a_segment_is_what_the_general_way_finds(
    new_log: NewLog, filled: Callable[[NewLog], Log], harm: Callable[[Log], None], max_bytes: int
) -> None:
    """It may give up, where something is wrong only; what `end` cuts off is not there for it."""
    log = filled(new_log)
    segment = log.segments[-1]
    walked = list(segment.walk(0, segment.size, wait=True))
    harm(log)
    found_count = 0

    for end in (segment.size, walked[-1].position, walked[-1].position - 1):
        for offset in range(segment.base_offset - 1, log.log_end_offset + 1):
            for at_least_one in (False, True):
                found = segment.offset_index.find_span(
                    segment.file().fd, offset, end, max_bytes, at_least_one, segment.size
                )
                expected = span_by_walking(walked, offset, end, max_bytes, at_least_one=at_least_one)
                assert found in (None, expected)
                found_count += found is not None
    assert found_count or KERNEL == "pure"


@pytest.mark.skipif(KERNEL == "pure", reason="nothing is found by C in plain Python")
@pytest.mark.parametrize("filled", [a_filled_log, a_log_of_large_and_small_batches])
def test_given_a_sound_segment_when_c_looks_for_what_is_there_then_it_never_gives_up(
    new_log: NewLog, filled: Callable[[NewLog], Log]
) -> None:
    log = filled(new_log)

    for segment in log.segments:
        for _, header in segment.walk(0, segment.size, wait=True):
            for offset in range(header.base_offset, header.next_offset):
                assert segment.offset_index.find_span(segment.file().fd, offset, segment.size, 1, True, 0)


def span_by_walking(
    batches: list[LocatedBatch], offset: int, end: int, max_bytes: int, *, at_least_one: bool
) -> tuple[int, int] | None:
    for position, header in batches:
        if header.last_offset >= offset and position + header.size <= end:
            length = min(max_bytes, end - position)
            return position, length if length >= header.size else header.size if at_least_one else 0
    return None
