"""Offsets as text: in options, and in the checkpoints of streams."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import TopicId, TopicPartition
from penstock.spark.errors import BadOffsets
from penstock.spark.offsets_json import StreamOffsets, parse_offsets, parse_partitions, parse_times

ID = TopicId(bytes(range(16)))
ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=10)
partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))
offsets = st.dictionaries(partitions, st.integers(0, 2**63 - 1), max_size=8)
topic_ids = st.dictionaries(names, st.binary(min_size=16, max_size=16).map(TopicId), max_size=3)


@given(offsets, topic_ids, st.none() | offsets)
def test_given_any_offsets_when_written_and_read_then_they_are_the_same_and_so_is_the_text(
    given_offsets: dict[TopicPartition, int],
    given_ids: dict[str, TopicId],
    began_at: dict[TopicPartition, int] | None,
) -> None:
    written = StreamOffsets(given_offsets, given_ids, began_at)

    text = json.dumps(written.to_json())
    read = StreamOffsets.from_json(json.loads(text))

    assert read == written
    assert json.dumps(read.to_json()) == text
    reordered = StreamOffsets(dict(reversed(given_offsets.items())), dict(reversed(given_ids.items())), began_at)
    assert json.dumps(reordered.to_json()) == text


def test_given_offsets_of_two_topics_when_written_then_the_shape_is_that_of_sparks_source() -> None:
    written = StreamOffsets(
        {TopicPartition("b", 10): 3, TopicPartition("b", 9): 7, TopicPartition("a", 0): 23}, {"a": ID}
    )

    assert json.dumps(written.to_json()) == (
        '{"a": {"0": 23}, "b": {"9": 7, "10": 3}, "#topic-ids": {"a": "' + ID_TEXT + '"}}'
    )


def test_given_the_offsets_of_a_progress_report_when_pasted_into_an_option_then_they_are_understood() -> None:
    text = (
        f'{{"a": {{"0": 23, "1": -2}}, "#topic-ids": {{"a": "{ID_TEXT}"}}, "#starting-offsets": {{"a": {{"0": 5}}}}}}'
    )

    found = parse_offsets(text, "option startingOffsets")

    assert found.offsets == {TopicPartition("a", 0): 23, TopicPartition("a", 1): -2}
    assert found.topic_ids == {"a": ID}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("7", 'takes an object as {"topic": {"0": 23}}, not 7'),
        ('{"a": 7}', 'topic "a" takes an object'),
        ('{"a": {"x": 7}}', 'topic "a": "x" is not the number of a partition'),
        ('{"a": {"-1": 7}}', '"-1" is not the number of a partition'),
        ('{"a": {"2147483648": 7}}', '"2147483648" is not the number of a partition'),
        ('{"a": {"0": "7"}}', 'a-0 takes a whole number from -2 on, not "7"'),
        ('{"a": {"0": 7.5}}', "a-0 takes a whole number from -2 on, not 7.5"),
        ('{"a": {"0": true}}', "a-0 takes a whole number from -2 on, not true"),
        ('{"a": {"0": -3}}', "a-0 takes a whole number from -2 on, not -3"),
        ('{"a": {"0": 9223372036854775808}}', "a-0 takes a whole number from -2 on"),
        ('{"a": {"0": 1}, "#topic-ids": {"a": "short"}}', '"short" is not the id of a topic'),
        ('{"a": {"0": 1}, "#topic-ids": {"a": null}}', "null is not the id of a topic"),
    ],
)
def test_given_text_that_is_no_offsets_when_read_then_it_is_said_what_is_wrong_and_where(
    text: str, message: str
) -> None:
    with pytest.raises(BadOffsets) as refused:
        parse_offsets(text, "option startingOffsets")

    assert str(refused.value).startswith("option startingOffsets")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"a": []}', '{"a": 1}', '{"a": ["0"]}', '{"a": [-1]}', "{}", "[]", '{"a": {"0": 1}}']
)
def test_given_text_that_is_no_list_of_partitions_when_read_then_it_is_refused(text: str) -> None:
    with pytest.raises(BadOffsets, match=r"^assign"):
        parse_partitions(text, "assign")


def test_given_partitions_and_times_when_read_then_they_are_by_partition() -> None:
    assert parse_partitions('{"b": [1], "a": [2, 0, 2]}', "assign") == [
        TopicPartition("a", 0),
        TopicPartition("a", 2),
        TopicPartition("b", 1),
    ]
    assert parse_times('{"a": {"0": 1000}}', "option startingOffsetsByTimestamp") == {TopicPartition("a", 0): 1000}
