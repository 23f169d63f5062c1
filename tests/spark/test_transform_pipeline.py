"""Topic to topic: what is kept, what is changed, and what is refused before anything moves."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines import checkpoints
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.transform import plan_transform, transform
from penstock.wire.errors import UnknownTopic
from tests.spark.piping import Found, Given, create, fill, fill_json, read, values
from tests.testkit import BrokerProcess

NOW_MS = 1_790_000_000_000


class Topics:
    """A source with records and a target, and how a transform between them is run."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, directory: Path) -> None:
        self.spark, self.bootstrap = spark, bootstrap
        self.source, self.target, self.quarantine = f"{name}-in", f"{name}-out", f"{name}-bad"
        self.checkpoint = str(directory / "checkpoint")
        create(bootstrap, self.source, self.target, partitions=2)

    def arguments(self, **others: Any) -> dict[str, Any]:
        common = {"bootstrap": self.bootstrap, "topic": self.source, "to": self.target, "checkpoint": self.checkpoint}
        return common | others

    def run(self, **others: Any) -> int:
        return transform(self.spark, **self.arguments(**others)).rows

    def plan(self, **others: Any) -> list[tuple[str, str]]:
        return plan_transform(self.spark, **self.arguments(**others)).lines()


@pytest.fixture
def topics(spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Topics:
    return Topics(spark, broker.bootstrap, topic_name, tmp_path)


def test_given_sql_that_names_the_value_when_it_runs_then_all_else_stays_as_it_was_and_in_order(topics: Topics) -> None:
    odd = b"\xff\xfe no text"
    records = [
        Given(f"v{n}", f"k{n % 3}", n % 2, (("trace", b"t%d" % n), ("trace", odd)), NOW_MS + n) for n in range(50)
    ]
    fill(topics.bootstrap, topics.source, [*records, Given("keyed by bytes", odd, 1, (), NOW_MS), Given(None, "gone")])

    rows = topics.run(sql="SELECT upper(value) AS value -- 🜚, and key\nFROM input WHERE offset <> 3 OR value IS NULL")

    kept = [record for n, record in enumerate(records) if n // 2 != 3]
    first, second = read(topics.bootstrap, topics.target)
    assert rows == 52
    assert first[:-1] == [shouted(record) for record in kept if record.partition == 0]
    assert second[:-1] == [shouted(record) for record in kept if record.partition == 1]
    assert (first[-1].value, first[-1].key) == (None, b"gone")
    assert second[-1] == Found(b"KEYED BY BYTES", odd, (), NOW_MS)


def test_given_a_checkpoint_when_it_runs_again_then_only_new_records_are_written(topics: Topics) -> None:
    sql = "SELECT concat(value, '!') AS value FROM input"
    fill(topics.bootstrap, topics.source, [Given("a"), Given("b", partition=1)])
    topics.run(sql=sql)
    fill(topics.bootstrap, topics.source, [Given("c"), Given("d", partition=1), Given("e")])

    topics.run(sql=sql, max_per_batch=2)

    assert values(topics.bootstrap, topics.target) == [[b"a!", b"c!", b"e!"], [b"b!", b"d!"]]


def test_given_a_batch_that_is_done_again_when_it_has_the_time_in_it_then_it_is_the_same_and_not_written_twice(
    topics: Topics,
) -> None:
    """As after a kill between the sink's commit and Spark's: Spark gives a batch its time again."""
    fill(topics.bootstrap, topics.source, [Given("a"), Given("b", partition=1)])
    times = "current_timestamp(), current_date(), localtimestamp(), unix_timestamp()"
    sql = f"SELECT concat(value, {times}) AS value FROM input"
    topics.run(sql=sql)
    before = values(topics.bootstrap, topics.target)
    for name in ("0", ".0.crc"):
        (Path(topics.checkpoint) / "commits" / name).unlink()

    topics.run(sql=sql)

    assert values(topics.bootstrap, topics.target) == before
    assert [len(records) for records in before] == [1, 1]


def test_given_sql_that_sets_everything_when_it_runs_then_records_are_as_it_says(topics: Topics) -> None:
    fill_json(topics.bootstrap, topics.source, [{"user": "eve", "ms": 12}, {"user": "bob", "ms": 7}])
    other = f"{topics.target}-other"
    create(topics.bootstrap, other, partitions=2)
    sql = f"""
        WITH parted AS (SELECT json.user AS who, json.ms, offset FROM input)
        SELECT if(ms > 10, '{topics.target}', '{other}') AS topic, CAST(1 - offset AS INT) AS partition,
               who AS key, to_json(named_struct('seconds', ms / 1000)) AS value,
               array(named_struct('key', 'who', 'value', CAST(who AS BINARY))) AS headers,
               timestamp_millis(ms) AS timestamp
        FROM parted
    """

    topics.run(sql=sql, schema="user STRING, ms BIGINT", to=None)

    bob = Found(b'{"seconds":0.007}', b"bob", (("who", b"bob"),), 7)
    eve = Found(b'{"seconds":0.012}', b"eve", (("who", b"eve"),), 12)
    assert read(topics.bootstrap, topics.target) == [[], [eve]]
    assert read(topics.bootstrap, other) == [[bob], []]


def test_given_a_function_by_name_with_code_for_executors_when_it_runs_then_they_need_not_have_its_module(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_the_driver.py").write_text(
        "from pyspark.sql.functions import explode, split, udf\n"
        "def reversed_values(records):\n"
        "    words = records.withColumn('value', explode(split('value', ' ')))\n"
        "    return words.withColumn('value', udf(lambda text: text[::-1])('value'))\n"
    )
    monkeypatch.chdir(tmp_path)
    fill(topics.bootstrap, topics.source, [Given("abc de"), Given("f")])

    topics.run(function="only_on_the_driver:reversed_values")

    assert values(topics.bootstrap, topics.target)[0] == [b"cba", b"ed", b"f"]


def test_given_values_that_are_not_json_when_there_is_a_quarantine_then_they_are_there_with_the_reason(
    topics: Topics,
) -> None:
    create(topics.bootstrap, topics.quarantine)
    good, bad = '{"n": 1}', '{"n": "one"}'
    fill(topics.bootstrap, topics.source, [Given(good), Given(bad, "k", 1, (("h", b"x"),), NOW_MS), Given("{}")])

    rows = topics.run(
        sql="SELECT CAST(json.n + 1 AS STRING) AS value FROM input",
        schema="n BIGINT NOT NULL",
        quarantine=topics.quarantine,
    )

    assert rows == 3
    assert values(topics.bootstrap, topics.target) == [[b"2"], []]
    (found,) = read(topics.bootstrap, topics.quarantine)
    by_value = {record.value: record for record in found}
    assert by_value.keys() == {b"{}", bad.encode()}
    headers = dict(by_value[bad.encode()].headers)
    assert (by_value[bad.encode()].key, by_value[bad.encode()].timestamp_ms) == (b"k", NOW_MS)
    assert headers == {
        "h": b"x",
        "penstock-quarantine-reason": b"it is not JSON of n bigint",
        "penstock-quarantine-topic": topics.source.encode(),
        "penstock-quarantine-partition": b"1",
        "penstock-quarantine-offset": b"0",
    }
    assert dict(by_value[b"{}"].headers)["penstock-quarantine-reason"] == b"it has no n"


def test_given_a_value_that_is_not_json_when_it_may_not_be_left_out_then_the_error_says_where_it_is(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topics.bootstrap, topics.source, [Given('{"n": 1}'), Given("nonsense")])
    sql = "SELECT CAST(json.n AS STRING) AS value FROM input"

    with pytest.raises(PipelineError, match=f"{topics.source}-0 offset 1: it is not JSON of n bigint; --quarantine"):
        topics.run(sql=sql, schema="n BIGINT")
    caplog.set_level(logging.INFO)
    topics.run(sql=sql, schema="n BIGINT", skip_bad=True)

    assert [getattr(line, "bad", 0) for line in caplog.records if line.getMessage() == "batch done"] == [1]
    assert values(topics.bootstrap, topics.target) == [[b"1"], []]


VALUE = "SELECT value FROM input"


def test_given_bad_arguments_when_it_is_planned_then_one_sentence_says_why_and_nothing_is_left(topics: Topics) -> None:
    """What is asked of the query itself is in test_transform_queries."""
    bad: list[tuple[dict[str, Any], str]] = [
        ({"sql": None}, "takes --sql or --function"),
        ({"sql": VALUE, "function": "a:b"}, "takes --sql or --function"),
        ({"sql": VALUE, "schema": "n NONSENSE"}, '"n NONSENSE" is no list of columns .*[Uu]nsupported data type'),
        ({"sql": VALUE, "schema": "n INT, N INT"}, 'column "n" is there 2 times'),
        ({"sql": VALUE, "schema": "n INT", "quarantine": "q", "skip_bad": True}, "exclude each other"),
        ({"sql": VALUE, "skip_bad": True}, "without --schema no value is bad"),
        ({"sql": VALUE, "to": topics.source}, "would be read and written, over and over"),
        ({"sql": VALUE, "starting_offsets": "nonsense"}, "startingOffsets takes earliest, latest or JSON"),
        ({"sql": "SELECT json.a AS value FROM input", "schema": "b INT"}, "the SQL is not understood: .*`a`"),
        ({"sql": "SELECT concat(value, uuid()) AS value FROM input"}, r"not repeatable: uuid\(\)"),
    ]

    for arguments, said in bad:
        with pytest.raises(PipelineError, match=said):
            topics.plan(**arguments)

    assert not Path(topics.checkpoint).exists()


def test_given_topics_that_are_not_there_when_it_is_planned_then_they_are_named(topics: Topics) -> None:
    with pytest.raises(UnknownTopic, match='no topic "nowhere-in"'):
        topics.plan(sql=VALUE, topic="nowhere-in")
    with pytest.raises(UnknownTopic, match='no topic "nowhere-bad"; no topic "nowhere-out"'):
        topics.plan(sql=VALUE, to="nowhere-out", schema="n INT", quarantine="nowhere-bad")


def test_given_a_target_of_fewer_partitions_when_it_is_planned_then_it_is_refused_unless_records_may_move(
    topics: Topics,
) -> None:
    narrow = f"{topics.target}-narrow"
    create(topics.bootstrap, narrow)
    with pytest.raises(PipelineError, match=f"{narrow} has 1 partitions, {topics.source} has 2"):
        topics.plan(sql=VALUE, to=narrow)

    lines = topics.plan(sql="SELECT value, CAST(NULL AS INT) AS partition FROM input", to=narrow)

    assert ("to", f"topic {narrow}, exactly once") in lines


def test_given_a_query_that_is_not_repeatable_when_at_least_once_is_enough_then_it_may_run(topics: Topics) -> None:
    lines = topics.plan(sql="SELECT concat(value, uuid()) AS value FROM input", exactly_once=False)

    assert ("to", f"topic {topics.target}, at least once") in lines


def test_given_a_checkpoint_of_another_transform_when_it_is_planned_then_it_is_refused(topics: Topics) -> None:
    other = f"{topics.target}-other"
    create(topics.bootstrap, other, partitions=2)
    purpose = {"pipeline": "transform", "from": topics.source, "to": topics.target}
    checkpoints.claim(Files(topics.spark), topics.checkpoint, purpose)
    topics.plan(sql=VALUE)

    with pytest.raises(PipelineError, match="is of another query: its to is"):
        topics.plan(sql=VALUE, to=other)


def shouted(record: Given) -> Found:
    value, key = str(record.value).upper().encode(), str(record.key).encode()
    return Found(value, key, record.headers, record.timestamp_ms)
