"""Records as columns, compiled and pure under the same tests, against `iterate`, each other, and Arrow itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.protocol.raw_records import BeforeForbiddenPage, a_record, varint

from penstock.protocol.batch import (
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    BatchHeader,
    Codec,
    assemble,
    read_header,
)
from penstock.protocol.records import (
    InvalidRecords,
    Record,
    StoredRecord,
    _pure_columns,
    build_batch,
    iterate,
    records_of,
)
from penstock.protocol.records._pure_columns import MAX_COLUMN, Binary, Taken

compiled: ModuleType | None
try:
    from penstock.protocol.records import _columns as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(compiled is None, reason="THE COMPILED COLUMNS KERNEL IS NOT BUILT")
both = pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(_pure_columns, id="pure")]
)

NOW_MS = 1_700_000_000_000
ALL = (-(2**63), 2**63 - 1)
INT64 = st.integers(*ALL)
BLOBS = st.none() | st.binary(max_size=3) | st.binary(min_size=60, max_size=140)
# What is nearly UTF-8: cut, too long a form, a surrogate, above the last character.
BAD_KEYS = [b"\xff", b"a\xc3", b"\xc0\xaf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x92a"]
HEADER_KEYS = st.text(max_size=8).map(str.encode) | st.binary(max_size=8) | st.sampled_from(BAD_KEYS)
HEADERS = st.lists(st.tuples(HEADER_KEYS, BLOBS), max_size=3)


class Written(NamedTuple):
    """A record and how many offsets compaction took away in front of it."""

    gap: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]


RECORDS = st.lists(
    st.builds(Written, st.sampled_from([0, 0, 1, 200]), st.integers(-5, 2**40), BLOBS, BLOBS, HEADERS), max_size=9
)
BATCHES = st.lists(st.tuples(RECORDS, st.booleans()), max_size=5)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def a_batch(
    records: Sequence[Written], *, base_offset: int = 0, is_log_append_time: bool = False, **fields: int
) -> bytearray:
    section, offset_delta = bytearray(), -1
    for record in records:
        offset_delta += 1 + record.gap
        section += a_record(
            offset_delta=offset_delta,
            timestamp_delta=record.timestamp_delta,
            key=nullable(record.key),
            value=nullable(record.value),
            headers=varint(len(record.headers)) + b"".join(nullable(part) for pair in record.headers for part in pair),
        )
    attributes = LOG_APPEND_TIME_BIT if is_log_append_time else 0
    return assemble(
        a_header(
            base_offset=base_offset,
            batch_length=HEADER_BYTES - LENGTH_END + len(section),
            attributes=attributes,
            last_offset_delta=max(offset_delta, 0) + 3,
            records_count=len(records),
        )._replace(**fields),
        section,
    )


def a_header(**fields: int) -> BatchHeader:
    sound = BatchHeader(0, 0, 0, MAGIC, 0, 0, 0, NOW_MS, NOW_MS + 7, -1, -1, -1, 1)
    return sound._replace(**fields)


def batches_of(groups: list[tuple[list[Written], bool]]) -> list[bytearray]:
    batches, base_offset = [], 100
    for records, is_log_append_time in groups:
        batches.append(a_batch(records, base_offset=base_offset, is_log_append_time=is_log_append_time))
        base_offset = read_header(batches[-1]).next_offset
    return batches


def add(columns: Any, batch: bytearray, first_offset: int = ALL[0], end_offset: int = ALL[1]) -> None:
    header = read_header(batch)
    columns.add(records_of(batch, 0, header), header, first_offset, end_offset)


def entries_of(column: Binary) -> list[bytes | None]:
    ends = array("i", bytes(column.offsets))
    assert ends[0] == 0
    assert ends[-1] == len(column.data)
    assert len(ends) == column.entries + 1
    entries: list[bytes | None] = [bytes(column.data[start:end]) for start, end in pairwise(ends)]
    if column.validity is not None:
        assert len(column.validity) == (len(entries) + 7) // 8
        bits = int.from_bytes(bytes(column.validity), "little")
        assert bits < 1 << len(entries)
        assert bits != (1 << len(entries)) - 1  # or there would be none
        for index, entry in enumerate(entries):
            if not bits >> index & 1:
                assert entry == b""
                entries[index] = None
    return entries


def rows_of(taken: Taken) -> list[StoredRecord]:
    keys, values = entries_of(taken.keys), entries_of(taken.values)
    headers: list[list[tuple[str, bytes | None]]] = [[] for _ in range(taken.rows)]
    if taken.headers is not None:
        ends = array("i", bytes(taken.headers.offsets))
        header_keys = [key.decode() for key in entries_of(taken.headers.keys) if key is not None]
        pairs = list(zip(header_keys, entries_of(taken.headers.values), strict=True))
        assert (ends[0], ends[-1], len(ends)) == (0, len(pairs), taken.rows + 1)
        headers = [pairs[start:end] for start, end in pairwise(ends)]
    offsets, timestamps = array("q", bytes(taken.offsets)), array("q", bytes(taken.timestamps))
    return [StoredRecord(*row) for row in zip(offsets, timestamps, keys, values, headers, strict=True)]


def size_of(rows: list[StoredRecord]) -> int:
    parts: list[bytes | None] = []
    for row in rows:
        parts += [row.key, row.value, *(part for key, value in row.headers for part in (key.encode(), value))]
    return sum(len(part) for part in parts if part is not None)


def outcome(columns: Any, section: bytes | memoryview, header: BatchHeader, *asked: int) -> Any:
    """What was added, or the words that it was refused with."""
    try:
        columns.add(section, header, *(asked or ALL))
    except (InvalidRecords, OverflowError) as refused:
        assert columns.rows == 0
        return str(refused)
    return rows_of(columns.take())


# --- what is right ---


@both
@given(groups=BATCHES, first=st.integers(95, 400), length=st.integers(0, 600), with_headers=st.booleans())
@settings(max_examples=80, deadline=None)
def test_given_any_batches_then_the_columns_hold_what_iterate_gives_of_the_offsets_asked_for(
    kernel: ModuleType, groups: list[tuple[list[Written], bool]], first: int, length: int, with_headers: bool
) -> None:
    batches = batches_of(groups)
    wanted = [row for batch in batches for row in iterate(batch) if first <= row.offset < first + length]
    if not with_headers:
        wanted = [row._replace(headers=[]) for row in wanted]
    columns = kernel.Columns(with_headers=with_headers)

    for batch in batches:
        add(columns, batch, first, first + length)

    assert (columns.rows, columns.size) == (len(wanted), size_of(wanted))
    taken = columns.take()
    assert (taken.headers is not None) == with_headers
    assert rows_of(taken) == wanted


@both
@pytest.mark.parametrize(
    ("count", "codec"), [*((count, Codec.NONE) for count in (1, 7, 8, 9, 5_000)), *((99, codec) for codec in Codec)]
)
def test_given_a_batch_of_any_size_and_codec_then_every_record_is_there(
    kernel: ModuleType, count: int, codec: Codec
) -> None:
    batch = build_batch(
        [
            Record(
                None if number % 8 == 3 else b"k%d" % number,
                None if number % 20 == 7 else b"v" * (number % 9),
                [("größe", None), ("h", b"%d" % number)][: number % 3],
                NOW_MS + number,
            )
            for number in range(count)
        ],
        base_offset=5,
        codec=codec,
    )
    columns = kernel.Columns()

    add(columns, batch)

    assert rows_of(columns.take()) == list(iterate(batch))


@both
def test_given_nothing_then_the_columns_are_empty_and_none_is_null(kernel: ModuleType) -> None:
    taken = kernel.Columns().take()

    assert rows_of(taken) == []
    assert taken.keys.validity is taken.values.validity is None
    assert bytes(taken.keys.offsets) == bytes(taken.headers.offsets) == bytes(4)


@both
@given(first=BATCHES, second=BATCHES)
@settings(max_examples=40, deadline=None)
def test_given_columns_that_were_taken_then_they_stay_as_they_are_and_the_next_begin_anew(
    kernel: ModuleType, first: list[tuple[list[Written], bool]], second: list[tuple[list[Written], bool]]
) -> None:
    columns = kernel.Columns()
    taken = []

    for groups in (first, second):
        for batch in batches_of(groups):
            add(columns, batch)
        taken.append(columns.take())
        assert (columns.rows, columns.size) == (0, 0)
    del columns

    for groups, each in zip((first, second), taken, strict=True):
        assert rows_of(each) == [row for batch in batches_of(groups) for row in iterate(batch)]
        assert memoryview(each.values.data).readonly


@both
@given(key=st.binary(max_size=12) | st.sampled_from(BAD_KEYS))
@settings(max_examples=200, deadline=None)
@example(key="a\x00é€\U0010ffff".encode())
@example(key=b"\xed\x9f\xbf\xee\x80\x80")  # around the surrogates
@example(key=b"\xf4\x8f\xbf\xbf")
def test_given_a_header_key_that_may_not_be_utf8_then_what_arrow_gets_is(kernel: ModuleType, key: bytes) -> None:
    columns = kernel.Columns()

    add(columns, a_batch([Written(0, 0, None, None, [(b"before", b"1"), (key, None), (b"after", b"")])]))

    headers = columns.take().headers
    assert entries_of(headers.keys) == [b"before", key.decode(errors="replace").encode(), b"after"]
    assert entries_of(headers.values) == [b"1", None, b""]


# --- what is wrong ---

BAD = {
    "cut": (a_record()[:-1], {}, "record 0: its length does not fit"),
    "nothing": (b"", {}, "record 0: the batch ends"),
    "more": (a_record(), {"records_count": 2, "last_offset_delta": 9}, "record 1: the batch ends"),
    "fewer": (a_record() * 2, {}, "record 0: bytes follow"),
    "none": (a_record(), {"records_count": 0}, "record -1: bytes follow"),
    "key": (a_record(key=varint(2**31 - 1)), {}, "record 0: the key's length"),
    "value": (a_record(value=varint(1000)), {}, "record 0: the value's length"),
    "count of headers": (a_record(headers=varint(2**31 - 1)), {}, "record 0: the number of headers"),
    "null header key": (a_record(headers=varint(1) + varint(-1) + varint(-1)), {}, "record 0: a header's key"),
    "header value": (a_record(headers=varint(1) + varint(0) + varint(99)), {}, "record 0: a header's value"),
    "offset beyond the batch": (a_record(offset_delta=1), {}, "record 0: its offset delta"),
    "offset below the batch": (a_record(offset_delta=-1), {}, "record 0: its offset delta"),
    "offset twice": (a_record() * 2, {"records_count": 2, "last_offset_delta": 9}, "record 1: its offset delta"),
    "offset beyond 64 bits": (
        a_record(offset_delta=1),
        {"base_offset": 2**63 - 1, "last_offset_delta": 9},
        "record 0: its offset delta",
    ),
    "timestamp beyond 64 bits": (a_record(timestamp_delta=1), {"base_timestamp": 2**63 - 1}, "record 0: its timestamp"),
}


@both
@pytest.mark.parametrize("name", BAD)
def test_given_a_bad_record_then_it_is_said_which_and_none_of_its_batch_is_added(kernel: ModuleType, name: str) -> None:
    section, fields, words = BAD[name]
    header = a_header(**fields)
    columns, sound = kernel.Columns(), a_batch([Written(0, 0, None, b"1", [])] * 3)
    add(columns, sound)

    with pytest.raises(InvalidRecords, match=words):
        columns.add(section, header, *ALL)
    with pytest.raises(InvalidRecords, match=words):
        columns.add(section, header, 0, 0)

    assert rows_of(columns.take()) == list(iterate(sound))


@both
def test_given_log_append_time_then_nobody_minds_the_records_own(kernel: ModuleType) -> None:
    columns = kernel.Columns()

    columns.add(a_record(timestamp_delta=1), a_header(base_timestamp=2**63 - 1, attributes=LOG_APPEND_TIME_BIT), *ALL)

    assert [row.timestamp for row in rows_of(columns.take())] == [NOW_MS + 7]


@both
@given(before=RECORDS, refused=RECORDS.filter(bool), after=RECORDS)
@settings(max_examples=50, deadline=None)
def test_given_a_batch_that_ends_badly_then_the_columns_are_as_if_it_had_not_been(
    kernel: ModuleType, before: list[Written], refused: list[Written], after: list[Written]
) -> None:
    columns = kernel.Columns()
    add(columns, a_batch(before))
    size = columns.size

    with pytest.raises(InvalidRecords):
        add(columns, a_batch(refused, records_count=len(refused) + 1))

    assert (columns.rows, columns.size) == (len(before), size)
    add(columns, a_batch(after, base_offset=10_000))
    wanted = [*iterate(a_batch(before)), *iterate(a_batch(after, base_offset=10_000))]
    assert rows_of(columns.take()) == wanted


@both
@pytest.mark.parametrize(
    "record",
    [
        Written(0, 0, b"12345", None, []),
        Written(0, 0, None, b"12345", []),
        Written(0, 0, None, None, [(b"12345", None)]),
        Written(0, 0, None, None, [(b"\xff\xff", None)]),  # six bytes, replaced
        Written(0, 0, None, None, [(b"", b"12345")]),
        Written(0, 0, None, None, [(b"", None)] * 5),
    ],
)
def test_given_columns_that_are_full_then_what_is_there_can_be_taken_and_the_rest_added(
    kernel: ModuleType, record: Written
) -> None:
    columns = kernel.Columns(limit=9)
    batch = a_batch([record])
    add(columns, batch)

    for _ in range(2):
        with pytest.raises(OverflowError, match="9 bytes and entries"):
            add(columns, batch)

    assert rows_of(columns.take()) == list(iterate(batch))
    add(columns, batch)
    assert columns.rows == 1


@both
def test_given_more_rows_than_a_column_may_have_then_it_is_full(kernel: ModuleType) -> None:
    columns = kernel.Columns(limit=9, with_headers=False)
    add(columns, a_batch([Written(0, 0, None, None, [(b"not counted", None)])] * 9))

    with pytest.raises(OverflowError):
        add(columns, a_batch([Written(0, 0, None, None, [])]))

    assert columns.rows == 9
    for limit in (0, MAX_COLUMN + 1):
        with pytest.raises(ValueError, match="limit"):
            kernel.Columns(limit=limit)


@st.composite
def damaged_sections(draw: st.DrawFn) -> tuple[bytes, BatchHeader]:
    batch = a_batch(draw(RECORDS))
    section = batch[HEADER_BYTES:]
    for _ in range(draw(st.integers(0, 3))):
        if section:
            section[draw(st.integers(0, len(section) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, 8))
    return bytes(section[: len(section) - cut] if cut < 4 else section), read_header(batch)


ANY_SECTIONS = st.tuples(st.binary(max_size=40), st.builds(a_header, records_count=st.integers(-1, 3)))


@needs_compiled
@given(
    damaged=damaged_sections() | ANY_SECTIONS, base_offset=st.just(0) | INT64, base_timestamp=st.just(NOW_MS) | INT64,
    last_offset_delta=st.none() | st.integers(-(2**31), 2**31 - 1), limit=st.sampled_from([5, 100, MAX_COLUMN]),
    end_offset=st.just(ALL[1]) | st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_given_damaged_records_then_the_twins_agree_on_every_word_and_never_read_past_the_end(
    damaged: tuple[bytes, BatchHeader], base_offset: int, base_timestamp: int, last_offset_delta: int | None,
    limit: int, end_offset: int,
) -> None:  # fmt: skip
    """Where a read past the end would kill the process."""
    assert compiled is not None
    section, header = damaged
    header = header._replace(base_offset=base_offset, base_timestamp=base_timestamp)
    if last_offset_delta is not None:
        header = header._replace(last_offset_delta=last_offset_delta)
    with BeforeForbiddenPage(section) as view:
        found = outcome(compiled.Columns(limit=limit), view, header, ALL[0], end_offset)
    assert found == outcome(_pure_columns.Columns(limit=limit), section, header, ALL[0], end_offset)


@both
def test_given_a_long_section_then_it_is_added_or_refused_as_a_short_one_is(kernel: ModuleType) -> None:
    """More than a megabyte: a bad header key, for which the GIL is taken back, and then a bad record."""
    columns = kernel.Columns()
    big = Written(0, 0, b"k", bytes(1 << 20), [(b"\xff", b"1"), (b"fine", None)])
    batch = a_batch([big, big])
    add(columns, batch)
    assert rows_of(columns.take()) == list(iterate(batch))

    with pytest.raises(InvalidRecords, match="record 2: the batch ends"):
        add(columns, a_batch([big, big], records_count=3))

    assert (columns.rows, columns.size) == (0, 0)


@needs_compiled
def test_given_two_threads_on_the_same_columns_then_one_is_refused_and_no_record_is_spoilt() -> None:
    """Each either waits for the GIL and goes on, or is told; what was added is whole."""
    assert compiled is not None
    columns = compiled.Columns()
    batch = a_batch([Written(0, 0, b"k", bytes(1 << 18), [])] * 8)
    added, refused = [], []

    def keep_adding() -> None:
        for _ in range(10):
            try:
                add(columns, batch)
                added.append(8)
            except RuntimeError as told:
                refused.append(str(told))

    threads = [threading.Thread(target=keep_adding) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(refused) <= {"another thread is adding to these columns"}
    assert columns.rows == sum(added) == 8 * (20 - len(refused))
    assert columns.size == columns.rows * (1 + (1 << 18))


# --- Arrow ---


def as_arrow(taken: Taken) -> Any:
    """A RecordBatch around the buffers, as whoever uses these columns makes it."""
    pa = pytest.importorskip("pyarrow")

    def binary(column: Binary, kind: Any) -> Any:
        buffers = [each if each is None else pa.py_buffer(each) for each in column]
        return pa.Array.from_buffers(kind, column.entries, buffers)

    def numbers(buffer: Any, kind: Any) -> Any:
        return pa.Array.from_buffers(kind, taken.rows, [None, pa.py_buffer(buffer)])

    assert taken.headers is not None
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    pairs = pa.Array.from_buffers(
        pair,
        taken.headers.keys.entries,
        [None],
        children=[binary(taken.headers.keys, pa.string()), binary(taken.headers.values, pa.binary())],
    )
    headers = pa.Array.from_buffers(
        pa.list_(pair), taken.rows, [None, pa.py_buffer(taken.headers.offsets)], children=[pairs]
    )
    return pa.RecordBatch.from_arrays(
        [
            numbers(taken.offsets, pa.int64()),
            numbers(taken.timestamps, pa.int64()),
            binary(taken.keys, pa.binary()),
            binary(taken.values, pa.binary()),
            headers,
        ],
        names=list(StoredRecord._fields),
    )


@both
@given(groups=BATCHES)
@settings(max_examples=100, deadline=None)
def test_given_arrow_around_the_buffers_then_it_finds_them_sound_and_reads_the_same_records(
    kernel: ModuleType, groups: list[tuple[list[Written], bool]]
) -> None:
    columns = kernel.Columns()
    for batch in batches_of(groups):
        add(columns, batch)
    found = as_arrow(columns.take())
    del columns

    found.validate(full=True)

    rows = [
        StoredRecord(**{**row, "headers": [(each["key"], each["value"]) for each in row["headers"]]})
        for row in found.to_pylist()
    ]
    assert rows == [row for batch in batches_of(groups) for row in iterate(batch)]


# --- which kernel serves ---


@pytest.mark.parametrize(
    ("setting", "module"), [pytest.param("", "_columns", marks=needs_compiled), ("1", "_pure_columns")]
)
def test_given_the_setting_then_that_kernel_serves(setting: str, module: str) -> None:
    program = "from penstock.protocol.records.columns import Columns; print(Columns.__module__)"
    environment = {**os.environ, "PENSTOCK_PURE_RECORDS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}

    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert said.stdout.strip() == f"penstock.protocol.records.{module}"
