"""The record kernel, compiled and pure under the same tests, against aiokafka, kio and each other."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as KioRecord
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64
from tests.protocol.raw_records import BeforeForbiddenPage, a_record, varint

from penstock.protocol import records
from penstock.protocol.batch import HEADER_BYTES, Codec, crc_is_valid, read_header
from penstock.protocol.records import SPAN_FIELDS, InvalidRecords, Record, RecordsInfo, _pure, build_batch, iterate

compiled: ModuleType | None
try:
    from penstock.protocol.records import _kernel as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(compiled is None, reason="THE COMPILED RECORD KERNEL IS NOT BUILT")
both = pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(_pure, id="pure")]
)

NOW_MS = 1_700_000_000_000
INT64 = st.integers(-(2**63), 2**63 - 1)
BLOBS = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BLOBS), max_size=3)
TIMESTAMPS = st.integers(0, 2**42)
RECORDS = st.lists(st.builds(Record, BLOBS, BLOBS, HEADERS, TIMESTAMPS), min_size=1, max_size=8)
CODECS = pytest.mark.parametrize("codec", list(Codec))


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except InvalidRecords as refused:
        return refused.index, refused.reason


# --- reading what is right ---


@both
@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_given_any_records_when_encoded_then_spans_find_every_part(
    kernel: ModuleType, given_records: list[Record]
) -> None:
    section = kernel.encode_records(given_records, given_records[0].timestamp)

    rows = kernel.spans(section, len(given_records))

    def part(start: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(section[start : start + length])

    for index, record in enumerate(given_records):
        offset_delta, timestamp_delta, key, key_length, value, value_length, headers, count = rows[
            index * SPAN_FIELDS : (index + 1) * SPAN_FIELDS
        ]
        assert offset_delta == index
        assert timestamp_delta == record.timestamp - given_records[0].timestamp
        assert part(key, key_length) == record.key
        assert part(value, value_length) == record.value
        assert kernel.headers_of(section, headers, count) == list(record.headers)


@both
@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_given_any_records_when_validated_then_their_times_and_keys_are_told(
    kernel: ModuleType, given_records: list[Record]
) -> None:
    section = kernel.encode_records(given_records, NOW_MS)

    info = kernel.validate(section, len(given_records), NOW_MS)

    times = [record.timestamp for record in given_records]
    keyless = [index for index, record in enumerate(given_records) if record.key is None]
    assert isinstance(info, RecordsInfo)
    assert info == RecordsInfo(
        min(times), max(times), times.index(min(times)), times.index(max(times)), keyless[0] if keyless else -1
    )


@both
def test_given_records_without_timestamp_when_validated_then_the_minimum_leaves_them_out(kernel: ModuleType) -> None:
    none, early, late = Record(b"k", b""), Record(b"k", b"", (), 5), Record(b"k", b"", (), 9)

    mixed = kernel.validate(kernel.encode_records([none, late, early], -1), 3, -1)
    without = kernel.validate(kernel.encode_records([none, none], -1), 2, -1)

    assert mixed == RecordsInfo(5, 9, 2, 1, -1)
    assert without == RecordsInfo(-1, -1, 0, 0, -1)


@both
def test_given_the_widest_numbers_when_encoded_then_they_are_read_again(kernel: ModuleType) -> None:
    far = [Record(None, b"", (), 0), Record(None, b"", (), 2**63 - 1), Record(None, b"", (), -(2**63))]

    section = kernel.encode_records(far, 0)

    assert kernel.validate(section, 3, 0) == RecordsInfo(-(2**63), 2**63 - 1, 2, 1, 0)
    assert kernel.spans(section, 3)[1::SPAN_FIELDS].tolist() == [0, 2**63 - 1, -(2**63)]


@both
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(bytearray(data))])
def test_given_any_kind_of_buffer_then_the_answer_is_the_same(kernel: ModuleType, wrap: Any) -> None:
    section = wrap(a_record(headers=b"\x02\x02h\x02v", key=b"\x02k"))

    assert kernel.validate(section, 1, 7) == RecordsInfo(7, 7, 0, 0, -1)
    assert kernel.spans(section, 1).tolist() == [0, 0, 5, 1, 7, 1, 9, 1]
    assert kernel.headers_of(section, 9, 1) == [("h", b"v")]
    assert kernel.find_timestamp(section, 1, 100, 7, 7) == (100, 7)


@both
def test_given_an_empty_section_then_it_holds_no_record(kernel: ModuleType) -> None:
    assert kernel.spans(b"", 0).tolist() == []
    assert kernel.validate(b"", 0, 5) == RecordsInfo(-1, -1, 0, 0, -1)
    assert outcome(kernel.validate, b"", 1, 5) == (0, _pure.ENDS_EARLY)
    assert kernel.find_timestamp(b"", 0, 0, 0, 0) is None


@both
def test_given_a_gap_in_the_offsets_then_spans_read_it_and_validate_refuses_it(kernel: ModuleType) -> None:
    compacted = a_record(offset_delta=2) + a_record(offset_delta=5)

    assert kernel.spans(compacted, 2)[0::SPAN_FIELDS].tolist() == [2, 5]
    assert outcome(kernel.validate, compacted, 2, 0) == (0, _pure.OFFSET_NOT_NEXT)


@both
@pytest.mark.parametrize(
    ("target_ms", "found"),
    [(0, (40, 100)), (100, (40, 100)), (101, (42, 150)), (150, (42, 150)), (151, (43, 200)), (201, None)],
)
def test_given_times_out_of_order_when_searched_then_the_first_at_or_after_is_found(
    kernel: ModuleType, target_ms: int, found: tuple[int, int] | None
) -> None:
    times = [100, 50, 150, 200, 120]
    section = kernel.encode_records([Record(None, b"", (), time) for time in times], 100)

    assert kernel.find_timestamp(section, len(times), 40, 100, target_ms) == found


@both
def test_given_a_section_of_more_than_a_megabyte_then_it_is_read_alike(kernel: ModuleType) -> None:
    large = [Record(None, bytes(300_000), (), NOW_MS + index) for index in range(4)]
    section = kernel.encode_records(large, NOW_MS)

    assert kernel.validate(section, 4, NOW_MS) == RecordsInfo(NOW_MS, NOW_MS + 3, 0, 3, 0)
    assert kernel.spans(section, 4)[5::SPAN_FIELDS].tolist() == [300_000] * 4
    assert outcome(kernel.validate, section, 5, NOW_MS) == (4, _pure.ENDS_EARLY)
    assert outcome(kernel.spans, section[:-1], 4) == (3, _pure.LENGTH_WRONG)


@both
def test_given_a_header_key_that_is_not_utf8_then_it_is_shown_with_replacement(kernel: ModuleType) -> None:
    assert kernel.headers_of(b"\x04a\xff\x01", 0, 1) == [("a�", None)]


# --- refusing what is wrong ---


FIRST = a_record()
AT_FIRST = [
    (FIRST + b"\x00", _pure.BYTES_LEFT_IN_BATCH),
    (b"", _pure.ENDS_EARLY),
    (b"\x00", _pure.FIELD_CUT),
    (b"\x02\x00", _pure.FIELD_CUT),
    (a_record(length=1000), _pure.LENGTH_WRONG),
    (a_record(length=-1), _pure.LENGTH_WRONG),
    (a_record(length=5), _pure.VALUE_WRONG),
    (a_record(length=6), _pure.FIELD_CUT),
    (a_record(offset_delta=1), _pure.OFFSET_NOT_NEXT),
    (a_record(key=varint(-2)), _pure.KEY_WRONG),
    (a_record(key=varint(100)), _pure.KEY_WRONG),
    (a_record(key=varint(2**31 - 1)), _pure.KEY_WRONG),
    (a_record(value=varint(-2)), _pure.VALUE_WRONG),
    (a_record(value=varint(2)), _pure.VALUE_WRONG),
    (a_record(headers=varint(-1)), _pure.HEADERS_WRONG),
    (a_record(headers=varint(1)), _pure.HEADERS_WRONG),
    (a_record(headers=varint(2**31 - 1) + b"\x00\x01"), _pure.HEADERS_WRONG),
    (a_record(headers=varint(1) + b"\x01\x01"), _pure.HEADER_KEY_WRONG),
    (a_record(headers=varint(1) + varint(9) + b"k"), _pure.HEADER_KEY_WRONG),
    (a_record(headers=varint(1) + b"\x02k" + varint(-2)), _pure.HEADER_VALUE_WRONG),
    (a_record(headers=varint(1) + b"\x02k" + varint(1)), _pure.HEADER_VALUE_WRONG),
    (a_record(headers=varint(1) + b"\x02k"), _pure.FIELD_CUT),
    (a_record(headers=varint(0) + b"\x00"), _pure.BYTES_LEFT_IN_RECORD),
    (a_record(key=b"\xff\xff\xff\xff\x10"), _pure.VARINT_TOO_LONG),
    (a_record(key=b"\x80\x80\x80\x80\x80\x00"), _pure.VARINT_TOO_LONG),
    (varint(15) + b"\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00", _pure.VARINT_TOO_LONG),
    (varint(16) + b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00", _pure.VARINT_TOO_LONG),
    (a_record(timestamp_delta=2**63 - 1), _pure.TIMESTAMP_OVERFLOW),
]
AT_SECOND = [
    (FIRST, _pure.ENDS_EARLY),
    (FIRST + FIRST, _pure.OFFSET_NOT_NEXT),
    (FIRST + a_record(offset_delta=2), _pure.OFFSET_NOT_NEXT),
    (FIRST + a_record(offset_delta=-1), _pure.OFFSET_NOT_NEXT),
    (FIRST + a_record(offset_delta=1)[:-1], _pure.LENGTH_WRONG),
    (FIRST + a_record(offset_delta=1) + b"\x00", _pure.BYTES_LEFT_IN_BATCH),
]


@both
@pytest.mark.parametrize(
    ("section", "reason", "index"), [(*row, 0) for row in AT_FIRST] + [(*row, 1) for row in AT_SECOND]
)
def test_given_one_wrong_field_then_it_is_named(kernel: ModuleType, section: bytes, reason: str, index: int) -> None:
    with pytest.raises(InvalidRecords) as refused:
        kernel.validate(section, index + 1, 1)

    assert (refused.value.index, refused.value.reason) == (index, reason)
    assert str(refused.value) == f"record {index}: {reason}"


@both
@pytest.mark.parametrize("function", ["validate", "spans", "find_timestamp"])
def test_given_a_section_cut_at_any_byte_then_it_is_refused(kernel: ModuleType, function: str) -> None:
    given_records = [Record(b"key", b"v" * 70, [("h", b"x"), ("i", None)], NOW_MS + index) for index in range(3)]
    section = kernel.encode_records(given_records, NOW_MS)
    extra = {"validate": (NOW_MS,), "spans": (), "find_timestamp": (0, NOW_MS, NOW_MS * 2)}[function]

    for end in range(len(section)):
        with pytest.raises(InvalidRecords):
            getattr(kernel, function)(section[:end], 3, *extra)


@both
@pytest.mark.parametrize("count", [2, 1000, 2**31 - 1, 2**62])
def test_given_a_count_beyond_the_bytes_then_nothing_is_reserved_for_it(kernel: ModuleType, count: int) -> None:
    assert outcome(kernel.spans, a_record(), count) == (1, _pure.ENDS_EARLY)
    assert outcome(kernel.validate, a_record(), count, 0) == (1, _pure.ENDS_EARLY)


@both
@pytest.mark.parametrize(("start", "count"), [(-1, 1), (99, 1), (0, -1), (0, 2**31 - 1), (5, 1)])
def test_given_a_place_outside_the_section_when_headers_are_read_then_it_is_refused(
    kernel: ModuleType, start: int, count: int
) -> None:
    with pytest.raises(InvalidRecords):
        kernel.headers_of(b"\x02k\x02v\x00", start, count)


@both
def test_given_what_cannot_be_encoded_then_it_is_a_python_error(kernel: ModuleType) -> None:
    for wrong in [Record("text", b""), Record(None, 5), Record(None, b"", [(None, b"")])]:  # type: ignore[arg-type, list-item]
        with pytest.raises((TypeError, AttributeError)):
            kernel.encode_records([wrong], 0)
    with pytest.raises(OverflowError):
        kernel.encode_records([Record(None, b"", (), 2**63 - 1)], -1)


# --- compiled against pure ---


@st.composite
def damaged_sections(draw: st.DrawFn) -> tuple[bytes, int]:
    """A section that was right, after a few flips, cuts and insertions; and a count that may be wrong."""
    given_records = draw(RECORDS)
    section = _pure.encode_records(given_records, given_records[0].timestamp)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(section) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "byte"])):
            case "flip" if section:
                section[at] ^= 1 << draw(st.integers(0, 7))
            case "byte" if section:
                section[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "cut":
                del section[at : at + draw(st.integers(1, 8))]
            case _:
                section[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(section), len(given_records) + draw(st.sampled_from([0, 0, 0, -1, 1]))


def assert_twins_agree(section: bytes, count: int, base_timestamp: int) -> None:
    assert compiled is not None
    for function, arguments in [
        ("validate", (count, base_timestamp)),
        ("spans", (count,)),
        ("find_timestamp", (count, 10, base_timestamp, NOW_MS)),
        ("headers_of", (len(section) // 2, count)),
    ]:
        expected = outcome(getattr(_pure, function), section, *arguments)
        assert outcome(getattr(compiled, function), section, *arguments) == expected, function


@needs_compiled
@settings(max_examples=500, deadline=None)
@given(damaged_sections(), st.just(NOW_MS) | INT64)
def test_given_damaged_records_then_the_twins_agree_on_every_word(damaged: tuple[bytes, int], base: int) -> None:
    assert_twins_agree(*damaged, base)


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(-1, 5), INT64)
@example(a_record(timestamp_delta=-1), 1, -(2**63))
@example(a_record(timestamp_delta=1), 1, 2**63 - 1)
def test_given_any_bytes_then_the_twins_agree_on_every_word(section: bytes, count: int, base: int) -> None:
    assert_twins_agree(section, count, base)


@needs_compiled
@settings(max_examples=60, deadline=None)
@given(RECORDS)
def test_given_any_records_then_the_twins_encode_the_same_bytes(given_records: list[Record]) -> None:
    assert compiled is not None
    assert compiled.encode_records(given_records, NOW_MS) == _pure.encode_records(given_records, NOW_MS)


@needs_compiled
@settings(max_examples=300, deadline=None)
@given(damaged_sections() | st.tuples(st.binary(max_size=40), st.integers(1, 3)))
def test_given_a_forbidden_page_behind_the_section_then_the_kernel_never_reads_it(damaged: tuple[bytes, int]) -> None:
    """A read past the end would kill the process."""
    assert compiled is not None
    data, count = damaged
    with BeforeForbiddenPage(data) as section:
        outcome(compiled.validate, section, count, NOW_MS)
        outcome(compiled.spans, section, count)
        outcome(compiled.find_timestamp, section, count, 0, NOW_MS, 2**62)
        for start in range(max(0, len(data) - 8), len(data) + 1):
            outcome(compiled.headers_of, section, start, 1)


# --- whole batches, against other implementations ---


@CODECS
@settings(max_examples=25, deadline=None)
@given(RECORDS)
def test_given_a_batch_of_ours_when_aiokafka_reads_it_then_it_finds_the_records(
    codec: Codec, given_records: list[Record]
) -> None:
    batch = build_batch(given_records, base_offset=12, codec=codec)

    theirs = MemoryRecords(bytes(batch)).next_batch()

    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in theirs] == [
        (12 + index, r.timestamp, r.key, r.value, list(r.headers)) for index, r in enumerate(given_records)
    ]


@CODECS
@settings(max_examples=25, deadline=None)
@given(RECORDS)
def test_given_a_batch_of_aiokafka_when_read_then_the_records_are_there(
    codec: Codec, given_records: list[Record]
) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for index, record in enumerate(given_records):
        builder.append(index, record.timestamp, record.key, record.value, list(record.headers))

    batch = bytes(builder.build())

    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert [(r.offset, r.key, r.value, r.headers, r.timestamp) for r in iterate(batch)] == [
        (index, r.key, r.value, list(r.headers), r.timestamp) for index, r in enumerate(given_records)
    ]


def test_given_a_compressible_batch_of_aiokafka_then_it_is_really_compressed_and_read() -> None:
    for codec in list(Codec)[1:]:
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
        for index in range(500):
            builder.append(index, NOW_MS, b"key", b"a value like all the others", [])

        batch = bytes(builder.build())

        assert read_header(batch).codec == codec
        assert [(r.offset, r.value) for r in iterate(batch)] == [
            (index, b"a value like all the others") for index in range(500)
        ]


def test_given_batches_of_ours_and_of_kio_then_each_reads_the_other() -> None:
    moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    theirs = KioRecord(
        attributes=i8(0),
        timestamp=TZAwareMicros.parse(moment),
        offset=i64(0),
        key=b"key",
        value=None,
        headers=(RecordHeader(key=b"h", value=b"v"), RecordHeader(key=b"", value=None)),
    )
    ours = Record(b"key", None, [("h", b"v"), ("", None)], NOW_MS)
    written = io.BytesIO()
    write_batch(
        written,
        NewRecordBatch(
            producer_id=i64(-1), producer_epoch=i16(-1), partition_leader_epoch=i32(-1), base_sequence=i32(-1),
            records=(theirs,), attributes=i16(0),
        ),
    )  # fmt: skip

    batch = build_batch([ours])

    assert batch == written.getvalue()
    assert read_batch(bytes(batch), 0)[0].records == (theirs,)


def test_given_no_records_when_built_then_it_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


def test_given_control_and_transactional_then_the_batch_says_so() -> None:
    header = read_header(build_batch([Record(b"", b"")], is_control=True, is_transactional=True, producer_id=1))

    assert header.is_control
    assert header.is_transactional
    assert header.size == HEADER_BYTES + 7


# --- which kernel serves ---


@pytest.mark.parametrize(
    ("setting", "kernel"),
    [pytest.param("", "compiled", marks=needs_compiled), ("1", "pure")],
)
def test_given_the_setting_then_that_kernel_serves(setting: str, kernel: str) -> None:
    program = "from penstock.protocol import records; print(records.KERNEL, records.validate.__module__)"
    environment = {**os.environ, "PENSTOCK_PURE_RECORDS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}

    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    module = {"compiled": "_kernel", "pure": "_pure"}[kernel]
    assert said.stdout.split() == [kernel, f"penstock.protocol.records.{module}"]
    assert records.KERNEL in ("compiled", "pure")
