"""A changelog to a table: kills, replays, evolution, and what is refused before anything moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from penstock.spark.pipelines import materialize as pipeline
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.keyed_table import KeyedTable
from penstock.spark.pipelines.materialize import materialize, plan_materialize, read_table
from penstock.wire.errors import UnknownTopic
from tests.spark.piping import Given, create, delete, fill, read, values
from tests.testkit import BrokerProcess


class Home:
    """A changelog and a table, and how one is made of the other."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, path: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.path = spark, bootstrap, topic, path
        create(bootstrap, topic, partitions=2, config={"cleanup.policy": "compact"})

    def say(self, *changes: tuple[str, object]) -> None:
        """Partitions by key, as a producer has it."""
        fill(
            self.bootstrap,
            self.topic,
            [
                Given(value if value is None or isinstance(value, str) else json.dumps(value), key, ord(key[0]) % 2)
                for key, value in changes
            ],
        )

    def arguments(self, **others: Any) -> dict[str, Any]:
        return {"bootstrap": self.bootstrap, "topic": self.topic, "to": str(self.path), "buckets": 3} | others

    def run(self, **others: Any) -> int:
        return materialize(self.spark, **self.arguments(**others)).rows

    def refusal(self, **others: Any) -> str:
        with pytest.raises(PipelineError) as refused:
            plan_materialize(self.spark, **self.arguments(**others))
        return str(refused.value)

    def rows(self, *columns: str) -> dict[str, Any]:
        found = read_table(self.spark, str(self.path)).collect()
        assert len({row["_key"] for row in found}) == len(found)
        if not columns:
            return {row["_key"]: None if row["value"] is None else bytes(row["value"]).decode() for row in found}
        return {row["_key"]: tuple(row[name] for name in columns) for row in found}

    def iceberg(self) -> Table:
        catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{self.path}/catalog.db")
        return catalog.load_table("penstock.latest")


@pytest.fixture
def home(spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Home:
    return Home(spark, broker.bootstrap, topic_name, tmp_path / "table")


def test_given_a_changelog_when_it_runs_and_runs_again_then_the_table_has_the_last_value_of_each_key(
    home: Home,
) -> None:
    home.say(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("c", None))
    assert home.run() == 5
    assert home.rows() == {"a": "2", "b": "1"}
    home.say(("b", None), ("c", "2"), ("d", "1"), ("d", "2"), ("e", None))

    assert home.run(max_per_batch=2) == 5

    assert home.rows() == {"a": "2", "c": "2", "d": "2"}
    assert home.rows("_partition", "_offset") == {"a": (1, 1), "c": (1, 4), "d": (0, 3)}
    by_others = {row["_key"]: row["value"] for row in home.iceberg().scan().to_arrow().to_pylist()}
    assert by_others == {"a": b"2", "c": b"2", "d": b"2"}


def test_given_a_new_checkpoint_when_the_changelog_is_read_again_then_nothing_comes_back(
    home: Home, tmp_path: Path
) -> None:
    """Whoever reads from the beginning meets a put whose delete is applied already."""
    home.say(("a", "1"), ("b", "1"), ("b", None), ("a", None), ("c", "1"))
    home.run()
    before = home.iceberg().current_snapshot()

    home.run(checkpoint=str(tmp_path / "another"), max_per_batch=1)

    assert home.rows() == {"c": "1"}
    assert home.iceberg().current_snapshot() == before


@pytest.mark.parametrize("where", ["before the commit", "after the commit"])
def test_given_a_batch_that_dies_when_it_is_done_again_then_every_change_counts_once(
    home: Home, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.say(("a", "1"), ("b", "1"), ("c", "1"))
    home.run()
    home.say(("a", "2"), ("b", None), ("d", "1"))
    commit = KeyedTable.commit

    def dying(table: KeyedTable, *arguments: Any) -> bool:
        if where == "after the commit":
            commit(table, *arguments)
        raise PipelineError("killed")

    with monkeypatch.context() as dies:
        dies.setattr(KeyedTable, "commit", dying)
        with pytest.raises(PipelineError, match="killed"):
            home.run()
    home.say(("a", "3"))
    home.run()

    assert home.rows() == {"a": "3", "c": "1", "d": "1"}
    assert home.rows("_offset")["a"] == (3,)
    # Files of the batch that was never committed are gone, those of the table as it was are there for its readers.
    held = {
        file["file_path"].split("/data/")[1].split("/")[0] for file in home.iceberg().inspect.all_files().to_pylist()
    }
    assert {path.name for path in (home.path / "latest" / "data").iterdir()} == held


def test_given_somebody_else_s_commit_when_a_batch_commits_then_it_is_done_again_on_top_unless_it_was_one_of_us(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.say(("a", "1"), ("b", "1"))
    home.run()
    write = KeyedTable.write
    meddlers = [lambda: home.iceberg().delete("_key = 'b'")]

    def meddled(table: KeyedTable, *arguments: Any) -> str:
        if meddlers:
            meddlers.pop()()
        return write(table, *arguments)

    monkeypatch.setattr(KeyedTable, "write", meddled)
    home.say(("c", "1"))
    home.run()
    assert not meddlers and home.rows() == {"a": "1", "c": "1"}

    meddlers.append(lambda: apply_something(home))
    home.say(("c", "2"))
    with pytest.raises(PipelineError, match=r"another query writes to the table .*: one at a time"):
        home.run()
    assert home.rows() == {"a": "1", "c": "1"}


def apply_something(home: Home) -> None:
    """As another run does it."""
    with home.iceberg().transaction() as transaction:
        with transaction.update_snapshot().overwrite():
            pass
        transaction.set_properties({"penstock.applied": json.dumps({home.topic: {"0": 1, "1": 1}})})


def test_given_snapshots_that_nobody_reads_when_batches_go_on_then_they_and_their_files_are_removed(home: Home) -> None:
    for value in ("1", "2", "3"):
        home.say(("a", value), ("b", value))
        home.run(kept_s=0)

    table = home.iceberg()
    live = {file["file_path"].removeprefix("file://") for file in table.inspect.files().to_pylist()}
    snapshot = table.current_snapshot()
    assert snapshot is not None and len(table.snapshots()) == 1
    assert {str(path) for path in (home.path / "latest").rglob("*.parquet")} == live
    in_use = {snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io))}
    assert {f"file://{path}" for path in (home.path / "latest" / "metadata").glob("*.avro")} == in_use
    assert home.rows() == {"a": "3", "b": "3"}


def test_given_json_when_the_schema_gets_columns_then_rows_of_before_have_null_in_them(home: Home) -> None:
    home.say(("a", {"n": 1}), ("b", {"n": 2}))
    home.run(schema="n BIGINT")
    home.say(("b", {"n": 3, "s": "x", "at": "2026-01-01T00:00:00Z"}))

    home.run(schema="n BIGINT, s STRING, at TIMESTAMP")

    assert home.rows("n", "s") == {"a": (1, None), "b": (3, "x")}
    assert [field.name for field in home.iceberg().schema().fields][5:] == ["n", "s", "at"]
    assert "the table has another schema: n is bigint there, and string now" in home.refusal(schema="n STRING")
    assert "the table in" in home.refusal(schema="n BIGINT, s STRING, at TIMESTAMP", buckets=5)
    assert "_key is string there, and binary now" in home.refusal(schema="n BIGINT", key="binary")
    assert "the table has more columns than --schema: s, at;" in home.refusal(schema="n BIGINT")
    assert "the table has more columns than --schema: n, s, at;" in home.refusal()


def test_given_names_that_mean_something_to_spark_when_it_runs_again_then_they_are_names(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    """Of columns, and of the directory. Fields of a struct are found by their names, wherever they stand."""
    home = Home(spark, broker.bootstrap, topic_name, tmp_path / "[ab]{c}*")
    home.say(("a", {"http.status": 200, "b`q": "x", "s": {"y.z": "y", "x": 1}}), ("d", {"_records": 7, "row": "r"}))
    names = ("http.status", "b`q", "_records", "row", "after", "s")
    schema = "`http.status` INT, `b``q` STRING, _records INT, row STRING, after INT, s STRUCT<`y.z`: STRING, x: BIGINT>"
    home.run(schema=schema)
    home.say(("a", {"http.status": 404, "s": {"y.z": "z", "x": 2}}), ("g", {"after": 3}))

    home.run(schema=f"s STRUCT<x: INT, `y.z`: STRING>, {schema.rpartition(', s ')[0]}")

    assert home.rows(*names) == {
        "a": (404, None, None, None, None, ("z", 2)),
        "d": (None, None, 7, "r", None, None),
        "g": (None, None, None, None, 3, None),
    }
    by_others = home.iceberg().scan().to_arrow().select(["_key", *names]).to_pylist()
    assert {row["_key"]: (row["http.status"], row["s"]) for row in by_others}["a"] == (404, {"y.z": "z", "x": 2})


def test_given_records_that_are_no_changes_when_it_runs_then_they_end_it_or_are_set_aside_once(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the checkpoint is lost, and they are the last ones of both partitions."""
    quarantine = f"{home.topic}-bad"
    create(home.bootstrap, quarantine)
    home.say(("a", {"n": 1}), ("b", "nonsense"), ("a", {"n": "x"}))
    schema = "n BIGINT"
    with pytest.raises(PipelineError, match=f"{home.topic}-0 offset 0: it is not JSON of n bigint; --quarantine"):
        home.run(schema=schema)
    commit = KeyedTable.commit

    def dying(table: KeyedTable, *arguments: Any) -> bool:
        raise PipelineError("killed")

    monkeypatch.setattr(KeyedTable, "commit", dying)
    with pytest.raises(PipelineError, match="killed"):
        home.run(schema=schema, quarantine=quarantine)
    monkeypatch.setattr(KeyedTable, "commit", commit)
    home.run(schema=schema, quarantine=quarantine)
    home.run(schema=schema, quarantine=quarantine, checkpoint=str(tmp_path / "another"))

    assert home.rows("n") == {"a": (1,)}
    assert sorted(values(home.bootstrap, quarantine)[0], key=repr) == [b"nonsense", b'{"n": "x"}']
    (found,) = read(home.bootstrap, quarantine)
    assert {dict(record.headers)["penstock-quarantine-reason"] for record in found} == {b"it is not JSON of n bigint"}


def test_given_what_cannot_be_when_it_is_planned_then_one_sentence_says_why_and_nothing_is_left(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photos").mkdir()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"envelope": "avro"}, '--envelope takes plain or debezium, not "avro"'),
        ({"key": "int"}, '--key takes string or binary, not "int"'),
        ({"buckets": 0}, "--buckets takes 1 to 4096, not 0"),
        ({"table": "a-b"}, "--table takes letters, digits and underscores"),
        ({"schema": "_key INT"}, 'a column cannot be called "_key"'),
        ({"to": str(tmp_path / "other")}, "other is not a table of a pipeline: it has photos, and no"),
        ({"checkpoint": str(tmp_path / "other")}, "is not a checkpoint of a pipeline"),
        ({"quarantine": "q", "skip_bad": True}, "exclude each other"),
    ]

    for arguments, said in bad:
        assert said in home.refusal(**arguments)
    with pytest.raises(UnknownTopic, match='no topic "nowhere"'):
        plan_materialize(home.spark, **home.arguments(topic="nowhere"))
    with pytest.raises(UnknownTopic, match='no topic "nowhere"'):
        plan_materialize(home.spark, **home.arguments(quarantine="nowhere"))

    assert not home.path.exists()


def test_given_a_topic_that_was_created_anew_when_it_is_planned_then_the_table_is_not_touched(home: Home) -> None:
    home.say(("a", "1"))
    home.run()
    other = f"{home.topic}-other"
    create(home.bootstrap, other)
    assert "is of another query: its from is" in home.refusal(topic=other)
    assert "is of topic" in home.refusal(topic=other, checkpoint=f"{home.path}-checkpoint")
    delete(home.bootstrap, home.topic)
    create(home.bootstrap, home.topic)

    assert "was deleted and created anew" in home.refusal()


def test_given_a_plan_when_it_is_shown_then_it_says_what_would_be_done(home: Home) -> None:
    lines = dict(plan_materialize(home.spark, **home.arguments()).lines())

    assert lines["from"] == f"topic {home.topic}, plain changes"
    assert lines["columns"].startswith("_key string, value binary, _partition int, _offset bigint")
    assert lines["runs"] == "up to what is there now"
    assert pipeline.DEFAULT_INTERVAL_S == 60
