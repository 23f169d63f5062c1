from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.kit import NOW_MS

from penstock.protocol.batch import MAX_SEQUENCE
from penstock.storage import producer_snapshot
from penstock.storage.producers import AppendedBatch, ProducerEntry


@st.composite
def windows(draw: st.DrawFn) -> ProducerEntry:
    batches = []
    sequence = draw(st.integers(0, MAX_SEQUENCE))
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 5))):
        delta = draw(st.integers(0, 9))
        last_sequence = (sequence + delta) & MAX_SEQUENCE
        batches.append(AppendedBatch(sequence, last_sequence, offset, offset + delta, draw(st.integers(-1, 2**50))))
        sequence, offset = (last_sequence + 1) & MAX_SEQUENCE, offset + delta + 1
    return ProducerEntry(
        draw(st.integers(0, 32767)), tuple(batches), draw(st.integers(1, 2**30)), draw(st.integers(0, 2**50)),
        draw(st.integers(-1, 100)), draw(st.integers(-1, 2**40)),
    )  # fmt: skip


@given(st.dictionaries(st.integers(0, 2**62), windows(), max_size=8))
@settings(max_examples=80, deadline=None)
def test_given_any_state_when_written_and_read_then_it_is_the_same(entries: dict[int, ProducerEntry]) -> None:
    assert producer_snapshot.from_bytes(producer_snapshot.to_bytes(entries), NOW_MS) == entries


def kafkas_snapshot(*rows: tuple[int, ...]) -> bytes:
    """What Kafka writes: no second part."""
    body = struct.pack(">i", len(rows)) + b"".join(struct.pack(">qhiqiqiq", *row) for row in rows)
    return struct.pack(">hI", 1, crc32c(body)) + body


def test_given_a_snapshot_of_kafka_when_read_then_the_last_batch_is_the_window() -> None:
    content = kafkas_snapshot((9, 3, 14, 200, 4, 1234, -1, -1))

    entry = producer_snapshot.from_bytes(content, NOW_MS)[9]

    assert entry == ProducerEntry(3, (AppendedBatch(10, 14, 196, 200, 1234),), 5, NOW_MS, -1, -1)


def test_given_a_producer_with_markers_only_when_read_then_it_has_an_epoch_and_no_batch() -> None:
    content = kafkas_snapshot((9, 3, -1, -1, 0, 1234, 6, -1))

    entry = producer_snapshot.from_bytes(content, NOW_MS)[9]

    assert (entry.producer_epoch, entry.batches, entry.coordinator_epoch) == (3, (), 6)


def test_given_our_snapshot_when_read_as_kafka_reads_it_then_the_entries_are_kafkas() -> None:
    batches = (AppendedBatch(0, 1, 50, 51, 7), AppendedBatch(2, 4, 60, 62, 8))
    content = producer_snapshot.to_bytes({9: ProducerEntry(3, batches, 5, NOW_MS)})

    version, crc = struct.unpack_from(">hI", content)
    (count,) = struct.unpack_from(">i", content, 6)
    row = struct.unpack_from(">qhiqiqiq", content, 10)

    assert (version, crc, count) == (1, crc32c(content[6:]), 1)
    assert row == (9, 3, 4, 62, 2, 8, -1, -1)


def test_given_any_flipped_byte_when_read_then_the_snapshot_is_refused() -> None:
    content = producer_snapshot.to_bytes({9: ProducerEntry(3, (AppendedBatch(0, 1, 50, 51, 7),), 2, NOW_MS)})

    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        with pytest.raises(producer_snapshot.BadSnapshot):
            producer_snapshot.from_bytes(bytes(damaged), NOW_MS)


def test_given_a_snapshot_cut_anywhere_when_read_then_it_is_refused() -> None:
    content = producer_snapshot.to_bytes({9: ProducerEntry(3, (AppendedBatch(0, 1, 50, 51, 7),), 2, NOW_MS)})

    for length in range(len(content)):
        with pytest.raises(producer_snapshot.BadSnapshot):
            producer_snapshot.from_bytes(content[:length], NOW_MS)


def test_given_a_directory_when_a_snapshot_is_written_then_its_name_has_twenty_digits(tmp_path: Path) -> None:
    producer_snapshot.write(str(tmp_path), 4711, {})

    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000004711.snapshot"]
    assert producer_snapshot.read(str(tmp_path), 4711, NOW_MS) == {}
