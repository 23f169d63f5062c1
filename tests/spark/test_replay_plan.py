"""How a replay is cut into chunks, and what is meant by a selection: without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.replay_plan import Bucket, ReplayChunks, condition, cut
from penstock.spark.pipelines.selection import Selection, parse_offsets, parse_time

PARTITIONS = st.integers(0, 5)
ROWS = st.lists(st.tuples(PARTITIONS, st.integers(1, 20), st.integers(0, 5_000)), max_size=40)


def buckets_of(rows: Sequence[tuple[int, int, int]]) -> list[Bucket]:
    """One after the other in each partition, of some rows and with gaps between them."""
    ends: dict[int, int] = {}
    found = []
    for partition, count, gap in rows:
        first = ends.get(partition, 0) + gap
        ends[partition] = first + count + gap
        found.append(Bucket(partition, first, ends[partition], count))
    return found


@given(ROWS, st.integers(20, 100))
def test_given_any_rows_when_cut_into_chunks_then_each_is_in_one_in_their_order_and_none_has_too_many(
    rows: Sequence[tuple[int, int, int]], rows_per_chunk: int
) -> None:
    buckets = buckets_of(rows)

    chunks = cut(buckets, rows_per_chunk)

    inside = [[each for each in buckets if within(each, chunk.get(each.partition, (0, 0)))] for chunk in chunks.chunks]
    assert list(itertools.chain(*inside)) == buckets
    assert all(0 < sum(each.rows for each in chunk) <= rows_per_chunk for chunk in inside)
    assert chunks.rows == sum(each.rows for each in buckets)
    # No more of them than it takes: two that follow each other have more than one may have.
    assert all(
        sum(each.rows for each in [*one, next_one[0]]) > rows_per_chunk for one, next_one in itertools.pairwise(inside)
    )


def within(bucket: Bucket, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= bucket.first and bucket.end <= bounds[1]


@given(ROWS, st.integers(1, 100), st.integers(0, 3))
def test_given_chunks_when_written_down_and_read_again_then_they_are_the_same(
    rows: Sequence[tuple[int, int, int]], rows_per_chunk: int, begun: int
) -> None:
    chunks = cut(buckets_of(rows), rows_per_chunk)

    assert ReplayChunks.from_json(chunks.to_json(), "plan.json") == chunks
    assert chunks.after(begun) == {
        partition: (min(first for first, _ in bounds), max(end for _, end in bounds))
        for partition in range(6)
        if (bounds := [chunk[partition] for chunk in chunks.chunks[begun:] if partition in chunk])
    }


@pytest.mark.parametrize(
    ("known", "wanted", "is_larger"), [(10, 5, True), (5, 5, False), (5, 10, False), (None, 5, True)]
)
def test_given_chunks_that_may_have_more_than_is_wanted_when_asked_then_it_is_known(
    known: int | None, wanted: int, is_larger: bool
) -> None:
    assert ReplayChunks(0, (), known).may_exceed(wanted) is is_larger


def test_given_a_plan_that_is_damaged_when_read_then_the_error_names_the_file() -> None:
    with pytest.raises(PipelineError, match=r"plan\.json is damaged"):
        ReplayChunks.from_json({"rows": 3, "chunks": [{"zero": [1, 2]}]}, "plan.json")


def test_given_a_chunk_when_asked_for_then_the_condition_names_partitions_and_offsets() -> None:
    assert condition({1: (5, 9), 0: (2, 3)}) == (
        "(partition = 0 and offset >= 2 and offset < 3) or (partition = 1 and offset >= 5 and offset < 9)"
    )


def test_given_offsets_as_text_when_parsed_then_either_end_may_be_open() -> None:
    assert parse_offsets(["0:100-200", "1:5-", "2:-7"]) == {0: (100, 200), 1: (5, None), 2: (None, 7)}


@pytest.mark.parametrize("text", ["0", "0:1", "x:1-2", "0:5-5", "0:9-3", "0:1-2-3", ""])
def test_given_offsets_that_are_none_when_parsed_then_the_text_is_in_the_error(text: str) -> None:
    with pytest.raises(PipelineError, match="offsets"):
        parse_offsets([text])


def test_given_a_partition_twice_when_parsed_then_it_is_refused() -> None:
    with pytest.raises(PipelineError, match="partition 0 is there twice"):
        parse_offsets(["0:1-2", "0:5-6"])


@pytest.mark.parametrize(
    "given_as",
    [1_767_225_600_000, "1767225600000", "2026-01-01T00:00:00Z", "2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)],
)
def test_given_a_time_in_any_form_when_parsed_then_it_is_milliseconds(given_as: str | int | datetime) -> None:
    assert parse_time(given_as, "since") == 1_767_225_600_000


@pytest.mark.parametrize("text", ["20260131", "1767225600", "202601311200", "99999999999999999999", "0"])
def test_given_digits_that_are_no_milliseconds_of_our_days_when_parsed_then_they_are_refused(text: str) -> None:
    """A day was taken for a time in 1970; what no clock has got as far as Spark."""
    with pytest.raises(PipelineError, match=f'since "{text}": expected epoch milliseconds, of 13 digits, or a time'):
        parse_time(text, "since")


@pytest.mark.parametrize("given_as", [99_999_999_999_999_999_999, -(10**14), "9999-12-31T23:00:00-12:00"])
def test_given_a_time_that_no_calendar_has_when_parsed_then_it_is_refused(given_as: str | int) -> None:
    with pytest.raises(PipelineError, match=r"since .*: times are of the years 1 to 9999"):
        parse_time(given_as, "since")


def test_given_no_time_when_parsed_then_the_error_says_what_one_looks_like() -> None:
    with pytest.raises(PipelineError, match='since "yesterday": expected epoch milliseconds'):
        parse_time("yesterday", "since")


def test_given_a_selection_when_told_then_everything_that_was_said_is_in_it() -> None:
    selection = Selection("orders", 0, 86_400_000, {0: (5, None)}, (b"k",), "offset % 2 = 0")

    assert selection.told() == (
        "from 1970-01-01T00:00:00.000Z; until 1970-01-02T00:00:00.000Z; partition 0, offsets 5-; keys k; "
        "where offset % 2 = 0"
    )
    assert Selection("orders").told() == "all records"
