"""Rows gathered into batches, compiled and pure under the same tests, and read again by another client's codec."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from aiokafka.partitioner import murmur2 as aiokafkas_murmur2
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.arrow_columns import Blob, Pair, blobs, numbers, pairs

from penstock.protocol.batch import HEADER_BYTES, Codec, crc_is_valid, read_header
from penstock.protocol.records import StoredRecord, _pure_gathering, iterate, records_of, validate
from penstock.protocol.records._pure_gathering import Gathered, RowColumns, TooLarge
from penstock.protocol.records.gathering import sealed

compiled: ModuleType | None
try:
    from penstock.protocol.records import _gathering as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(compiled is None, reason="THE COMPILED GATHERING KERNEL IS NOT BUILT")
both = pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(_pure_gathering, id="pure")]
)

PARTITIONS = 3
NOW_MS = 1_790_000_000_000
LARGE = 1 << 20


class Row(NamedTuple):
    key: Blob
    value: Blob
    partition: int | None
    headers: Sequence[Pair] | None
    timestamp_ms: int | None


BLOBS = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
NAMES = st.text(max_size=5).map(str.encode)
HEADERS = st.none() | st.lists(st.tuples(NAMES, BLOBS), max_size=3)
ROW = st.builds(
    Row, BLOBS, BLOBS, st.none() | st.integers(0, PARTITIONS - 1), HEADERS, st.none() | st.integers(-1, 2**50)
)
ROWS = st.lists(ROW, max_size=12)
WIDTHS = st.sampled_from((4, 8))
CODECS = st.sampled_from(list(Codec))
IDENTITY: dict[str, Any] = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 40, "is_transactional": True}


def columns(rows: Sequence[Row], before: Sequence[Row] = (), width: int = 4) -> RowColumns:
    keys, values, partitions, headers, timestamps_ms = zip(*rows, strict=True) if rows else ((),) * 5
    old_keys, old_values, old_partitions, old_headers, old_times_ms = zip(*before, strict=True) if before else ((),) * 5
    return RowColumns(
        len(rows),
        blobs(values, old_values, width),
        blobs(keys, old_keys, width),
        numbers(partitions, old_partitions),
        pairs(headers, old_headers, width),
        numbers(timestamps_ms, old_times_ms),
    )


def gathered(
    kernel: Any, rows: RowColumns, *, batch_bytes: int = LARGE, open_bytes: int = LARGE, sticky: int = 0
) -> dict[int, list[Gathered]]:
    """All rows, each partition's batches in order."""
    gathering = kernel.Gathering(
        PARTITIONS, batch_bytes=batch_bytes, max_bytes=LARGE, open_bytes=open_bytes, sticky=sticky
    )
    found: dict[int, list[Gathered]] = {partition: [] for partition in range(PARTITIONS)}
    start = 0
    while start < rows.rows:
        start = gathering.add(rows, start, NOW_MS)
        for partition in gathering.waiting() if gathering.full < 0 else [gathering.full]:
            found[partition].append(gathering.take(partition))
    for partition in gathering.waiting():
        found[partition].append(gathering.take(partition))
    assert gathering.size == 0
    return found


def stored(batches: Sequence[Gathered], codec: Codec = Codec.NONE) -> list[StoredRecord]:
    whole = [sealed(batch, codec=codec, level=None, **IDENTITY) for batch in batches]
    return [record for batch in whole for record in iterate(batch)]


def content(row: Row) -> tuple[int, Blob, Blob, list[tuple[str, Blob]]]:
    timestamp = NOW_MS if row.timestamp_ms is None else row.timestamp_ms
    return timestamp, row.key, row.value, [((key or b"").decode(), value) for key, value in row.headers or []]


def expected(rows: Sequence[Row], sticky: int = 0) -> dict[int, list[Row]]:
    """Where rows belong as long as no batch is taken in between."""
    found: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
    for row in rows:
        by_key = sticky if row.key is None else (aiokafkas_murmur2(row.key) & 0x7FFFFFFF) % PARTITIONS
        found[by_key if row.partition is None else row.partition].append(row)
    return found


@both
@given(rows=ROWS, before=ROWS, width=WIDTHS, codec=CODECS, sticky=st.integers(0, PARTITIONS - 1))
def test_given_any_rows_when_they_are_gathered_then_batches_hold_them_where_javas_producer_puts_them(
    kernel: ModuleType, rows: list[Row], before: list[Row], width: int, codec: Codec, sticky: int
) -> None:
    found = gathered(kernel, columns(rows, before, width), sticky=sticky)

    for partition, wanted in expected(rows, sticky).items():
        assert [record[1:] for record in stored(found[partition], codec)] == [content(row) for row in wanted]


@both
@given(rows=ROWS.filter(bool), codec=CODECS)
def test_given_any_rows_when_their_batches_are_sealed_then_a_broker_and_another_client_take_them(
    kernel: ModuleType, rows: list[Row], codec: Codec
) -> None:
    batches = gathered(kernel, columns([row._replace(partition=0) for row in rows]))[0]
    whole = sealed(batches[0], codec=codec, level=None, **IDENTITY)

    header = read_header(whole)
    assert crc_is_valid(whole, 0, header)
    assert (header.size, header.records_count, header.codec) == (len(whole), len(rows), codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (
        77,
        3,
        40,
        True,
    )
    times_ms = [content(row)[0] for row in rows]
    assert (header.base_timestamp, header.max_timestamp) == (times_ms[0], max(times_ms))
    info = validate(records_of(whole, 0, header), len(rows), header.base_timestamp)
    assert info.max_timestamp == max(times_ms)
    others = DefaultRecordBatch(bytes(whole))
    assert others.validate_crc()
    assert [(each.timestamp, each.key, each.value, list(each.headers)) for each in others] == [
        content(row) for row in rows
    ]


@both
@given(rows=ROWS, batch_bytes=st.integers(1, 400), open_bytes=st.integers(1, 1_000))
def test_given_small_limits_when_rows_are_gathered_then_no_batch_of_several_is_larger_and_order_stays(
    kernel: ModuleType, rows: list[Row], batch_bytes: int, open_bytes: int
) -> None:
    found = gathered(kernel, columns(rows), batch_bytes=batch_bytes, open_bytes=open_bytes)

    every = [batch for batches in found.values() for batch in batches]
    assert all(len(batch.batch) <= batch_bytes for batch in every if batch.rows > 1)
    assert sum(batch.rows for batch in every) == len(rows)
    wanted = expected([row for row in rows if row.key is not None or row.partition is not None])
    for partition, batches in found.items():
        assert is_subsequence([content(row) for row in wanted[partition]], [each[1:] for each in stored(batches)])


def is_subsequence(some: Sequence[object], of: Sequence[object]) -> bool:
    rest = iter(of)
    return all(each in rest for each in some)


@needs_compiled
@given(rows=ROWS, before=ROWS, width=WIDTHS, batch_bytes=st.integers(1, 400), open_bytes=st.integers(1, 1_000))
def test_given_any_rows_and_limits_when_both_kernels_gather_them_then_every_byte_is_the_same(
    rows: list[Row], before: list[Row], width: int, batch_bytes: int, open_bytes: int
) -> None:
    found = [
        {
            partition: [(bytes(batch.batch), *batch[1:]) for batch in batches]
            for partition, batches in gathered(
                kernel, columns(rows, before, width), batch_bytes=batch_bytes, open_bytes=open_bytes
            ).items()
        }
        for kernel in (compiled, _pure_gathering)
    ]

    assert found[0] == found[1]


@both
@given(key=st.binary(max_size=40))
def test_given_any_key_when_it_is_hashed_then_it_has_javas_hash(kernel: ModuleType, key: bytes) -> None:
    assert kernel.murmur2(key) == aiokafkas_murmur2(key) & 0x7FFFFFFF


@both
def test_given_rows_without_keys_when_batches_fill_then_each_goes_to_the_next_partition(kernel: ModuleType) -> None:
    rows = [Row(None, bytes(100), None, None, None)] * 30

    found = gathered(kernel, columns(rows), batch_bytes=600, sticky=1)

    assert {partition: [batch.rows for batch in batches] for partition, batches in found.items()} == {
        0: [4, 4],
        1: [4, 4, 4],
        2: [4, 4, 2],
    }


@both
def test_given_a_row_larger_than_a_batch_when_it_is_gathered_then_it_has_one_for_itself(kernel: ModuleType) -> None:
    rows = [Row(None, bytes(size), 0, None, None) for size in (10, 500, 10)]

    found = gathered(kernel, columns(rows), batch_bytes=100)

    assert [batch.rows for batch in found[0]] == [1, 1, 1]


@both
def test_given_a_row_larger_than_any_batch_may_be_when_it_is_gathered_then_its_size_is_told(kernel: ModuleType) -> None:
    gathering = kernel.Gathering(1, batch_bytes=100, max_bytes=100, open_bytes=1_000)
    rows = columns([Row(None, bytes(size), None, None, None) for size in (10, 500)])

    assert gathering.add(rows, 0, NOW_MS) == 1  # what is there is taken first
    assert gathering.take(gathering.full).rows == 1
    with pytest.raises(TooLarge) as refused:
        gathering.add(rows, 1, NOW_MS)

    assert (refused.value.row, refused.value.size) == (1, HEADER_BYTES + 500 + 9)


@both
def test_given_a_topic_that_grew_when_rows_ask_for_the_new_partition_then_they_have_it(kernel: ModuleType) -> None:
    gathering = kernel.Gathering(1, batch_bytes=LARGE, max_bytes=LARGE, open_bytes=LARGE)
    assert gathering.add(columns([Row(b"k", b"1", 0, None, None)]), 0, NOW_MS) == 1

    gathering.widen(3)

    assert gathering.add(columns([Row(b"k", b"2", 2, None, None)]), 0, NOW_MS) == 1
    assert (gathering.partitions, gathering.waiting()) == (3, [0, 2])
    assert [record.value for record in stored([gathering.take(0), gathering.take(2)])] == [b"1", b"2"]


@both
@pytest.mark.parametrize(
    ("act", "error"),
    [
        pytest.param(lambda it: it.add(columns([Row(None, b"", 3, None, None)]), 0, 0), ValueError, id="no partition"),
        pytest.param(lambda it: it.add(columns([Row(None, b"", -1, None, None)]), 0, 0), ValueError, id="below 0"),
        pytest.param(lambda it: it.add(columns([]), 1, 0), ValueError, id="start behind the rows"),
        pytest.param(lambda it: it.add(columns([]), -1, 0), ValueError, id="start before the rows"),
        pytest.param(lambda it: it.take(0), ValueError, id="nothing there"),
        pytest.param(lambda it: it.take(9), ValueError, id="take of no partition"),
        pytest.param(
            lambda it: it.add(columns([Row(None, b"", 0, [(None, b"")], None)]), 0, 0),
            ValueError,
            id="header without key",
        ),
        pytest.param(
            lambda it: it.add(columns([Row(None, b"", 0, None, each) for each in (-(2**63), 2**63 - 1)]), 0, 0),
            OverflowError,
            id="times too far apart",
        ),
        pytest.param(
            lambda it: it.add(columns([Row(None, b"", 0, None, None)])._replace(rows=2), 0, 0),
            ValueError,
            id="columns end early",
        ),
    ],
)
def test_given_what_cannot_be_gathered_when_it_is_tried_then_it_is_refused(
    kernel: ModuleType, act: Any, error: type[Exception]
) -> None:
    gathering = kernel.Gathering(PARTITIONS, batch_bytes=LARGE, max_bytes=LARGE, open_bytes=LARGE)

    with pytest.raises(error):
        act(gathering)


@both
@pytest.mark.parametrize(
    ("partitions", "limit", "sticky"), [(0, 1, 0), (1, 0, 0), (1, 2**31, 0), (2, 1, 2), (2, 1, -1)]
)
def test_given_limits_that_cannot_be_when_gathering_begins_then_they_are_refused(
    kernel: ModuleType, partitions: int, limit: int, sticky: int
) -> None:
    with pytest.raises(ValueError):
        kernel.Gathering(partitions, batch_bytes=limit, max_bytes=limit, open_bytes=limit, sticky=sticky)
