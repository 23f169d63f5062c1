"""The checksum of rows, compiled and pure under the same tests, against a definition that knows no columns."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.arrow_columns import Blob, blobs, numbers, offsets, pairs

from penstock.protocol.records import _pure_checksum
from penstock.protocol.records._pure_checksum import Blobs, Numbers, Pairs

compiled: ModuleType | None
try:
    from penstock.protocol.records import _checksum as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(compiled is None, reason="THE COMPILED CHECKSUM KERNEL IS NOT BUILT")
both = pytest.mark.parametrize(
    "kernel", [pytest.param(compiled, id="compiled", marks=needs_compiled), pytest.param(_pure_checksum, id="pure")]
)

Row = tuple[Blob, int | None, list[tuple[Blob, Blob]] | None]

BLOBS = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=140)
INT64 = st.integers(-(2**63), 2**63 - 1)
PAIRS = st.none() | st.lists(st.tuples(BLOBS, BLOBS), max_size=3)
ROWS = st.lists(st.tuples(BLOBS, st.none() | INT64, PAIRS), max_size=12)
WIDTHS = st.sampled_from((4, 8))


# As the module's docstring has it, a row at a time.


def words_of_blob(blob: Blob) -> list[int]:
    if blob is None:
        return [2**64 - 1]
    padded = blob + bytes(-len(blob) % 8)
    return [len(blob), *struct.unpack(f"<{len(padded) // 8}Q", padded)]


def words_of(row: Row) -> list[int]:
    blob, number, pairs = row
    words = words_of_blob(blob)
    words += [2**64 - 1] if number is None else [1, number % 2**64]
    if pairs is None:
        return [*words, 2**64 - 1]
    return words + [len(pairs)] + [word for pair in pairs for blob in pair for word in words_of_blob(blob)]


def hash_of(words: Sequence[int]) -> int:
    state = 0x243F6A8885A308D3
    for word in words:
        product = (state ^ word) * 0x9E3779B97F4A7C15
        state = product % 2**64 ^ product // 2**64
    state ^= state >> 32
    state = state * 0xD6E8FEB86659FD93 % 2**64
    return state ^ state >> 29


def naive(rows: Sequence[Row]) -> int:
    return sum(hash_of(words_of(row)) for row in rows) % 2**64


def columns(rows: Sequence[Row], before: Sequence[Row], width: int) -> tuple[Blobs, Numbers, Pairs]:
    return (
        blobs([blob for blob, _, _ in rows], [blob for blob, _, _ in before], width),
        numbers([number for _, number, _ in rows], [number for _, number, _ in before]),
        pairs([some for _, _, some in rows], [some for _, _, some in before], width),
    )


def checksum(kernel: Any, rows: Sequence[Row], before: Sequence[Row] = (), width: int = 4) -> int:
    hashes = kernel.RowHashes(len(rows))
    blob, number, headers = columns(rows, before, width)
    hashes.add_blobs(blob)
    hashes.add_numbers(number)
    hashes.add_pairs(headers)
    total = hashes.total()
    assert isinstance(total, int)
    return total


@both
@given(rows=ROWS, before=ROWS, width=WIDTHS)
def test_given_any_rows_when_columns_are_sliced_and_of_either_width_then_the_checksum_is_that_of_the_definition(
    kernel: ModuleType, rows: list[Row], before: list[Row], width: int
) -> None:
    assert checksum(kernel, rows, before, width) == naive(rows)


@both
@given(rows=ROWS, seed=st.integers(0, 2**32), cut=st.integers(0, 12))
def test_given_any_rows_when_their_order_and_parts_change_then_the_checksum_does_not(
    kernel: ModuleType, rows: list[Row], seed: int, cut: int
) -> None:
    mixed = random.Random(seed).sample(rows, len(rows))

    in_parts = checksum(kernel, mixed[:cut]) + checksum(kernel, mixed[cut:])

    assert in_parts % 2**64 == checksum(kernel, rows)


@both
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([(None, 1, [])], [(b"", 1, [])], id="null or empty"),
        pytest.param([(b"a", 1, [])], [(b"a\0", 1, [])], id="padding"),
        pytest.param([(b"a", None, [])], [(b"a", 0, [])], id="null or 0"),
        pytest.param([(b"a", None, [])], [(b"a", -1, [])], id="null or all ones"),
        pytest.param([(b"a", 1, None)], [(b"a", 1, [])], id="no list or an empty one"),
        pytest.param([(b"a", 1, [(b"k", b"v")])], [(b"a", 1, [(b"kv", b"")])], id="where a key ends"),
        pytest.param([(b"a", 1, [(b"k", None)])], [(b"a", 1, [(b"k", b"")])], id="null or empty in a list"),
        pytest.param([(b"a", 1, [(b"k", b"1")] * 2)], [(b"a", 1, [(b"k", b"1")])], id="how often in a list"),
        pytest.param([(b"a", 1, [])], [(b"a", 1, [])] * 2, id="how often"),
        pytest.param([(b"a", 1, []), (b"b", 2, [])], [(b"a", 2, []), (b"b", 1, [])], id="which goes with which"),
        pytest.param([(bytes(16), 1, [])], [(bytes(8) + bytes(7) + b"\1", 1, [])], id="a single bit"),
    ],
)
def test_given_rows_that_differ_in_little_when_they_are_added_up_then_checksums_differ(
    kernel: ModuleType, one: list[Row], other: list[Row]
) -> None:
    assert checksum(kernel, one) != checksum(kernel, other)


@both
@given(entry=BLOBS, rows=st.integers(0, 5))
def test_given_a_column_that_is_the_same_everywhere_when_it_is_added_then_it_counts_as_if_it_were_written_out(
    kernel: ModuleType, entry: Blob, rows: int
) -> None:
    at_once, written_out = kernel.RowHashes(rows), kernel.RowHashes(rows)

    at_once.add_same(entry)
    written_out.add_blobs(blobs([entry] * rows, [], 4))

    assert at_once.total() == written_out.total()


def test_given_checksums_of_the_first_version_when_they_are_computed_now_then_they_are_the_same() -> None:
    rows: list[Row] = [(b"orders", 17, [(b"trace", b"\x01\x02")]), (None, None, None), (b"x" * 100, -5, [])]

    assert f"{checksum(_pure_checksum, rows):016x}" == "f18d830395773d87"


def raised(act: Callable[[], object]) -> BaseException | None:
    try:
        act()
    except Exception as error:
        return error
    return None


@both
@pytest.mark.parametrize(
    "column",
    [
        pytest.param(Blobs(None, offsets([1, 1], 4, 0), b"ab"), id="too few offsets"),
        pytest.param(Blobs(b"", offsets([1] * 3, 4, 0), b"abc"), id="too few bits"),
        pytest.param(Blobs(None, offsets([1] * 3, 4, 0), b"abc", -1), id="before the first"),
        pytest.param(Blobs(None, offsets([1, 1, 2], 4, 0), b"abc"), id="past the data"),
        pytest.param(Blobs(None, offsets([2, -1, 2], 4, 0), b"abc"), id="backwards"),
        pytest.param(Blobs(None, offsets([1] * 3, 4, -1), b"abc"), id="before the data"),
        pytest.param(Numbers(None, bytes(23)), id="too few numbers"),
        pytest.param(
            Pairs(None, offsets([1] * 3, 4, 0), blobs([b"a", b"b"], [], 4), blobs([b"a"] * 3, [], 4)),
            id="too few keys",
        ),
        pytest.param(
            Pairs(None, offsets([1, -2, 1], 4, 4), blobs([b"a"] * 9, [], 4), blobs([b"a"] * 9, [], 4)),
            id="lists that go backwards",
        ),
    ],
)
def test_given_buffers_that_lie_when_a_column_is_added_then_it_is_refused(kernel: ModuleType, column: object) -> None:
    hashes = kernel.RowHashes(3)
    add = {Blobs: hashes.add_blobs, Numbers: hashes.add_numbers, Pairs: hashes.add_pairs}[type(column)]

    error = raised(lambda: add(column))

    assert isinstance(error, ValueError)


@both
def test_given_no_rows_when_they_are_added_up_then_the_checksum_is_nought(kernel: ModuleType) -> None:
    assert checksum(kernel, []) == 0
    assert isinstance(raised(lambda: kernel.RowHashes(-1)), ValueError)
