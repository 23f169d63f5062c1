from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.kit import small_disk

from penstock.storage.descriptors import DescriptorCache
from penstock.storage.index import OffsetIndex, TimeIndex

BASE = 1_000


def an_index(tmp_path: Path, entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex(str(tmp_path / "a.index"), BASE)
    for last_offset, position in entries:
        index.append(index.reserve(1), last_offset, position)
    return index


def test_given_entries_when_trimmed_then_the_file_is_kafkas_layout(tmp_path: Path) -> None:
    index = an_index(tmp_path, [(BASE + 9, 4_200), (BASE + 20, 9_000)])

    index.trim()

    assert (tmp_path / "a.index").read_bytes() == struct.pack(">iiii", 9, 4_200, 20, 9_000)


def test_given_time_entries_when_trimmed_then_the_file_is_kafkas_layout_and_only_rises(tmp_path: Path) -> None:
    index = TimeIndex(str(tmp_path / "a.timeindex"), BASE)
    for timestamp, offset in [(50, BASE + 1), (50, BASE + 2), (40, BASE + 3), (60, BASE + 4)]:
        index.append(index.reserve(1), timestamp, offset)

    index.trim()

    assert (tmp_path / "a.timeindex").read_bytes() == struct.pack(">qiqi", 50, 1, 60, 4)


def test_given_an_open_index_when_somebody_looks_at_the_file_then_it_holds_whole_entries(tmp_path: Path) -> None:
    """Tools, Kafka's and ours, call anything else damaged."""
    index = TimeIndex(str(tmp_path / "a.timeindex"), BASE)
    for number in range(1_000):
        index.append(index.reserve(1), number, BASE + number)

        assert (tmp_path / "a.timeindex").stat().st_size % 12 == 0


@given(st.sets(st.integers(0, 60), max_size=20), st.integers(-5, 70))
@settings(max_examples=80, deadline=None)
def test_given_any_entries_when_looked_up_then_the_last_at_or_before_and_the_first_behind_are_found(
    tmp_path_factory: pytest.TempPathFactory, offsets: set[int], wanted: int
) -> None:
    entries = [(BASE + each, 100 + each) for each in sorted(offsets)]
    index = an_index(tmp_path_factory.mktemp("index"), entries)

    before, behind = index.around(BASE + wanted)

    assert before == max((each for each in entries if each[0] <= BASE + wanted), default=None)
    assert behind == min((each for each in entries if each[0] > BASE + wanted), default=None)


def test_given_more_entries_than_were_allocated_when_appended_then_the_file_grows(tmp_path: Path) -> None:
    entries = [(BASE + number, 100 * number + 1) for number in range(3_000)]

    index = an_index(tmp_path, entries)

    assert [index.entry(slot) for slot in range(3_000)] == entries
    assert index.around(BASE + 1_234) == (entries[1_234], entries[1_235])


def test_given_a_full_disk_when_space_is_reserved_then_it_is_an_error_and_no_signal(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as directory:
        index = OffsetIndex(f"{directory}/a.index", BASE)
        for number in range(512):
            index.append(index.reserve(1), BASE + number, number + 1)
        with open(f"{directory}/ballast", "wb") as ballast, pytest.raises(OSError):
            while True:
                os.write(ballast.fileno(), bytes(4096))

        with pytest.raises(OSError):
            index.reserve(1)

        assert index.count == 512
        os.unlink(f"{directory}/ballast")
        index.append(index.reserve(1), BASE + 512, 513)
        assert index.around(BASE + 512) == ((BASE + 512, 513), None)
        index.evict()


def test_given_a_reader_of_the_old_map_when_the_index_is_cut_then_its_pages_stay(tmp_path: Path) -> None:
    """Making a mapped file shorter would end the process with SIGBUS at the next look beyond its end."""
    index = an_index(tmp_path, [(BASE + number, number + 1) for number in range(2_000)])
    mapped = index.reserve(0)

    index.cut(3)
    index.trim()

    assert struct.unpack_from(">ii", mapped, 1_999 * 8) == (1_999, 2_000)
    assert (index.count, os.path.getsize(index.path)) == (3, 24)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">iiii", 5, 100, 5, 200),
        struct.pack(">iiii", 5, 100, 6, 100),
        struct.pack(">ii", 5, 1_000),
        struct.pack(">ii", 5, 0),
        struct.pack(">ii", -1, 10),
        bytes(64),
        b"odd length",
    ],
    ids=["offset repeats", "position repeats", "beyond the log", "position 0", "negative", "zeros", "odd"],
)
def test_given_an_offset_index_that_makes_no_sense_when_checked_then_it_is_not_sane(content: bytes) -> None:
    assert not OffsetIndex.is_sane(content, 1_000)


def test_given_a_good_or_empty_index_when_checked_then_it_is_sane() -> None:
    assert OffsetIndex.is_sane(struct.pack(">iiii", 5, 100, 6, 200), 1_000)
    assert OffsetIndex.is_sane(b"", 1_000)
    assert TimeIndex.is_sane(struct.pack(">qiqi", 5, 100, 6, 200))
    assert TimeIndex.is_sane(b"")


@pytest.mark.parametrize(
    "content",
    [struct.pack(">qiqi", 5, 100, 5, 200), struct.pack(">qiqi", 5, 100, 6, 99), struct.pack(">qi", -1, 0), bytes(24)],
    ids=["time repeats", "offset falls", "no time", "zeros"],
)
def test_given_a_time_index_that_makes_no_sense_when_checked_then_it_is_not_sane(content: bytes) -> None:
    assert not TimeIndex.is_sane(content)


class Opened:
    def __init__(self) -> None:
        self.referenced = False
        self.is_open = True

    def evict(self) -> None:
        self.is_open = False


def test_given_more_open_than_allowed_when_one_is_admitted_then_one_that_nobody_used_goes() -> None:
    cache = DescriptorCache(capacity=3)
    entries = [Opened() for _ in range(3)]
    for entry in entries:
        cache.admit(entry)
    entries[0].referenced = entries[2].referenced = True
    entries[1].referenced = False

    cache.admit(Opened())

    assert [entry.is_open for entry in entries] == [True, False, True]


def test_given_all_in_use_when_one_is_admitted_then_the_bound_still_holds() -> None:
    cache = DescriptorCache(capacity=3)
    entries = [Opened() for _ in range(50)]
    for entry in entries:
        cache.admit(entry)

    assert sum(entry.is_open for entry in entries) == 3
