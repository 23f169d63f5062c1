"""Arrow's columns as rows of a sink: checked, told apart by topic, cut, and summed up."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.compression import Codec
from penstock.protocol.records import StoredRecord, iterate
from penstock.protocol.records.gathering import Gathering, sealed
from penstock.spark.rows import Rows
from penstock.spark.sink_errors import BadRow
from tests.spark.sinking import TYPES, a_batch

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda time: time.replace(tzinfo=UTC))
HEADERS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}))
ROW = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(("a", "b", "ü")),
        "partition": st.none() | st.integers(0, 5),
        "key": st.none() | st.binary(max_size=10),
        "value": st.none() | st.binary(max_size=30),
        "headers": st.none() | HEADERS,
        "timestamp": st.none() | TIMES,
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=12)
NOW_MS = 1_790_000_000_000
NOBODY: dict[str, Any] = {
    "codec": Codec.NONE,
    "level": None,
    "producer_id": 1,
    "producer_epoch": 0,
    "base_sequence": 0,
    "is_transactional": False,
}
LARGE = {
    "topic": pa.large_string(),
    "key": pa.large_binary(),
    "value": pa.large_string(),
    "headers": pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
}


def rows_of(some: list[dict[str, Any]]) -> Rows:
    return Rows.of(a_batch(**{name: [row[name] for row in some] for name in TYPES}), None)


@given(some=ROWS, seed=st.integers(0, 2**32), cut=st.integers(0, 12))
def test_given_any_rows_when_they_are_reordered_and_cut_then_their_checksum_is_the_same(
    some: list[dict[str, Any]], seed: int, cut: int
) -> None:
    whole = rows_of(some)
    mixed = rows_of(random.Random(seed).sample(some, len(some)))
    cut = min(cut, len(some))

    parts = (mixed.slice(0, cut), mixed.slice(cut, len(some) - cut))

    assert sum(part.checksum() for part in parts) % 2**64 == whole.checksum()


@given(some=ROWS)
def test_given_any_rows_when_they_are_told_apart_by_topic_then_each_has_its_own_in_order(
    some: list[dict[str, Any]],
) -> None:
    found = {topic: rows.values.to_pylist() for topic, rows in rows_of(some).by_topic()}

    wanted: dict[str, list[bytes | None]] = {}
    for row in some:
        wanted.setdefault(row["topic"], []).append(row["value"])
    assert found == wanted


def gathered_records(rows: Rows) -> list[StoredRecord]:
    """All as if they were for one partition, in their order."""
    gathering = Gathering(1, batch_bytes=1 << 20, max_bytes=1 << 20, open_bytes=1 << 20)
    assert gathering.add(rows.columns()._replace(partitions=None), 0, NOW_MS) == rows.count
    taken = gathering.take(0)
    return list(iterate(sealed(taken, **NOBODY)))


@given(some=ROWS)
def test_given_any_rows_when_a_slice_is_gathered_then_its_records_are_those_of_the_rows(
    some: list[dict[str, Any]],
) -> None:
    rows = rows_of([some[0], *some]).slice(1, len(some))

    found = gathered_records(rows)

    assert [(each.key, each.value) for each in found] == [(row["key"], row["value"]) for row in some]
    assert [each.headers for each in found] == [
        [(header["key"], header["value"]) for header in row["headers"] or []] for row in some
    ]
    assert [each.timestamp for each in found] == [
        NOW_MS if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1_000_000) // 1_000 for row in some
    ]


def test_given_strings_and_wide_types_when_they_are_added_up_then_they_count_as_their_bytes() -> None:
    some: list[dict[str, Any]] = [
        {"topic": "t", "key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}]},
        {"topic": "u", "key": None, "value": None, "headers": None},
    ]

    narrow = Rows.of(a_batch(**{name: [row[name] for row in some] for name in LARGE}), None)
    wide = Rows.of(
        pa.record_batch(
            {
                "topic": pa.array(["t", "u"], LARGE["topic"]),
                "key": pa.array([b"k", None], LARGE["key"]),
                "value": pa.array(["v", None], LARGE["value"]),
                "headers": pa.array([row["headers"] for row in some], LARGE["headers"]),
            }
        ),
        None,
    )

    assert wide.checksum() == narrow.checksum()
    assert [topic for topic, _ in wide.by_topic()] == ["t", "u"]


def test_given_a_column_that_is_not_there_when_it_is_added_up_then_it_counts_as_null() -> None:
    without = Rows.of(a_batch(value=[b"v"]), "t")
    with_nulls = Rows.of(a_batch(value=[b"v"], key=[None], partition=[None], headers=[None], timestamp=[None]), "t")

    assert without.checksum() == with_nulls.checksum()
    assert without.checksum() != Rows.of(a_batch(value=[b"v"]), "another").checksum()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"topic": ["t", None]}, ["no topic"]),
        ({"topic": ["t", "t"], "partition": [0, -2]}, ["partition -2"]),
        ({"topic": ["t", "t"], "headers": [None, [None]]}, ["header that is null"]),
        ({"topic": ["t", "t"], "headers": [None, [{"key": None, "value": b""}]]}, ["header that is null"]),
        ({"topic": ["t", "t"], "timestamp": [None, datetime(1969, 12, 31, tzinfo=UTC)]}, ["before 1970"]),
    ],
)
def test_given_rows_that_cannot_be_records_when_they_are_looked_at_then_one_sentence_says_why(
    columns: dict[str, list[Any]], words: list[str]
) -> None:
    with pytest.raises(BadRow) as refused:
        Rows.of(a_batch(value=[b"1", b"2"], **columns), None)

    for word in words:
        assert word in str(refused.value)


def test_given_an_option_topic_when_rows_name_others_then_the_option_wins() -> None:
    rows = Rows.of(a_batch(topic=["a", None], value=[b"1", b"2"]), "t")

    assert [(topic, some.count) for topic, some in rows.by_topic()] == [("t", 2)]
