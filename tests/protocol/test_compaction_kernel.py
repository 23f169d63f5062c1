"""Compaction's passes, compiled and pure under the same tests, and against each other on the same bytes."""

from __future__ import annotations

import hashlib
from array import array
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.batch import (
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    BatchHeader,
    Codec,
    CorruptBatch,
    assemble,
    crc_is_valid,
    read_header,
    seal,
    split,
)
from penstock.protocol.records import InvalidRecords, Record, StoredRecord, _pure_compaction, build_batch, iterate
from penstock.protocol.records._pure_compaction import Stop

compiled: ModuleType | None
try:
    from penstock.protocol.records import _compaction as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(compiled is None, reason="THE COMPILED COMPACTION KERNEL IS NOT BUILT")
both = pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(_pure_compaction, id="pure")]
)

NOW_MS = 1_700_000_000_000
HASH_KEY = bytes(range(16))
KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"seven77", b"eight888", b"k" * 200])
VALUES = st.none() | st.binary(max_size=3) | st.binary(min_size=120, max_size=140)
TIMESTAMPS = st.integers(-1, 2**43) | st.sampled_from([2**60, -(2**60)])
RECORDS = st.lists(st.builds(Record, KEYS, VALUES, st.just((("h", b"x"),)), TIMESTAMPS), min_size=1, max_size=5)


def batches(groups: list[list[Record]], **options: Any) -> bytearray:
    content, offset = bytearray(), 0
    for records in groups:
        content += build_batch(records, base_offset=offset, **options)
        offset += len(records)
    return content


def stored(content: bytes | bytearray) -> list[StoredRecord]:
    return [record for position, _ in split(content) for record in iterate(content, position)]


def cleaned(
    kernel: ModuleType, content: bytearray, *, end: int = 2**40, now_ms: int = NOW_MS, limit: int = 1000,
    kept: tuple[int, ...] = (),
) -> bytearray:  # fmt: skip
    offset_map = kernel.OffsetMap(limit + 1, limit, HASH_KEY)
    assert kernel.add_batches(offset_map, content, 0, len(content), 0) == (len(content), Stop.CUT)
    rewriter = kernel.Rewriter(offset_map, 0, 100, end, now_ms, 5_000, array("q", kept))
    out = bytearray(2 * len(content) + 10_000)
    position, size, stop = rewriter.rewrite(content, 0, len(content), out, 0)
    assert (position, stop) == (len(content), Stop.CUT)
    assert rewriter.size == size
    return out[:size]


@needs_compiled
def test_given_known_vectors_when_hashed_then_it_is_siphash_and_crc32c() -> None:
    assert compiled is not None
    assert compiled.hash_of(HASH_KEY, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert compiled.hash_of(HASH_KEY, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"
    assert len({compiled.hash_of(HASH_KEY, bytes(size)) for size in range(64)}) == 64
    for size in (*range(40), 1000):
        data = hashlib.shake_128(b"%d" % size).digest(size)
        assert compiled.crc32c_of_both(data) == (crc32c(data), crc32c(data))


@both
def test_given_a_map_when_filled_then_it_holds_what_it_was_given_up_to_its_limit(kernel: ModuleType) -> None:
    offset_map = kernel.OffsetMap(101, 100, HASH_KEY)
    for number in range(100):
        assert offset_map.put(b"key %d" % number, number)

    assert not offset_map.put(b"one more", 100)
    assert offset_map.put(b"key 7", 2**62)
    assert offset_map.entries == 100
    assert offset_map.get(b"key 7") == 2**62
    assert [offset_map.get(b"key %d" % number) for number in range(8, 100)] == list(range(8, 100))
    assert offset_map.get(b"one more") == -1
    with pytest.raises(ValueError, match="free slot"):
        kernel.OffsetMap(5, 5, HASH_KEY)


@both
@given(groups=st.lists(RECORDS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_given_any_records_when_cleaned_then_the_last_of_each_key_stays_as_it_was(
    kernel: ModuleType, groups: list[list[Record]]
) -> None:
    content = batches(groups)
    before = stored(content)
    last = {record.key: record.offset for record in before if record.key is not None}

    after = cleaned(kernel, content)

    assert stored(after) == [each for each in before if each.key is not None and each.offset == last[each.key]]
    for position, header in split(after):
        assert crc_is_valid(after, position, header)
        assert header.max_timestamp == max(each.timestamp for each in iterate(after, position))


@needs_compiled
@given(
    groups=st.lists(RECORDS, min_size=1, max_size=6), end=st.integers(0, 12), kept=st.sets(st.integers(0, 12)),
    producer=st.sampled_from([-1, 5]), later_ms=st.sampled_from([0, 4_999, 5_000, 5_001]),
    removable_end=st.integers(0, 15),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_given_the_same_bytes_when_cleaned_twice_then_both_kernels_write_the_same(
    groups: list[list[Record]], end: int, kept: set[int], producer: int, later_ms: int, removable_end: int
) -> None:
    assert compiled is not None
    content = batches(groups, producer_id=producer, producer_epoch=0, base_sequence=0)
    starts = {header.base_offset for _, header in split(content)}
    end = max((start for start in starts if start <= end), default=0)
    results = []
    for kernel in (compiled, _pure_compaction):
        offset_map = kernel.OffsetMap(51, 50, HASH_KEY)
        kernel.add_batches(offset_map, content, 0, len(content), 0)
        seen = [offset_map.entries]
        source = content
        for now_ms in (NOW_MS, NOW_MS + later_ms):
            rewriter = kernel.Rewriter(offset_map, 0, 100, end, now_ms, 5_000, array("q", sorted(kept)), removable_end)
            out = bytearray(3 * len(content) + 10_000)
            seen.append(rewriter.rewrite(source, 0, len(source), out, 0))
            source = out[: rewriter.size]
            seen += [source, rewriter.indexes(), rewriter.max_timestamp, rewriter.offset_of_max_timestamp]
            seen += [rewriter.records_read, rewriter.records_kept]
        results.append(seen)
    assert results[0] == results[1]


@both
@given(records=RECORDS)
@settings(max_examples=40, deadline=None)
def test_given_a_tombstone_when_cleaned_twice_then_the_horizon_is_written_once_and_obeyed(
    kernel: ModuleType, records: list[Record]
) -> None:
    content = batches([[*records, Record(b"deleted", None, (), 77)]])

    first = cleaned(kernel, content)
    again = cleaned(kernel, first, now_ms=NOW_MS + 4_999)
    late = cleaned(kernel, again, now_ms=NOW_MS + 5_000)

    header = read_header(first)
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == NOW_MS + 5_000
    assert again == first
    assert stored(late) == [each for each in stored(first) if each.value is not None]


@both
def test_given_nothing_left_when_cleaned_then_only_a_batch_that_is_asked_for_stays_empty(kernel: ModuleType) -> None:
    content = batches([[Record(None, b"1", (), 5)], [Record(None, b"2", (), 6)] * 2], producer_id=8, producer_epoch=1,
                      base_sequence=4)  # fmt: skip

    after = cleaned(kernel, content, kept=(2,))

    header = read_header(after)
    assert len(after) == HEADER_BYTES
    assert (header.base_offset, header.last_offset, header.records_count) == (1, 2, 0)
    assert (header.base_timestamp, header.max_timestamp, header.base_sequence, header.producer_id) == (-1, 6, 4, 8)
    assert crc_is_valid(after, 0, header)


@both
def test_given_batches_of_others_when_passed_then_both_passes_stop_in_front_of_them(kernel: ModuleType) -> None:
    plain = build_batch([Record(b"a", b"1", (), 5)])
    packed = build_batch([Record(b"a", b"2", (), 5)], base_offset=1, codec=Codec.LZ4)
    bound = build_batch([Record(b"a", b"3", (), 5)], base_offset=1, is_transactional=True)
    for other, stop in ((packed, Stop.COMPRESSED), (bound, Stop.TRANSACTIONAL)):
        content = plain + other
        offset_map = kernel.OffsetMap(11, 10, HASH_KEY)
        assert kernel.add_batches(offset_map, content, 0, len(content), 0) == (len(plain), stop)
        rewriter = kernel.Rewriter(offset_map, 0, 100, 10, NOW_MS, 1, array("q"))
        out = bytearray(1000)
        assert rewriter.rewrite(content, 0, len(content), out, 0) == (len(plain), len(plain), stop)
        # Behind the end of the map it is none of their business what a batch is.
        rewriter = kernel.Rewriter(offset_map, 0, 100, 1, NOW_MS, 1, array("q"))
        assert rewriter.rewrite(content, 0, len(content), out, 0) == (len(content), len(content), Stop.CUT)


@both
def test_given_too_little_of_anything_when_passed_then_the_batch_waits(kernel: ModuleType) -> None:
    content = batches([[Record(b"a", b"1", (), 5)], [Record(b"b", b"2", (), 5), Record(b"c", b"3", (), 5)]])
    first = read_header(content).size
    small = kernel.OffsetMap(3, 2, HASH_KEY)
    assert kernel.add_batches(small, content, 0, len(content), 0) == (first, Stop.MAP_FULL)
    assert kernel.add_batches(small, content, 0, first + 70, 0) == (first, Stop.CUT)
    assert kernel.add_batches(small, content, 0, len(content), 99) == (len(content), Stop.CUT)
    rewriter = kernel.Rewriter(small, 0, 100, 10, NOW_MS, 1, array("q"))
    assert rewriter.rewrite(content, 0, len(content), bytearray(first + 11), 0) == (first, first, Stop.NO_ROOM)


def damaged(content: bytes, **fields: int) -> bytearray:
    header = read_header(content)._replace(**fields)
    return assemble(header, content[HEADER_BYTES:])


BAD = {
    "magic": (lambda content: content[:16] + b"\x01" + content[17:], "makes no sense"),
    "length": (lambda content: content[:8] + bytes(4) + content[12:], "makes no sense"),
    "delta": (lambda content: damaged(content, last_offset_delta=-1), "makes no sense"),
    "crc": (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "CRC-32C"),
    "count": (lambda content: damaged(content, records_count=9_999), "9999 records do not fit"),
    "negative": (lambda content: damaged(content, records_count=-1), "-1 records do not fit"),
    "fewer": (lambda content: damaged(content, records_count=1), "record 0: bytes follow"),
    "more": (lambda content: damaged(content, records_count=3), "record 2: the batch ends"),
    "offset": (lambda content: damaged(content, last_offset_delta=0), "record 1: its offset delta"),
}


@both
@pytest.mark.parametrize("name", BAD)
def test_given_damage_when_passed_then_it_is_said_where_and_what(kernel: ModuleType, name: str) -> None:
    damage, words = BAD[name]
    sound = bytes(build_batch([Record(b"a", b"1" * 20, (), 5), Record(b"b", b"2" * 20, (), 5)]))
    content = sound + bytes(damage(sound))
    offset_map = kernel.OffsetMap(11, 10, HASH_KEY)

    with pytest.raises(CorruptBatch, match=words) as first:
        kernel.add_batches(offset_map, content, 0, len(content), 0)
    with pytest.raises(CorruptBatch, match=words) as second:
        kernel.Rewriter(offset_map, 0, 100, 10, NOW_MS, 1, array("q")).rewrite(
            content, 0, len(content), bytearray(5000), 0
        )

    assert first.value.position == second.value.position == len(sound)


@both
@given(noise=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), records=RECORDS)
@settings(max_examples=150, deadline=None)
def test_given_noise_under_a_right_crc_when_passed_then_it_is_refused_or_copied_and_never_more(
    kernel: ModuleType, noise: list[tuple[int, int]], records: list[Record]
) -> None:
    content = build_batch(records)
    for at, byte in noise:
        content[HEADER_BYTES + at % (len(content) - HEADER_BYTES)] = byte
    seal(content, 0)
    try:
        after = cleaned(kernel, content)
    except (CorruptBatch, InvalidRecords):
        return
    assert len(after) <= len(content) + 11 * len(records)


@both
def test_given_an_opened_section_when_filtered_then_the_header_to_write_is_told(kernel: ModuleType) -> None:
    batch = build_batch([Record(b"a", b"1", (), 5), Record(b"a", b"2", (), 4), Record(b"b", b"3", (), 3)])
    header: BatchHeader = read_header(batch)
    offset_map = kernel.OffsetMap(11, 10, HASH_KEY)
    section = bytes(batch[HEADER_BYTES:])
    rewriter = kernel.Rewriter(offset_map, 0, 100, 10, NOW_MS, 1, array("q", [2]))
    assert rewriter.filter_records(section, header) is None
    assert kernel.add_records(offset_map, section, header, 0)

    filtered = rewriter.filter_records(section, header)

    assert filtered is not None
    assert (filtered.records_count, filtered.max_timestamp, filtered.base_timestamp) == (2, 4, 5)
    assert section.endswith(bytes(filtered.section))
    assert rewriter.keeps_empty(header)
    assert (rewriter.records_read, rewriter.records_kept) == (6, 5)
    assert not kernel.add_records(kernel.OffsetMap(2, 1, HASH_KEY), section, header, 0)
    with pytest.raises(InvalidRecords):
        rewriter.filter_records(section[:-1], header)


# Passing over


def live_positions(kernel: ModuleType, content: bytearray, limit: int = 1000) -> list[int]:
    offset_map = kernel.OffsetMap(limit + 1, limit, HASH_KEY)
    kernel.add_batches(offset_map, content, 0, len(content), 0)
    found, position = [], kernel.pass_over(offset_map, content, 0, len(content))
    while position < len(content):
        found.append(position)
        position += read_header(content, position).size
        position = kernel.pass_over(offset_map, content, position, len(content))
    return found


@both
@given(groups=st.lists(RECORDS, min_size=1, max_size=8))
def test_given_any_batches_when_passed_over_then_those_are_left_that_have_the_last_record_of_a_key_or_one_without(
    kernel: ModuleType, groups: list[list[Record]]
) -> None:
    content = batches(groups)
    last = {record.key: record.offset for record in stored(content) if record.key is not None}

    expected = [
        position
        for position, _ in split(content)
        if any(each.key is None or last[each.key] == each.offset for each in iterate(content, position))
    ]

    assert live_positions(kernel, content) == expected
    assert kernel.end_offset(content) == sum(map(len, groups))


@both
def test_given_batches_that_are_left_to_the_caller_or_damaged_when_passed_over_then_they_are_left(
    kernel: ModuleType,
) -> None:
    same = [Record(b"a", b"1", (), 1)]
    first, last = build_batch(same), build_batch(same, base_offset=2)
    compressed = build_batch(same, base_offset=1, codec=Codec.GZIP)
    transactional = build_batch(same, base_offset=1, is_transactional=True, producer_id=1, producer_epoch=0)
    damaged = build_batch(same, base_offset=1)
    damaged[HEADER_BYTES] = 1  # the record has no length any more
    offset_map = kernel.OffsetMap(3, 2, HASH_KEY)
    kernel.add_batches(offset_map, last, 0, len(last), 0)

    for middle in (compressed, transactional, damaged):
        content = first + middle + last
        assert kernel.pass_over(offset_map, content, 0, len(content)) == len(first)
        assert kernel.end_offset(content) == 3
        assert kernel.end_offset(content[:-1]) == 2
    no_batch = first + bytes(HEADER_BYTES)
    assert kernel.pass_over(offset_map, no_batch, 0, len(no_batch)) == len(first)
    assert kernel.end_offset(no_batch) == 1
    assert kernel.end_offset(b"") == -1


@needs_compiled
def test_given_positions_outside_the_buffer_when_passed_over_then_they_are_refused() -> None:
    assert compiled is not None
    offset_map = compiled.OffsetMap(3, 2, HASH_KEY)

    for start, end in ((-1, 0), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="within"):
            compiled.pass_over(offset_map, b"x", start, end)
