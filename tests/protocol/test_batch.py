"""The batch header, against aiokafka's and kio's reading of the same bytes."""

from __future__ import annotations

import mmap

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch

from penstock.protocol.batch import (
    HEADER_BYTES,
    MAX_SEQUENCE,
    BatchHeader,
    Codec,
    CorruptBatch,
    crc_is_valid,
    place,
    read_header,
    sound_batches,
    split,
    stamp_log_append_time,
)
from penstock.protocol.records import Record, build_batch, iterate

NOW_MS = 1_700_000_000_000
THREE = [
    Record(b"k", b"one", (), NOW_MS),
    Record(None, b"two", [("h", b"v")], NOW_MS + 5),
    Record(b"k", None, (), NOW_MS),
]


def a_batch(base_offset: int = 0, size: int = 3) -> bytearray:
    return build_batch([Record(None, b"x" * size, (), NOW_MS)], base_offset=base_offset)


def test_given_a_batch_when_its_header_is_read_then_aiokafka_and_kio_read_the_same() -> None:
    batch = build_batch(
        THREE, base_offset=40, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=7, is_transactional=True
    )

    header = read_header(batch)

    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    kios, kio_size = read_batch(bytes(batch), 0)
    assert (header.base_offset, header.next_offset) == (theirs.base_offset, theirs.next_offset) == (40, 43)
    assert header.crc == theirs.crc == kios.crc
    assert header.attributes == theirs.attributes == kios.attributes
    assert (header.base_timestamp, header.max_timestamp) == (theirs.first_timestamp, theirs.max_timestamp)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        kios.producer_id, kios.producer_epoch, kios.base_sequence
    )  # fmt: skip
    assert header.partition_leader_epoch == kios.partition_leader_epoch == 3
    assert header.size == len(batch) == kio_size
    assert (header.records_count, header.last_offset_delta, header.last_offset) == (3, 2, 42)
    assert header.is_transactional and not header.is_control and not header.is_log_append_time
    assert header.codec == Codec.NONE


@pytest.mark.parametrize(
    ("base_sequence", "records_count", "last_sequence"),
    [
        (-1, 3, -1),
        (0, 1, 0),
        (7, 3, 9),
        (MAX_SEQUENCE - 1, 2, MAX_SEQUENCE),
        (MAX_SEQUENCE, 2, 0),
        (MAX_SEQUENCE, 5, 3),
    ],
)
def test_given_a_base_sequence_when_the_batch_goes_over_the_highest_then_the_last_wraps_to_zero(
    base_sequence: int, records_count: int, last_sequence: int
) -> None:
    records = [Record(None, b"")] * records_count

    header = read_header(build_batch(records, base_sequence=base_sequence))

    assert header.last_sequence == last_sequence


def test_given_a_batch_when_it_is_placed_then_offset_and_epoch_change_and_the_crc_holds() -> None:
    log = a_batch() + a_batch()
    second = len(log) // 2
    before = bytes(log)

    place(log, second, base_offset=2**40, leader_epoch=17)

    header = read_header(log, second)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 17)
    assert crc_is_valid(log, second, header)
    assert log[:second] == before[:second]
    assert log[second + 16 :] == before[second + 16 :]


def test_given_create_times_when_log_append_time_is_stamped_then_every_record_has_it() -> None:
    batch = bytearray(5) + build_batch(THREE, codec=Codec.GZIP)

    stamp_log_append_time(batch, 5, NOW_MS + 1000)

    header = read_header(batch, 5)
    assert header.is_log_append_time
    assert header.codec == Codec.GZIP
    assert crc_is_valid(batch, 5, header)
    theirs = list(DefaultRecordBatch(bytes(batch[5:])))
    assert [(record.timestamp, record.timestamp_type) for record in theirs] == [(NOW_MS + 1000, 1)] * 3
    assert [record.timestamp for record in iterate(batch, 5)] == [NOW_MS + 1000] * 3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8 * 80))
def test_given_any_flipped_bit_after_the_crc_then_it_is_noticed(bit: int) -> None:
    batch = a_batch(size=40)
    bit = 8 * 21 + bit % (8 * (len(batch) - 21))

    batch[bit // 8] ^= 1 << bit % 8

    assert not crc_is_valid(batch, 0, read_header(batch))


def offsets(found: list[tuple[int, BatchHeader]]) -> list[int]:
    return [header.base_offset for _, header in found]


def test_given_a_fetch_answer_cut_at_any_byte_when_split_then_only_whole_batches_come() -> None:
    first, second = a_batch(0), a_batch(1)
    answer = first + second

    for end in range(len(answer) + 1):
        found = offsets(list(split(answer[:end])))
        assert found == ([0, 1] if end == len(answer) else [0] if end >= len(first) else [])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_given_a_length_too_small_for_a_header_when_split_then_it_is_corrupt(length: int) -> None:
    answer = a_batch(0) + a_batch(1)
    second = len(answer) // 2
    answer[second + 8 : second + 12] = length.to_bytes(4, "big", signed=True)

    with pytest.raises(CorruptBatch) as refused:
        list(split(answer))

    assert refused.value.position == second


def test_given_another_magic_when_split_then_it_is_corrupt() -> None:
    answer = a_batch()
    answer[16] = 1

    with pytest.raises(CorruptBatch, match="magic 1"):
        list(split(answer))


def test_given_a_log_cut_at_any_byte_when_recovered_then_the_whole_batches_before_it_are_kept() -> None:
    batches = [a_batch(offset, size=offset) for offset in range(3)]
    log = b"".join(batches)
    ends = [len(b"".join(batches[: count + 1])) for count in range(3)]

    for end in range(len(log) + 1):
        assert offsets(list(sound_batches(log, 0, end))) == [index for index in range(3) if ends[index] <= end]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_given_a_flipped_bit_in_the_second_batch_when_recovered_then_the_log_ends_before_it(
    data: st.DataObject,
) -> None:
    first = a_batch(0)
    log = first + a_batch(1) + a_batch(2)
    # Base offset and leader epoch are outside the CRC: the log checks them against what came before.
    byte = data.draw(st.integers(8, len(first) - 1).filter(lambda byte: not 12 <= byte < 16))
    log[len(first) + byte] ^= 1 << data.draw(st.integers(0, 7))

    assert offsets(list(sound_batches(log, 0, len(log)))) == [0]


@pytest.mark.parametrize("tail", [bytes(65536), b"\xff" * 65536, bytes(HEADER_BYTES), b"\x01"])
def test_given_a_tail_that_is_no_batch_when_recovered_then_the_log_ends_before_it(tail: bytes) -> None:
    log = bytes(a_batch()) + tail

    assert offsets(list(sound_batches(log, 0, len(log)))) == [0]


def test_given_a_mapped_file_when_recovered_from_a_position_then_what_lies_before_is_not_read() -> None:
    first, second = b"\xff" * 100, bytes(a_batch(7))
    with mmap.mmap(-1, 4096) as mapped:
        mapped[: len(first + second)] = first + second

        found = list(sound_batches(memoryview(mapped), len(first), 4096))

        assert [(position, header.base_offset) for position, header in found] == [(100, 7)]
