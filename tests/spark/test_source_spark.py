"""The source as users of Spark meet it: sessions, queries, checkpoints and the errors that they see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from penstock.protocol.records import Record, build_batch
from penstock.spark import register
from tests.spark.source_topics import Topic
from tests.testkit import BrokerProcess, RawClient, eventually
from tests.testkit.asking import NOW_MS, a_batch, create_usable_topic, produce
from tests.testkit.java import require_jars
from tests.wire.secured_kafka import PASSWORD, USER, SecuredKafka

# As documented for Spark's own Kafka source.
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(broker: BrokerProcess, raw: RawClient, topic_name: str) -> Topic:
    """Two partitions with ten records each."""
    topic = Topic(broker, raw, topic_name, 2)
    for partition in range(2):
        topic.write(*(b"%d-%d" % (partition, number) for number in range(10)), partition=partition)
    return topic


def load(spark: SparkSession, topic: Topic, **options: object) -> DataFrame:
    return spark.read.format("penstock").options(**topic.options(**options)).load()


def load_stream(spark: SparkSession, topic: Topic, **options: object) -> DataFrame:
    return spark.readStream.format("penstock").options(**topic.options(**options)).load()


def refusal(attempt: Any) -> str:
    with pytest.raises(PySparkException) as refused:
        attempt()
    message = str(refused.value)
    assert "Traceback" not in message
    return message


class Copied:
    """What a stream has written, in files: each run goes on where the one before was."""

    def __init__(self, spark: SparkSession, topic: Topic, directory: Path, **options: object) -> None:
        self._spark = spark
        self._topic = topic
        self._directory = directory
        self._options = {"startingOffsets": "earliest", **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = load_stream(self._spark, self._topic, **self._options)
        writer = stream.selectExpr("cast(value as string)").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(**trigger).start(str(self._directory / "files"))

    def run(self, **trigger: Any) -> list[dict[str, Any]]:
        """Its progress by batch."""
        query = self.start(**(trigger or {"availableNow": True}))
        query.awaitTermination(100)
        return [json.loads(progress.json) for progress in query.recentProgress]

    def values(self) -> list[str]:
        return sorted(row.value for row in self._spark.read.parquet(str(self._directory / "files")).collect())


# Batches


@pytest.mark.parametrize("with_headers", [False, True])
def test_given_a_topic_when_loaded_then_the_schema_is_that_of_sparks_own_source(
    spark: SparkSession, topic: Topic, with_headers: bool
) -> None:
    expected = StructType.fromDDL(f"{COLUMNS}, {HEADERS}" if with_headers else COLUMNS)

    assert load(spark, topic, includeHeaders=with_headers).schema == expected
    assert load_stream(spark, topic, includeHeaders=with_headers).schema == expected


def test_given_records_when_read_then_rows_have_what_was_written(
    spark: SparkSession, broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    topic = Topic(broker, raw, topic_name)
    records = [Record(b"k", b"v", (("a", b"1"), ("b", None)), NOW_MS + 7), Record(None, None, (), NOW_MS)]
    topic.write_batch(build_batch(records))

    rows = load(spark, topic, includeHeaders=True).selectExpr("*", "unix_millis(timestamp) as ms").collect()

    assert [(row.key, row.value, row.offset, row.ms, row.headers) for row in rows] == [
        (b"k", b"v", 0, NOW_MS + 7, [("a", b"1"), ("b", None)]),
        (None, None, 1, NOW_MS, []),
    ]
    assert {(row.topic, row.partition, row.timestampType) for row in rows} == {(topic_name, 0, 0)}


def test_given_an_empty_topic_when_read_then_there_are_no_rows(
    spark: SparkSession, broker: BrokerProcess, raw: RawClient, topic_name: str
) -> None:
    assert load(spark, Topic(broker, raw, topic_name)).count() == 0


def test_given_more_tasks_are_asked_for_when_read_then_there_are_as_many_and_all_rows_come_once(
    spark: SparkSession, topic: Topic
) -> None:
    frame = load(spark, topic, minPartitions=6)

    assert frame.rdd.getNumPartitions() == 6
    rows = frame.selectExpr("partition", "offset", "cast(value as string)").collect()
    assert sorted(map(tuple, rows)) == [(p, n, f"{p}-{n}") for p in range(2) for n in range(10)]


def test_given_a_frame_that_is_used_with_several_conditions_when_read_then_each_has_its_rows(
    spark: SparkSession, topic: Topic
) -> None:
    """Spark 4.3 would give what one condition left to the others: nothing is pushed down unless that is asked for."""
    frame = load(spark, topic)
    first, second = frame.filter("partition = 0"), frame.filter("partition = 1 and offset < 5")

    assert first.count() == 10
    assert frame.count() == 20
    assert first.union(second).count() == 15
    assert frame.count() == 20


def test_given_a_condition_that_is_pushed_down_when_read_then_fewer_tasks_have_the_same_rows(
    spark: SparkSession, topic: Topic
) -> None:
    condition = "partition = 1 and offset >= 4 and timestamp >= '2020-01-01' and value is not null"

    pushed = load(spark, topic, filterPushdown=True).filter(condition)
    plain = load(spark, topic).filter(condition)

    assert (pushed.rdd.getNumPartitions(), plain.rdd.getNumPartitions()) == (1, 2)
    assert sorted(pushed.collect()) == sorted(plain.collect())
    assert pushed.count() == 6


def test_given_a_session_that_pushes_no_filters_down_when_only_registered_then_it_reads(
    spark: SparkSession, topic: Topic
) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    register(other)

    assert load(other, topic).filter("partition = 0").count() == 10


@pytest.mark.parametrize(("chosen", "then"), [(None, "false"), ("true", "true")])
def test_given_a_session_of_somebody_else_s_when_registered_then_its_streams_keep_their_tasks_unless_it_says_otherwise(
    spark: SparkSession, chosen: str | None, then: str
) -> None:
    key = "spark.sql.adaptive.streaming.stateless.enabled"
    other = spark.newSession()
    other.conf.unset(key)
    if chosen is not None:
        other.conf.set(key, chosen)

    register(other)

    assert other.conf.get(key) == then


# Streams


def test_given_available_now_when_run_again_and_again_then_all_comes_once_and_limits_hold(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    copied = Copied(spark, topic, tmp_path, maxOffsetsPerTrigger=8)

    first = copied.run()
    topic.write(b"late", partition=1)
    second = copied.run()
    third = copied.run()

    assert [progress["numInputRows"] for progress in first if progress["numInputRows"]] == [8, 8, 4]
    assert [progress["numInputRows"] for progress in second if progress["numInputRows"]] == [1]
    assert sum(progress["numInputRows"] for progress in third) == 0
    assert copied.values() == sorted(["late", *(f"{p}-{n}" for p in range(2) for n in range(10))])
    (source,) = second[0]["sources"]
    assert source["endOffset"][topic.name] == {"0": 10, "1": 11}
    assert source["latestOffset"][topic.name] == {"0": 10, "1": 11}


def test_given_the_trigger_once_when_run_then_all_comes_in_one_batch(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    progress = Copied(spark, topic, tmp_path, maxOffsetsPerTrigger=8).run(once=True)

    assert [each["numInputRows"] for each in progress] == [20]


def test_given_a_running_stream_when_partitions_are_added_then_it_reads_them_too(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    copied = Copied(spark, topic, tmp_path, startingOffsets="latest")
    query = copied.start(processingTime="100 milliseconds")
    try:
        eventually(lambda: query.lastProgress is not None, 60)
        topic.write(b"old")
        topic.grow(3)
        topic.write(b"new", partition=2)
        eventually(lambda: copied.values() == ["new", "old"] if query.lastProgress else None, 60)
    finally:
        query.stop()


def test_given_a_first_batch_that_fails_when_its_beginning_goes_meanwhile_then_that_is_a_loss_and_no_new_beginning(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Spark keeps no note of where a query began, but asks again: the first offset is another one by then."""

    def fail(batch: DataFrame, _: int) -> None:
        raise ValueError("as if killed")

    writer = load_stream(spark, topic, startingOffsets="earliest").writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="as if killed"):
        writer.foreachBatch(fail).start().awaitTermination(60)
    topic.delete_before(6)

    again = refusal(writer.foreachBatch(lambda batch, _: None).start().awaitTermination)

    assert f"DataLost: offsets 0 to 5 of {topic.name}-0 are not there any more, the first one is 6" in again


# Errors


def test_given_what_cannot_be_read_when_tried_then_one_sentence_says_why(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    nowhere = {"kafka_bootstrap_servers": "127.0.0.1:1"}
    said_of_batches = [
        refusal(lambda: load(spark, topic, subscribe="nothing-like-it").count()),
        refusal(lambda: load(spark, topic, **nowhere).count()),
        refusal(lambda: load(spark, topic, subscribe=None, subscribePatern="x")),
        refusal(lambda: load(spark, topic, startingOffsets="latest").count()),
        refusal(lambda: spark.read.format("penstock").options(**topic.options()).load("/x")),
        refusal(lambda: spark.read.schema("value binary").format("penstock").options(**topic.options()).load().count()),
    ]
    said_of_streams = [
        refusal(lambda: Copied(spark, topic, tmp_path, subscribe="nothing-like-it").run()),
        refusal(lambda: Copied(spark, topic, tmp_path, **nowhere).run()),
        refusal(lambda: Copied(spark, topic, tmp_path, endingTimestamp=5).run()),
    ]

    expected = [
        'UnknownTopic: no topic "nothing-like-it"',
        "Unreachable: no broker there, is it running? 127.0.0.1:1",
        "BadOption: option subscribepatern is not known to the source: did you mean subscribePattern?",
        "BadOption: option startingOffsets cannot be the end in a batch query",
        "BadOption: option path is not known here: topics have no path",
        "BadOption: option schema cannot be chosen: the columns are struct<key:binary",
        'UnknownTopic: no topic "nothing-like-it"',
        "Unreachable: no broker there, is it running? 127.0.0.1:1",
        "BadOption: option endingTimestamp is for batch queries: a stream has no end",
    ]
    # Spark's own words come first, then ours, and nothing in between.
    for said, ours in zip(said_of_batches + said_of_streams, expected, strict=True):
        assert ours in said.partition("\n")[0]


def test_given_records_that_go_between_plan_and_task_when_read_then_the_error_names_the_offsets(
    spark: SparkSession, topic: Topic
) -> None:
    frame = load(spark, topic)
    assert frame.rdd.getNumPartitions() == 2
    topic.delete_before(6)

    assert f"DataLost: {topic.name}-0: offset 0 is not there any more, the first one is 6" in refusal(frame.collect)


def test_given_a_wrong_password_when_read_then_the_broker_and_its_reason_are_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    require_jars()
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    with SecuredKafka.start(tmp_path / "data") as kafka, RawClient(kafka.address) as raw:
        kafka.add_scram_user()
        create_usable_topic(raw, "orders", retention_ms=-1)
        assert produce(raw, "orders", a_batch(b"one")).error_code == 0
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_of("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": USER,
            "kafka.ssl.ca.location": str(kafka.directory / "ca.pem"),
            "subscribe": "orders",
        }
        reader = spark.read.format("penstock").options(**options)

        refused = refusal(lambda: reader.option("kafka.sasl.password", "guessed").load().count())
        allowed = reader.option("kafka.sasl.password", PASSWORD).load().count()

    assert f'refuses "{USER}" (PLAIN)' in refused
    assert "guessed" not in refused
    assert allowed == 1
