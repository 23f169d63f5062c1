"""How a replay is cut into chunks, and what is meant by a selection: without Spark."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.replay_plan import Extent, ReplayChunks, condition, cut
from penstock.spark.pipelines.selection import Selection, parse_offsets, parse_time

EXTENTS = st.dictionaries(
    st.integers(0, 20),
    st.builds(lambda rows, first, gaps: Extent(rows, first, first + rows + gaps), *[st.integers(1, 5_000)] * 3),
    max_size=8,
)


@given(EXTENTS, st.integers(1, 3_000))
def test_given_any_partitions_when_cut_into_chunks_then_every_offset_is_in_one_and_they_are_in_order(
    extents: dict[int, Extent], rows_per_chunk: int
) -> None:
    chunks = cut(extents, rows_per_chunk)

    for partition, extent in extents.items():
        ranges = [chunk[partition] for chunk in chunks.chunks if partition in chunk]
        assert ranges[0][0] == extent.first and ranges[-1][1] == extent.end
        assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(ranges))
    assert all(chunks.chunks)


@given(EXTENTS, st.integers(1, 3_000))
def test_given_chunks_when_written_down_and_read_again_then_they_are_the_same(
    extents: dict[int, Extent], rows_per_chunk: int
) -> None:
    chunks = cut(extents, rows_per_chunk)

    assert ReplayChunks.from_json(chunks.to_json(), "plan.json") == chunks


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
