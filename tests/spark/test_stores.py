"""Every pipeline with its checkpoint, archive or table on HDFS and on S3: what it leaves there, and that the next run
goes on.

Between the runs the last batch is made one that nobody noted, as by a kill between the commit of its output and Spark's
own. So the next run does it again, from the offsets and states in the store, before it comes to what is new.

The short form has every pipeline on HDFS and what is special about S3; `make chaos` has all of it on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines import table_home
from penstock.spark.pipelines.aggregate import aggregate, plan_aggregate
from penstock.spark.pipelines.archive import plan_archive
from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.materialize import materialize, plan_materialize
from penstock.spark.pipelines.replay import replay
from penstock.spark.pipelines.replay_state import Done, ReplayState
from penstock.spark.pipelines.settings import settings
from penstock.spark.pipelines.transform import transform
from tests.chaos.conftest import FULL
from tests.spark.archiving import FORMATS, PARTITIONS, archived_to, some_records
from tests.spark.hdfs import hdfs
from tests.spark.piping import Given, create, fill, fill_json, read, values
from tests.spark.s3 import s3
from tests.testkit import BrokerProcess

# Spark's default, which the other tests leave for one that is quicker with local files.
FILE_MANAGER = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    )
}


STORES = ("hdfs", "s3")


def on(*stores: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("root", stores, indirect=True)


class Place:
    """A directory in a store, and a catalog on a local disk for the table in it."""

    def __init__(self, spark: SparkSession, url: str, local: Path) -> None:
        self.url = url
        self.checkpoint = f"{url}/_penstock/checkpoint"
        self.catalog = {"uri": f"sqlite:///{local}/catalog.db"}
        self._spark = spark
        self._files = Files(spark)

    def names(self, path: str) -> list[str]:
        return [entry.name for entry in self._files.list(path)]

    def forget_the_last_batch(self) -> None:
        *_, last = self.batches()
        self._files.delete(f"{self.checkpoint}/commits/{last}")

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        found = table_home.read_table(self._spark, self.url, catalog=self.catalog)
        return sorted(tuple(row) for row in found.selectExpr(*columns).collect())

    def batches(self) -> list[int]:
        """Those that Spark has noted as done. A query that goes on counts on."""
        return sorted(int(name) for name in self.names(f"{self.checkpoint}/commits") if name.isdigit())


@pytest.fixture(scope="module")
def an_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture(scope="module")
def an_s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One for all tests: Hadoop's client of a bucket stays, whatever becomes of its settings."""
    with s3(tmp_path_factory.mktemp("s3")) as store, hadoop_settings(spark, store.settings):
        yield store.url


@pytest.fixture
def root(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    with settings(spark, FILE_MANAGER):
        yield request.getfixturevalue({"hdfs": "an_hdfs", "s3": "an_s3"}[request.param])


@contextmanager
def hadoop_settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """For the clients of stores that begin after it."""
    configuration: Any = spark._jsc.hadoopConfiguration()
    for key, value in wanted.items():
        configuration.set(key, value)
    yield
    for key in wanted:
        configuration.unset(key)


@pytest.fixture
def place(spark: SparkSession, root: str, topic_name: str, tmp_path: Path) -> Place:
    return Place(spark, f"{root}/{topic_name}", tmp_path)


@pytest.mark.parametrize(
    ("root", "form"),
    [(store, form) for store in STORES for form in FORMATS] if FULL else [("hdfs", "iceberg"), ("s3", "parquet")],
    indirect=["root"],
)
def test_given_an_archive_in_a_store_when_runs_are_cut_off_then_it_goes_on_and_its_records_come_back_once(
    spark: SparkSession,
    broker: BrokerProcess,
    topic_name: str,
    place: Place,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anew, records = f"{topic_name}-anew", some_records(40)
    catalog = place.catalog if form == "iceberg" else None
    create(broker.bootstrap, topic_name, anew, partitions=PARTITIONS)
    again: dict[str, Any] = {
        "archive": place.url,
        "bootstrap": broker.bootstrap,
        "to": anew,
        "rows_per_chunk": 20,
        "catalog": catalog,
    }

    fill(broker.bootstrap, topic_name, records[:20])
    archived_to(spark, broker.bootstrap, topic_name, place.url, format=form, catalog=catalog)
    place.forget_the_last_batch()
    fill(broker.bootstrap, topic_name, records[20:])
    archived_to(spark, broker.bootstrap, topic_name, place.url, format=form, catalog=catalog)
    with monkeypatch.context() as dies, pytest.raises(PipelineError, match="killed"):
        dies.setattr(ReplayState, "note", dying_at(2, ReplayState.note))
        replay(spark, **again)
    replayed = replay(spark, **again)
    found = audit(spark, archive=place.url, bootstrap=broker.bootstrap, replayed_to=anew, catalog=catalog)

    assert place.batches() == [0, 1]
    assert replayed.rows == 20  # the first half was noted, the second one only written
    assert read(broker.bootstrap, anew) == read(broker.bootstrap, topic_name)
    assert found.is_equal, str(found)
    assert [each.archive.rows for each in found.partitions] == [20, 20]


@on(*STORES if FULL else ["hdfs"])
def test_given_a_table_of_latest_values_in_a_store_when_a_batch_is_done_again_then_every_change_counts_once(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, place: Place
) -> None:
    create(broker.bootstrap, topic_name)
    wanted: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": topic_name,
        "to": place.url,
        "catalog": place.catalog,
    }

    fill(broker.bootstrap, topic_name, [Given("1", "a"), Given("1", "b"), Given("2", "a"), Given("1", "c")])
    materialize(spark, **wanted, buckets=2)
    place.forget_the_last_batch()
    fill(broker.bootstrap, topic_name, [Given(None, "b"), Given("3", "a"), Given("1", "d")])
    applied = materialize(spark, **wanted)

    assert place.batches() == [0, 1]
    assert applied.rows == 3
    assert place.rows("_key", "string(value)", "_offset") == [("a", "3", 5), ("c", "1", 3), ("d", "1", 6)]


@on(*STORES)
def test_given_a_table_of_windows_in_a_store_when_a_batch_is_done_again_then_open_windows_go_on_and_each_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, place: Place
) -> None:
    create(broker.bootstrap, topic_name)
    wanted: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topics": [topic_name],
        "to": place.url,
        "catalog": place.catalog,
    }
    how: dict[str, Any] = {"schema": "ts TIMESTAMP, ms INT", "time": "ts", "window": "1m", "watermark": "0s"}

    fill_json(broker.bootstrap, topic_name, lines({"00:10": 1, "00:50": 2, "01:10": 4}))
    aggregate(spark, **wanted, **how, aggregates=["count", "sum(ms) AS ms"])
    place.forget_the_last_batch()
    fill_json(broker.bootstrap, topic_name, lines({"01:50": 8, "02:00": 16}))
    aggregate(spark, **wanted, **how, aggregates=["count", "sum(ms) AS ms"])

    assert place.batches() == [0, 1, 2, 3]  # one more in each run, for the windows that are done with it
    assert place.rows("minute(window_start)", "count", "ms") == [(0, 2, 3), (1, 2, 12)]


@on(*STORES if FULL else ["hdfs"])
def test_given_a_transform_with_its_checkpoint_in_a_store_when_a_batch_is_done_again_then_every_result_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, place: Place
) -> None:
    target = f"{topic_name}-out"
    create(broker.bootstrap, topic_name, target)
    wanted: dict[str, Any] = {
        "bootstrap": broker.bootstrap,
        "topic": topic_name,
        "to": target,
        "checkpoint": place.checkpoint,
    }

    fill(broker.bootstrap, topic_name, [Given("a"), Given("b")])
    transform(spark, **wanted, sql="SELECT upper(value) AS value FROM input")
    place.forget_the_last_batch()
    fill(broker.bootstrap, topic_name, [Given("c")])
    transform(spark, **wanted, sql="SELECT upper(value) AS value FROM input")

    assert place.batches() == [0, 1]
    assert values(broker.bootstrap, target) == [[b"A", b"B", b"C"]]


@on(*STORES)
def test_given_no_catalog_when_iceberg_is_to_be_in_a_store_then_one_sentence_says_what_to_do_and_nothing_is_left(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, place: Place
) -> None:
    create(broker.bootstrap, topic_name)
    said = "is not on a local disk.*: name a catalog"

    with pytest.raises(PipelineError, match=f"{said}.*--format parquet takes none"):
        plan_archive(spark, bootstrap=broker.bootstrap, topics=[topic_name], to=place.url)
    with pytest.raises(PipelineError, match=said):
        plan_materialize(spark, bootstrap=broker.bootstrap, topic=topic_name, to=place.url)
    with pytest.raises(PipelineError, match=said):
        plan_aggregate(
            spark,
            bootstrap=broker.bootstrap,
            topics=[topic_name],
            to=place.url,
            window="1m",
            watermark="0s",
            aggregates=["count"],
        )

    assert place.names(place.url) == []


@on(*STORES)
def test_given_two_that_make_the_same_file_at_once_when_both_are_done_then_one_has_made_it_and_it_is_whole(
    spark: SparkSession, place: Place
) -> None:
    files = Files(spark)
    paths = [f"{place.url}/{number:012}.json" for number in range(10)]
    start = Barrier(2)

    def made(text: str) -> list[bool]:
        start.wait()
        return [files.create(path, text) for path in paths]

    with ThreadPoolExecutor(2) as both:
        one, other = both.map(made, ["one", "other"])
    found = [files.read(path) for path in paths]
    files.write(paths[0], "in place of it")

    assert [mine != theirs for mine, theirs in zip(one, other, strict=True)] == [True] * len(paths)
    assert found == ["one" if mine else "other" for mine in one]
    assert files.read(paths[0]) == "in place of it"
    assert place.names(place.url) == [path.rpartition("/")[2] for path in paths]


def dying_at(chunk: int, note: Any) -> Any:
    """A chunk is written, and nobody is left to note it."""

    def dying(state: ReplayState, done: Done) -> None:
        if done.chunks == chunk:
            raise PipelineError("killed")
        note(state, done)

    return dying


def lines(milliseconds: Mapping[str, int]) -> list[dict[str, object]]:
    """By minute and second."""
    return [{"ts": f"2026-03-01T12:{at}Z", "ms": ms} for at, ms in milliseconds.items()]
