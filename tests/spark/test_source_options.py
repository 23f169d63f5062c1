"""The options of the source: what is understood, and what is refused with which words."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.core.ids import TopicPartition
from penstock.spark.errors import BadOffsets, BadOption
from penstock.spark.offsets_json import EARLIEST, LATEST
from penstock.spark.positions import AtEdge, AtOffsets, AtTime, AtTimes
from penstock.spark.source_options import NAMES, SourceOptions
from penstock.spark.subscriptions import Partitions, Pattern, Topics
from penstock.wire.offsets import Isolation
from penstock.wire.settings import Address

ENOUGH = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}


def parsed(**options: Any) -> SourceOptions:
    """Dots of names are underscores here."""
    return SourceOptions.parse({**ENOUGH, **{name.replace("_", "."): value for name, value in options.items()}})


def refusal(values: dict[str, str]) -> str:
    with pytest.raises((BadOption, BadOffsets)) as refused:
        SourceOptions.parse(values)
    return str(refused.value)


def test_given_the_least_that_is_needed_when_parsed_then_the_rest_is_as_in_sparks_source_but_for_isolation() -> None:
    options = SourceOptions.parse(ENOUGH)

    assert options.settings.bootstrap == (Address("localhost", 9092),)
    assert options.subscription == Topics(("t",))
    assert options.isolation is Isolation.READ_COMMITTED
    assert (options.starting, options.ending) == (None, None)
    assert options.for_batch().starting == AtEdge("startingOffsets", EARLIEST)
    assert options.for_batch().ending == AtEdge("endingOffsets", LATEST)
    assert options.for_stream().starting == AtEdge("startingOffsets", LATEST)
    assert (options.max_offsets_per_trigger, options.min_partitions, options.max_records_per_partition) == (None,) * 3
    assert options.fails_on_data_loss
    assert not options.includes_headers
    assert not options.pushes_filters


def test_given_every_option_in_any_case_when_parsed_then_all_are_understood_and_go_to_workers() -> None:
    options = parsed(
        MAXOFFSETSPERTRIGGER="7",
        minpartitions="8",
        maxRecordsPerPartition="9",
        failOnDataLoss="FALSE",
        includeHeaders=" true ",
        filterPushdown="true",
        startingOffsetsByTimestampStrategy="latest",
        kafka_isolation_level="read_uncommitted",
        kafka_client_id="me",
        kafka_fetch_max_wait_ms="5",
    )

    assert (options.max_offsets_per_trigger, options.min_partitions, options.max_records_per_partition) == (7, 8, 9)
    assert not options.fails_on_data_loss
    assert options.includes_headers
    assert options.pushes_filters
    assert options.none_that_late_is_latest
    assert options.isolation is Isolation.READ_UNCOMMITTED
    assert (options.settings.client_id, options.settings.fetch_wait_ms) == ("me", 5)
    assert pickle.loads(pickle.dumps(options)) == options


def test_given_the_table_of_options_when_documented_then_none_is_missing() -> None:
    documented = (Path(__file__).parents[2] / "docs/spark.md").read_text()

    assert [name for name in NAMES if f"`{name}`" not in documented] == []


@pytest.mark.parametrize(
    ("option", "value", "subscription"),
    [
        ("subscribe", " a, b,,a ", Topics(("a", "b"))),
        ("subscribePattern", "a.*", Pattern("a.*")),
        ("assign", '{"a": [1, 0]}', Partitions((TopicPartition("a", 0), TopicPartition("a", 1)))),
    ],
)
def test_given_ways_to_say_what_is_read_when_parsed_then_each_is_understood(
    option: str, value: str, subscription: object
) -> None:
    options = SourceOptions.parse({"kafka.bootstrap.servers": "localhost:9092", option: value})

    assert options.subscription == subscription


def test_given_positions_of_several_kinds_when_parsed_then_the_most_special_counts() -> None:
    offsets, times, time = '{"t": {"0": 5}}', '{"t": {"0": 1000}}', "2000"

    at_offsets = parsed(startingOffsets=offsets)
    at_times = parsed(startingOffsets=offsets, startingOffsetsByTimestamp=times)
    at_time = parsed(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp=time)

    assert at_offsets.starting == AtOffsets("startingOffsets", {TopicPartition("t", 0): 5}, {})
    assert at_times.starting == AtTimes("startingOffsetsByTimestamp", {TopicPartition("t", 0): 1_000})
    assert at_time.starting == AtTime("startingTimestamp", 2_000)
    assert parsed(startingOffsets="LATEST").starting == AtEdge("startingOffsets", LATEST)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("subcribePatern", "x", "option subcribepatern is not known to the source: did you mean subscribePattern?"),
        ("kafka.bootstrap.server", "x", "did you mean kafka.bootstrap.servers?"),
        ("kafka.max.partition.fetch.byte", "1", "did you mean kafka.max.partition.fetch.bytes?"),
        ("zzz", "x", "option zzz is not known to the source"),
        ("topic", "t", "option topic belongs to the sink: a source takes subscribe"),
        ("exactlyOnce", "true", "option exactlyonce belongs to the sink"),
        ("kafka.group.id", "g", "option kafka.group.id is not known here: this source is in no consumer group"),
        ("kafka.auto.offset.reset", "earliest", "startingOffsets says where to begin"),
        ("kafka.bootstrap.servers", "localhost", 'option kafka.bootstrap.servers takes HOST:PORT, not "localhost"'),
        ("kafka.request.timeout.ms", "soon", 'option kafka.request.timeout.ms takes a number above 0, not "soon"'),
        ("kafka.isolation.level", "none", 'takes read_committed or read_uncommitted, not "none"'),
        ("subscribe", " , ", 'option subscribe names no topic: ","'),
        ("assign", "{}", "option subscribe and assign exclude each other"),
        ("subscribePattern", "a", "option subscribe and subscribePattern exclude each other"),
        ("startingOffsets", "now", 'takes earliest, latest or JSON as {"topic": {"0": 23}}, not "now"'),
        ("startingOffsets", "{", "option startingOffsets is not JSON"),
        ("endingOffsetsByTimestamp", "5", "option endingOffsetsByTimestamp takes an object"),
        ("startingTimestamp", "2024-01-01", 'takes milliseconds since 1970, not "2024-01-01"'),
        ("endingTimestamp", "-1", 'option endingTimestamp takes milliseconds since 1970, not "-1"'),
        ("startingOffsetsByTimestampStrategy", "first", 'takes error or latest, not "first"'),
        ("maxOffsetsPerTrigger", "0", 'option maxOffsetsPerTrigger takes a whole number above 0, not "0"'),
        ("minPartitions", "-1", "option minPartitions takes a whole number above 0"),
        ("minPartitions", "3000000000", "option minPartitions takes a whole number above 0"),
        ("maxRecordsPerPartition", "1.5", "option maxRecordsPerPartition takes a whole number above 0"),
        ("failOnDataLoss", "maybe", 'option failOnDataLoss takes true or false, not "maybe"'),
        ("includeHeaders", "yes", 'option includeHeaders takes false or true, not "yes"'),
    ],
)
def test_given_an_option_that_cannot_be_when_parsed_then_it_is_named_with_what_it_takes(
    option: str, value: str, message: str
) -> None:
    assert message in refusal({**ENOUGH, option: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"subscribe": "t"}, "option kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "localhost:9092"}, "option subscribe is missing"),
        ({"kafka.bootstrap.servers": "localhost:9092", "subscribePattern": " "}, "option subscribePattern is empty"),
        ({"kafka.bootstrap.servers": "localhost:9092", "subscribePattern": "a("}, "is not a regular expression"),
        ({"kafka.bootstrap.servers": "localhost:9092", "assign": "t"}, 'option assign takes JSON as {"topic": [0, 1]}'),
    ],
)
def test_given_options_that_lack_something_when_parsed_then_it_is_said_what(
    values: dict[str, str], message: str
) -> None:
    assert message in refusal(values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "option startingOffsets cannot be the end in a batch query"),
        ({"endingOffsets": "earliest"}, "option endingOffsets cannot be the first offset in a batch query"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets of t-0 cannot be the end (-1)"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "option endingOffsets of t-0 cannot be the first offset (-2)"),
        (
            {"startingOffsets": '{"t": {"0": 9}}', "endingOffsets": '{"t": {"0": 5}}'},
            "option endingOffsets ends t-0 at 5, before it begins at 9",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 9}}', "endingOffsetsByTimestamp": '{"t": {"0": 5}}'},
            "option endingOffsetsByTimestamp ends t-0 at 5, before it begins at 9",
        ),
        (
            {"startingTimestamp": "9", "endingTimestamp": "5"},
            "option endingTimestamp is 5, before startingTimestamp, which is 9",
        ),
    ],
)
def test_given_options_that_make_no_sense_in_a_batch_when_one_begins_then_they_are_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(BadOption) as refused:
        parsed(**options).for_batch()

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingOffsets", '{"t": {"0": 5}}'),
        ("endingOffsetsByTimestamp", '{"t": {"0": 5}}'),
        ("endingTimestamp", "5"),
    ],
)
def test_given_an_end_when_a_stream_begins_then_it_is_refused(option: str, value: str) -> None:
    with pytest.raises(BadOption, match=f"option {option} is for batch queries: a stream has no end"):
        parsed(**{option: value}).for_stream()
