"""What a batch query reads, from a real broker, as Spark's Python processes do it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.protocol.batch import Codec
from penstock.protocol.records import Record, build_batch
from penstock.spark.errors import BadOffsets, BadOption, DataLost
from penstock.spark.reading import schema_of
from penstock.wire.errors import UnknownTopic
from tests.spark.source_topics import Topic, rows_of, topics_of
from tests.testkit import BrokerProcess, RawClient, broker_under_test, eventually
from tests.testkit.asking import NOW_MS, create_usable_topic

NOW = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=NOW_MS)


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(broker: BrokerProcess, raw: RawClient, topic_name: str) -> Topic:
    return Topic(broker, raw, topic_name)


@pytest.fixture
def two_partitions(broker: BrokerProcess, raw: RawClient, topic_name: str) -> Topic:
    """Ten records in each, a second apart; those of partition 1 are 20 seconds later."""
    topic = Topic(broker, raw, topic_name, 2)
    for partition in range(2):
        for number in range(10):
            later_ms = 1_000 * (number + 20 * partition)
            topic.write(b"%d-%d" % (partition, number), partition=partition, timestamp=NOW_MS + later_ms)
    return topic


# Rows


def test_given_keys_headers_and_nulls_when_read_then_rows_have_all_of_them(topic: Topic) -> None:
    records = [
        Record(b"k", b"v", (("a", b"1"), ("b", None)), NOW_MS),
        Record(None, b"", (), NOW_MS + 5),
        Record(b"", None, (), NOW_MS - 7),
    ]
    topic.write_batch(build_batch(records))

    rows = topic.read(includeHeaders=True)

    common = {"topic": topic.name, "partition": 0, "timestampType": 0}
    assert rows == [
        {
            **common,
            "key": b"k",
            "value": b"v",
            "offset": 0,
            "timestamp": NOW,
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        },
        {
            **common,
            "key": None,
            "value": b"",
            "offset": 1,
            "timestamp": NOW + timedelta(milliseconds=5),
            "headers": [],
        },
        {
            **common,
            "key": b"",
            "value": None,
            "offset": 2,
            "timestamp": NOW - timedelta(milliseconds=7),
            "headers": [],
        },
    ]
    assert [row.keys() - {"headers"} for row in topic.read()] == [row.keys() - {"headers"} for row in rows]


@pytest.mark.parametrize("with_headers", [False, True])
def test_given_any_rows_when_read_then_their_arrow_schema_is_what_spark_expects(
    topic: Topic, with_headers: bool
) -> None:
    topic.write(b"value")
    reader = topic.batch_reader(includeHeaders=with_headers)

    (batch,) = (batch for task in reader.partitions() for batch in reader.read(task))

    expected = schema_of(topic.options(includeHeaders=with_headers))
    assert batch.schema.equals(to_arrow_schema(expected, timezone="UTC"))
    batch.validate(full=True)


@pytest.mark.parametrize("codec", Codec)
def test_given_batches_of_a_codec_when_a_part_is_read_then_it_has_exactly_that_part(topic: Topic, codec: Codec) -> None:
    values = [b"%d-" % number * 50 for number in range(40)]
    for at in range(0, 40, 10):
        topic.write(*values[at : at + 10], codec=codec)

    assert topic.values(startingOffsets=topic.offsets(13), endingOffsets=topic.offsets(37)) == values[13:37]


def test_given_log_append_time_when_read_then_rows_say_so(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    appended = Topic(broker, raw, topic_name, message_timestamp_type="LogAppendTime")
    appended.write(b"value", timestamp=NOW_MS)

    (row,) = appended.read()

    assert row["timestampType"] == 1
    assert row["timestamp"] > NOW


def test_given_aborted_transactions_when_read_then_only_those_who_ask_see_them(topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction) * 2):
        producer.begin_transaction()
        producer.produce(topic.name, b"%d" % number, partition=0)
        producer.flush(30)  # an abort throws away what was not sent
        end(30)

    eventually(lambda: topic.ranges() == [(0, 0, 8)])  # with markers
    assert [(row["offset"], row["value"]) for row in topic.read()] == [(2, b"1"), (6, b"3")]
    assert topic.values(kafka_isolation_level="read_uncommitted") == [b"0", b"1", b"2", b"3"]
    # Where brokers note transactions is a topic too, but no pattern means it.
    every = topic.batch_reader(subscribe=None, subscribePattern=".*").partitions()
    assert topic.name in topics_of(every)
    assert not any(name.startswith("__") for name in topics_of(every))


def test_given_an_open_transaction_when_read_then_the_batch_ends_before_it(topic: Topic) -> None:
    topic.write(b"plain")
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush(30)

    assert topic.values() == [b"plain"]
    assert topic.values(kafka_isolation_level="read_uncommitted") == [b"plain", b"open"]
    producer.abort_transaction(30)


def test_given_a_compacted_topic_when_read_then_its_gaps_are_no_error(tmp_path: Path, topic_name: str) -> None:
    with (
        broker_under_test().start(tmp_path / "data", log_cleaner_backoff_ms=100) as broker,
        RawClient(broker.address) as raw,
    ):
        topic = Topic(
            broker,
            raw,
            topic_name,
            cleanup_policy="compact",
            segment_ms=100,
            min_cleanable_dirty_ratio=0.01,
            max_compaction_lag_ms=200,
        )
        for number in range(30):
            topic.write_batch(build_batch([Record(b"key", b"%d" % number, (), NOW_MS + 10_000 * number)]))

        rows = eventually(lambda: found if len(found := topic.read()) < 10 else None, 60)
        split = topic.read(maxRecordsPerPartition=4)

    assert rows[-1]["value"] == b"29"
    assert {row["offset"] for row in split} <= {row["offset"] for row in rows}


def test_given_times_that_spark_cannot_say_when_read_then_they_are_the_nearest_that_it_can(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    last = 2**63 - 1
    topic = Topic(broker, raw, topic_name, message_timestamp_after_max_ms=last, message_timestamp_before_max_ms=last)
    for time_ms in (last, NOW_MS, -last):
        topic.write(b"", timestamp=time_ms)
    reader = topic.batch_reader()

    (batch,) = (batch for task in reader.partitions() for batch in reader.read(task))

    microseconds = batch.column("timestamp").cast("int64").to_pylist()
    assert microseconds == [last // 1_000 * 1_000, NOW_MS * 1_000, -(last // 1_000 * 1_000)]


def test_given_a_long_partition_when_read_then_it_comes_in_parts_of_bounded_size(topic: Topic) -> None:
    for number in range(12):
        topic.write(*(bytes(100_000 + number) for _ in range(8)))
    reader = topic.batch_reader(kafka_max_partition_fetch_bytes=3_000_000)

    batches = [batch for task in reader.partitions() for batch in reader.read(task)]

    assert [batch.num_rows for batch in batches] == [48, 48]
    assert all(batch.nbytes < 6 << 20 for batch in batches)


# Ranges


def test_given_offsets_when_read_then_the_rows_are_those_between(two_partitions: Topic) -> None:
    starting, ending = two_partitions.offsets(3, -2), two_partitions.offsets(-1, 4)

    assert two_partitions.ranges() == [(0, 0, 10), (1, 0, 10)]
    assert two_partitions.ranges(startingOffsets=starting, endingOffsets=ending) == [(0, 3, 10), (1, 0, 4)]
    assert two_partitions.ranges(startingOffsets=two_partitions.offsets(10, 10)) == []


def test_given_times_when_read_then_the_rows_are_those_between(two_partitions: Topic) -> None:
    one_time = two_partitions.ranges(startingTimestamp=NOW_MS + 3_500, endingTimestamp=NOW_MS + 22_000)
    times = two_partitions.ranges(
        startingOffsetsByTimestamp=two_partitions.offsets(NOW_MS + 8_000, -2),
        endingOffsetsByTimestamp=two_partitions.offsets(-1, NOW_MS + 21_000),
    )

    assert one_time == [(0, 4, 10), (1, 0, 2)]
    assert times == [(0, 8, 10), (1, 0, 1)]


def test_given_a_time_after_all_records_when_read_then_it_is_an_error_or_the_end_as_asked(
    two_partitions: Topic,
) -> None:
    late = NOW_MS + 15_000
    with pytest.raises(BadOffsets, match=rf"startingTimestamp: {two_partitions.name}-0 has no record that late"):
        two_partitions.ranges(startingTimestamp=late)

    ranges = two_partitions.ranges(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")

    assert ranges == [(1, 0, 10)]


def test_given_options_for_tasks_when_planned_then_ranges_are_split_the_same_way_each_time(
    two_partitions: Topic,
) -> None:
    by_count = two_partitions.ranges(minPartitions=5)
    by_size = two_partitions.ranges(maxRecordsPerPartition=6)

    assert len(by_count) >= 5
    assert by_size == [(0, 0, 5), (0, 5, 10), (1, 0, 5), (1, 5, 10)]
    assert by_count == two_partitions.ranges(minPartitions=5)
    assert two_partitions.values(minPartitions=7) == two_partitions.values()


def test_given_a_pattern_or_partitions_when_read_then_only_those_are(
    two_partitions: Topic, raw: RawClient, topic_name: str
) -> None:
    create_usable_topic(raw, f"{topic_name}.other", retention_ms=-1)
    create_usable_topic(raw, f"not-{topic_name}", retention_ms=-1)

    pattern = two_partitions.read(subscribe=None, subscribePattern=f"{topic_name}.*")
    assigned = two_partitions.read(subscribe=None, assign=json.dumps({topic_name: [1]}))

    assert len(pattern) == 20
    assert {row["partition"] for row in assigned} == {1} and len(assigned) == 10
    with pytest.raises(BadOption, match="matches no topic"):
        two_partitions.read(subscribe=None, subscribePattern="nothing-like-it.*")
    with pytest.raises(UnknownTopic, match=rf"no partition {topic_name}-2: the topic has 2"):
        two_partitions.read(subscribe=None, assign=json.dumps({topic_name: [1, 2]}))


def test_given_conditions_when_planned_then_less_is_fetched(two_partitions: Topic) -> None:
    def ranges(*filters: object) -> object:
        return two_partitions.ranges(filters, filterPushdown=True)  # type: ignore[arg-type]

    assert ranges(EqualTo(("partition",), 1)) == [(1, 0, 10)]
    assert ranges(In(("offset",), (2, 4)), LessThan(("partition",), 1)) == [(0, 2, 5)]
    assert ranges(GreaterThanOrEqual(("timestamp",), NOW + timedelta(milliseconds=8_500))) == [(0, 9, 10), (1, 0, 10)]
    assert ranges(GreaterThanOrEqual(("timestamp",), NOW + timedelta(seconds=25))) == [(1, 5, 10)]
    assert ranges(EqualTo(("topic",), "other")) == []


# Losses


def test_given_offsets_that_are_not_there_when_planned_then_it_is_an_error_or_what_is_there_as_asked(
    topic: Topic,
) -> None:
    topic.write(*(b"%d" % number for number in range(10)))
    topic.delete_before(4)
    before, beyond = topic.offsets(2), topic.offsets(50)

    with pytest.raises(DataLost, match=rf"^option startingOffsets is 2 for {topic.name}-0, which has offsets 4 to 9"):
        topic.ranges(startingOffsets=before)
    with pytest.raises(DataLost, match=rf"^option endingOffsets is 50 for {topic.name}-0, .* and ends at 10"):
        topic.ranges(endingOffsets=beyond)
    assert topic.ranges() == [(0, 4, 10)]
    assert topic.ranges(startingOffsets=before, endingOffsets=beyond, failOnDataLoss=False) == [(0, 4, 10)]


def test_given_records_that_go_after_planning_when_read_then_it_is_an_error_or_the_rest_as_asked(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(*(b"%d" % number for number in range(10)))
    strict, lenient = topic.batch_reader(), topic.batch_reader(failOnDataLoss=False)
    planned = strict.partitions()
    topic.delete_before(6)

    with pytest.raises(DataLost, match=rf"^{topic.name}-0: offset 0 is not there any more, the first one is 6"):
        rows_of(strict, planned)
    assert [row["offset"] for row in rows_of(lenient, planned)] == [6, 7, 8, 9]
    assert f"{topic.name}-0: offset 0 is not there any more" in caplog.text


def test_given_records_that_go_in_the_midst_of_a_task_when_it_goes_on_then_all_it_had_read_before_is_there(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        topic.write(bytes(1_000_000))
    for number in range(5, 20):
        topic.write(b"%d" % number)
    reader = topic.batch_reader(failOnDataLoss=False, kafka_max_partition_fetch_bytes=1)
    (task,) = reader.partitions()
    parts = reader.read(task)

    offsets = next(parts).column("offset").to_pylist()  # it is full, so that the task waits here
    topic.delete_before(18)
    offsets += [offset for part in parts for offset in part.column("offset").to_pylist()]

    (lost,) = map(int, re.findall(r"offset (\d+) is not there any more, the first one is 18", caplog.text))
    assert offsets == [*range(lost), 18, 19]


def test_given_a_topic_that_is_made_anew_after_planning_when_read_then_it_is_an_error_or_nothing_as_asked(
    topic: Topic,
) -> None:
    topic.write(b"old", b"old")
    strict, lenient = topic.batch_reader(), topic.batch_reader(failOnDataLoss=False)
    planned = strict.partitions()
    topic.create_again()
    topic.write(b"new", b"new")

    with pytest.raises(DataLost, match=rf'^offsets 0 to 1 of {topic.name}-0: topic "{topic.name}" was deleted and'):
        rows_of(strict, planned)
    assert rows_of(lenient, planned) == []


def test_given_offsets_of_a_topic_that_was_made_anew_when_pasted_then_they_are_refused(topic: Topic) -> None:
    topic.write(b"old")
    reader = topic.stream_reader(startingOffsets="earliest")
    noted = json.dumps(reader.initialOffset())
    reader.stop()
    assert topic.ranges(startingOffsets=noted) == [(0, 0, 1)]
    topic.create_again()

    with pytest.raises(BadOffsets, match=rf'startingOffsets is of a topic "{topic.name}" that was deleted and created'):
        topic.ranges(startingOffsets=noted)


def test_given_offsets_that_lack_a_partition_or_have_another_when_planned_then_it_is_named(
    two_partitions: Topic,
) -> None:
    name = two_partitions.name
    with pytest.raises(BadOffsets, match=rf"option startingOffsets lacks {name}-1: name every partition"):
        two_partitions.ranges(startingOffsets=two_partitions.offsets(0))
    with pytest.raises(BadOffsets, match=rf"option endingOffsets has {name}-2, which this query does not read"):
        two_partitions.ranges(endingOffsets=two_partitions.offsets(1, 1, 1))
