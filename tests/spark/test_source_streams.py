"""What a stream reads batch by batch, from a real broker, as Spark's Python processes do it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from penstock.spark.errors import BadOffsets, DataLost
from penstock.spark.stream_reader import StreamReader
from penstock.wire.errors import UnknownTopic
from tests.spark.source_topics import Ranges, Topic, ranges_of, rows_of
from tests.testkit import BrokerProcess, RawClient, broker_under_test, eventually, lasting_port
from tests.testkit.asking import create_usable_topic

ALL = ReadAllAvailable()

Json = dict[str, Any]


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(broker: BrokerProcess, raw: RawClient, topic_name: str) -> Topic:
    return Topic(broker, raw, topic_name)


class Query:
    """Asks a reader what Spark asks it, in Spark's order; what it has is what a checkpoint has."""

    def __init__(self, topic: Topic, **options: object) -> None:
        self._topic = topic
        self._options = {"startingOffsets": "earliest", **options}
        self.end: Json | None = None
        self.restart()

    def restart(self, **options: object) -> None:
        self._options |= options
        self.reader: StreamReader = self._topic.stream_reader(**self._options)

    def plan(self, limit: ReadLimit = ALL) -> tuple[Json, Json]:
        start = self.end or self.reader.initialOffset()
        return start, _through_json(self.reader.latestOffset(_through_json(start), limit))

    def ranges(self, limit: ReadLimit = ALL) -> Ranges:
        """Of the next batch, which is done then."""
        start, end = self.plan(limit)
        # Spark asks for the first start again.
        planned = self.reader.partitions(self.end or self.reader.initialOffset(), end) if start != end else []
        self.end = end
        return ranges_of(planned)

    def values(self, limit: ReadLimit = ALL) -> list[bytes | None]:
        start, self.end = self.plan(limit)
        return [row["value"] for row in rows_of(self.reader, self.reader.partitions(start, self.end))]


def _through_json(offsets: Json) -> Json:
    found: Json = json.loads(json.dumps(offsets))
    return found


# Going on


def test_given_records_that_come_when_a_stream_goes_on_then_each_batch_has_what_is_new(topic: Topic) -> None:
    topic.write(b"0", b"1")
    query = Query(topic)

    assert query.values() == [b"0", b"1"]
    topic.write(b"2")
    assert query.values() == [b"2"]
    start, end = query.plan()
    assert json.dumps(start) == json.dumps(end)
    query.restart()
    topic.write(b"3")
    assert query.values() == [b"3"]


def test_given_nothing_said_when_a_stream_begins_then_it_is_at_the_end(topic: Topic) -> None:
    topic.write(b"0", b"1")
    query = Query(topic, startingOffsets=None)
    query.reader.initialOffset()
    topic.write(b"2")

    assert query.values() == [b"2"]


def test_given_offsets_that_were_planned_when_read_then_they_have_the_shape_of_sparks_source(topic: Topic) -> None:
    topic.write(b"0", b"1")
    query = Query(topic)
    query.values()

    end = query.end
    assert end is not None
    topic_id = end["#topic-ids"][topic.name]
    assert end == {
        topic.name: {"0": 2},
        "#topic-ids": {topic.name: topic_id},
        "#starting-offsets": {topic.name: {"0": 0}},
    }
    assert query.reader.reportLatestOffset() == {topic.name: {"0": 2}, "#topic-ids": {topic.name: topic_id}}
    topic.write(b"2")
    query.values()
    assert query.end == {topic.name: {"0": 3}, "#topic-ids": {topic.name: topic_id}}


def test_given_a_first_batch_that_did_not_end_when_started_again_then_it_has_the_same_records(topic: Topic) -> None:
    """Spark has no note of where a query began, and asks a new reader: by then the end is elsewhere."""
    topic.write(b"before")
    query = Query(topic, startingOffsets="latest")
    query.reader.initialOffset()
    topic.write(b"0", b"1")
    _, end = query.plan()
    topic.write(b"2")

    query.restart()
    replayed = query.reader.partitions(query.reader.initialOffset(), end)

    assert ranges_of(replayed) == [(0, 1, 3)]
    query.end = end
    assert query.values() == [b"2"]


def test_given_a_limit_when_batches_follow_then_none_has_more_and_all_comes(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    topic = Topic(broker, raw, topic_name, 2)
    topic.write(*(b"0-%d" % number for number in range(30)))
    topic.write(*(b"1-%d" % number for number in range(10)), partition=1)
    query = Query(topic, maxOffsetsPerTrigger=15, minPartitions=4)
    limit = query.reader.getDefaultReadLimit()

    assert limit == ReadMaxRows(15)
    batches = [query.ranges(limit) for _ in range(4)]

    assert [sum(end - start for _, start, end in each) for each in batches] == [15, 15, 10, 0]
    assert {number for number, _, _ in batches[0]} == {0, 1}
    assert len(batches[0]) == 4


def test_given_available_now_when_records_come_meanwhile_then_the_stream_ends_where_it_was_going_to(
    topic: Topic,
) -> None:
    topic.write(b"0", b"1", b"2")
    query = Query(topic)
    query.reader.prepareForTriggerAvailableNow()
    topic.write(b"3")

    assert query.values(ReadMaxRows(2)) == [b"0", b"1"]
    assert query.values(ReadMaxRows(2)) == [b"2"]
    start, end = query.plan(ReadMaxRows(2))
    assert start == end


def test_given_new_partitions_when_a_stream_goes_on_then_they_are_read_from_their_beginning(topic: Topic) -> None:
    topic.write(b"0-0")
    query = Query(topic, startingOffsets="latest")
    assert query.values() == []
    topic.grow(3)
    topic.write(b"2-0", partition=2)

    assert query.ranges() == [(2, 0, 1)]
    assert (query.end or {})[topic.name] == {"0": 1, "1": 0, "2": 1}


def test_given_a_pattern_when_a_topic_comes_that_matches_then_it_is_read(topic: Topic, raw: RawClient) -> None:
    other = f"{topic.name}.other"
    topic.write(b"0")
    query = Query(topic, subscribe=None, subscribePattern=f"{topic.name}.*")
    assert query.values() == [b"0"]
    create_usable_topic(raw, other, retention_ms=-1)
    topic.write(b"1")

    assert query.values() == [b"1"]
    assert (query.end or {})[other] == {"0": 0}


def test_given_a_pattern_that_matches_nothing_yet_when_a_topic_comes_then_it_is_read(
    broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    shell = Topic(broker, raw, f"not-{topic_name}")
    query = Query(shell, subscribe=None, subscribePattern=topic_name)
    assert query.values() == []
    late = Topic(broker, raw, topic_name)
    late.write(b"0")

    assert query.values() == [b"0"]


def test_given_an_open_transaction_when_it_is_committed_then_its_records_come_in_the_next_batch(topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"0", partition=0)
    producer.flush(30)
    query = Query(topic)

    assert query.values() == []
    producer.commit_transaction(30)
    assert eventually(query.values) == [b"0"]


def test_given_a_query_that_read_open_transactions_when_it_reads_committed_ones_then_it_waits_and_loses_nothing(
    topic: Topic,
) -> None:
    producer = Producer({"bootstrap.servers": topic.broker.bootstrap, "transactional.id": topic.name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"0", partition=0)
    producer.flush(30)
    query = Query(topic, kafka_isolation_level="read_uncommitted")
    assert query.values() == [b"0"]

    query.restart(kafka_isolation_level="read_committed")
    start, end = query.plan()

    assert start == end
    producer.commit_transaction(30)


# Losing


def test_given_records_that_were_deleted_unread_when_a_stream_goes_on_then_it_is_an_error_or_the_rest_as_asked(
    topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(b"0", b"1")
    query = Query(topic)
    query.values()
    topic.write(*(b"%d" % number for number in range(2, 10)))
    topic.delete_before(7)
    start, end = query.plan()

    with pytest.raises(DataLost) as lost:
        query.reader.partitions(start, end)
    assert str(lost.value) == (
        f"offsets 2 to 6 of {topic.name}-0 are not there any more, the first one is 7 "
        "(failOnDataLoss=false goes on with what is there)"
    )
    query.restart(failOnDataLoss=False)
    assert query.values() == [b"7", b"8", b"9"]
    assert f"offsets 2 to 6 of {topic.name}-0 are not there any more" in caplog.text


def test_given_a_new_partition_of_which_the_beginning_is_gone_when_a_stream_goes_on_then_that_is_a_loss(
    topic: Topic,
) -> None:
    query = Query(topic)
    assert query.values() == []
    topic.grow(2)
    topic.write(b"0", b"1", partition=1)
    topic.delete_before(1, partition=1)

    with pytest.raises(DataLost, match=rf"offsets 0 to 0 of {topic.name}-1 are not there any more"):
        query.values()


@pytest.mark.parametrize("available_now", [False, True])
def test_given_a_topic_that_was_made_anew_when_a_stream_goes_on_then_it_is_an_error_or_the_new_one_as_asked(
    topic: Topic, available_now: bool
) -> None:
    topic.write(b"0", b"1")
    query = Query(topic)
    query.values()
    topic.create_again()
    topic.write(b"new-0", b"new-1", b"new-2")
    query.restart()
    if available_now:
        query.reader.prepareForTriggerAvailableNow()

    with pytest.raises(DataLost) as lost:
        query.plan()
    assert str(lost.value).startswith(
        f'topic "{topic.name}" was deleted and created anew, offset 2 of {topic.name}-0 is not what it was'
    )
    query.restart(failOnDataLoss=False)
    assert query.values() == [b"new-0", b"new-1", b"new-2"]
    assert query.values() == []


def test_given_a_batch_that_was_planned_before_its_topic_was_made_anew_when_run_again_then_it_is_a_loss(
    topic: Topic,
) -> None:
    topic.write(b"0", b"1")
    query = Query(topic)
    start, end = query.plan()
    topic.create_again()
    topic.write(b"new-0", b"new-1", b"new-2")

    query.restart()
    with pytest.raises(DataLost, match="was deleted and created anew"):
        query.reader.partitions(start, end)
    query.restart(failOnDataLoss=False)
    assert rows_of(query.reader, query.reader.partitions(start, end)) == []


def test_given_a_partition_lost_after_a_batch_was_planned_when_it_is_run_again_then_its_tasks_keep_their_numbers(
    topic: Topic,
) -> None:
    topic.grow(2)
    topic.write(b"0", b"1", partition=0)
    topic.write(b"2", b"3", b"4", partition=1)
    query = Query(topic, failOnDataLoss=False, minPartitions=4)
    start, end = query.plan()
    planned = ranges_of(query.reader.partitions(start, end))
    topic.delete_before(2, partition=0)
    topic.delete_before(1, partition=1)

    query.restart()
    again = query.reader.partitions(start, end)

    assert planned == [(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2), (1, 2, 3)]
    assert [[row["value"] for row in rows_of(query.reader, [task])] for task in again] == [[], [], [], [b"3"], [b"4"]]


def test_given_a_topic_that_is_gone_when_a_stream_goes_on_then_it_is_an_error_or_no_more_as_asked(
    topic: Topic, raw: RawClient
) -> None:
    other = f"{topic.name}-other"
    create_usable_topic(raw, other, retention_ms=-1)
    topic.write(b"0", b"1")
    # It is asked for repeatedly, since a broker that has just come back may not know it yet.
    query = Query(topic, subscribe=f"{topic.name},{other}", kafka_default_api_timeout_ms=1_000)
    query.values()
    topic.delete()

    with pytest.raises(DataLost, match=rf"^{topic.name}-0 is not there any more, and was read up to offset 2"):
        query.plan()
    query.restart(failOnDataLoss=False)
    assert query.values() == []
    assert topic.name not in (query.end or {})


def test_given_a_topic_that_never_was_when_it_is_added_to_a_stream_then_it_is_named(topic: Topic) -> None:
    topic.write(b"0")
    query = Query(topic, kafka_default_api_timeout_ms=1_000)
    query.values()
    query.restart(subscribe=f"{topic.name},nothing-like-it")

    with pytest.raises(UnknownTopic, match='no topic "nothing-like-it"'):
        query.plan()


def test_given_a_topic_that_is_not_asked_for_any_more_when_a_stream_goes_on_then_that_is_a_loss(
    topic: Topic, raw: RawClient
) -> None:
    other = f"{topic.name}-other"
    create_usable_topic(raw, other, retention_ms=-1)
    query = Query(topic, subscribe=f"{topic.name},{other}")
    query.values()
    query.restart(subscribe=topic.name)

    with pytest.raises(DataLost, match=rf"^{other}-0 was read up to offset 0, and is not read by this query any more"):
        query.plan()


def test_given_a_checkpoint_of_another_query_when_a_stream_goes_on_then_that_is_said(
    topic: Topic, raw: RawClient
) -> None:
    other = f"{topic.name}-other"
    create_usable_topic(raw, other, retention_ms=-1)
    topic.write(b"0")
    query = Query(topic)
    query.values()
    query.restart(subscribe=other, failOnDataLoss=False)

    with pytest.raises(BadOffsets, match=rf"^the checkpoint is of another query: it has offsets of {topic.name}-0"):
        query.plan()
    with pytest.raises(BadOffsets, match=r"^the checkpoint takes an object"):
        query.reader.latestOffset(7, ALL)  # type: ignore[arg-type]


# Failing brokers


def test_given_a_broker_that_restarts_when_a_stream_goes_on_then_it_waits_for_it(
    tmp_path: Path, topic_name: str
) -> None:
    with broker_under_test().start(tmp_path / "data", port=lasting_port()) as broker:
        with RawClient(broker.address) as raw:
            topic = Topic(broker, raw, topic_name)
            topic.write(b"0")
            query = Query(topic)
            assert query.values() == [b"0"]
            topic.write(b"1")
        start, end = query.plan()
        planned = query.reader.partitions(start, end)
        broker.kill()
        with ThreadPoolExecutor() as threads:
            planned_again = threads.submit(query.plan)
            rows = threads.submit(rows_of, topic.stream_reader(), planned)
            broker.restart(same_port=True)

            assert planned_again.result(60) == (start, end)
            assert [row["value"] for row in rows.result(60)] == [b"1"]
