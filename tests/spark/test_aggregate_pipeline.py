"""Windows over topics, to topics and tables: what is counted, when it is written, and that it is written once."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.pipelines.aggregate import aggregate, plan_aggregate, read_table
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files, read_json
from penstock.spark.pipelines.result_table import ResultTable
from penstock.wire.errors import UnknownTopic
from tests.spark.piping import Given, create, documents, fill, read, values
from tests.testkit import BrokerProcess

SCHEMA = "ts TIMESTAMP, service STRING, level STRING, ms DOUBLE"
NOW_MS = 1_790_000_000_000
FAR_AHEAD_MS = 4_102_444_800_000  # a broker refuses records of that time


class Logs:
    """A topic of log lines, and how windows are made of it."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.directory = spark, bootstrap, directory
        self.topic, self.target = f"{name}-logs", f"{name}-minutes"
        self.table = str(directory / "table")
        create(bootstrap, self.topic, partitions=2)
        create(bootstrap, self.target)

    def say(self, *lines: tuple[str, str, str, float]) -> None:
        """Minute and second, service, level, milliseconds."""
        records = [
            {"ts": f"2026-03-01T12:{at}Z", "service": service, "level": level, "ms": ms}
            for at, service, level, ms in lines
        ]
        fill(self.bootstrap, self.topic, [Given(json.dumps(line), partition=n % 2) for n, line in enumerate(records)])

    def arguments(self, **others: Any) -> dict[str, Any]:
        common: dict[str, Any] = {
            "bootstrap": self.bootstrap,
            "topics": [self.topic],
            "schema": SCHEMA,
            "time": "ts",
            "window": "1m",
            "watermark": "30s",
            "group_by": ["service", "level"],
            "aggregates": ["count", "p99(ms) AS p99"],
        }
        to_topic = {"to_topic": self.target, "checkpoint": str(self.directory / "checkpoint")}
        return common | (to_topic if "to" not in others else {}) | others

    def run(self, **others: Any) -> None:
        aggregate(self.spark, **self.arguments(**others))

    def refusal(self, **others: Any) -> str:
        with pytest.raises(PipelineError) as refused:
            plan_aggregate(self.spark, **self.arguments(**others))
        return str(refused.value)

    def found(self) -> list[tuple[Any, ...]]:
        """Minute, service, level, count, p99."""
        rows = documents(self.bootstrap, self.target)
        return sorted(
            (str(row["window_start"])[14:16], row["service"], row["level"], row["count"], row["p99"]) for row in rows
        )

    def rows(self) -> list[tuple[Any, ...]]:
        frame = read_table(self.spark, self.table).selectExpr("minute(window_start)", "service", "count")
        return sorted(tuple(row) for row in frame.collect())


@pytest.fixture
def logs(spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path) -> Logs:
    return Logs(spark, broker.bootstrap, topic_name, tmp_path)


def test_given_logs_when_windows_are_done_then_each_is_in_the_topic_once_and_late_lines_are_not_counted(
    logs: Logs,
) -> None:
    begun_ms = time.time_ns() // 1_000_000
    logs.say(*[(f"00:{n:02}", "web", "info", float(n)) for n in range(60)], ("00:30", "db", "error", 7.0))
    logs.say(("00:59", "web", "info", 100.0), ("01:45", "web", "info", 1.0))
    logs.run()
    first = [("00", "db", "error", 1, 7.0), ("00", "web", "info", 61, 100.0)]
    assert logs.found() == first  # the other waits for late lines

    logs.say(("00:10", "web", "info", 9.0), ("01:50", "web", "info", 2.0), ("03:00", "web", "info", 3.0))
    logs.run()

    assert logs.found() == [*first, ("01", "web", "info", 2, 2.0)]
    (records,) = read(logs.bootstrap, logs.target)
    assert json.loads(records[-1].key or b"") == {
        "window_start": "2026-03-01T12:01:00.000Z",
        "service": "web",
        "level": "info",
    }
    # Of when it was written: retention would delete windows of old events at once.
    assert all(record.timestamp_ms >= begun_ms for record in records)


def test_given_keys_headers_and_times_of_records_when_windows_slide_then_overlapping_ones_have_them_all(
    logs: Logs,
) -> None:
    """Also windows that no record could have the time of: before 1970, and far ahead."""
    minute = 60_000
    fill(
        logs.bootstrap,
        logs.topic,
        [
            Given("0", "k0", 0, (("level", b"first"),)),
            Given("x", "k1", 0, (("level", b"debug"), ("level", b"info")), NOW_MS),
            Given("y", "k2", 0, (("level", b"info"),), NOW_MS + minute),
            Given(str(FAR_AHEAD_MS), "k3", 0, (("level", b"last"),)),
            Given(str(FAR_AHEAD_MS + 30 * minute), "k1", 0),
        ],
    )

    logs.run(
        schema=None,
        time="coalesce(timestamp_millis(TRY_CAST(_value AS BIGINT)), _timestamp)",
        window="2m",
        slide="1m",
        watermark="0s",
        group_by=["_headers['level'] AS level"],
        where="_value <> 'nothing'",
        aggregates=["count", "distinct(_key) AS keys", "min(_key) AS first"],
        max_per_batch=3,
    )

    rows = documents(logs.bootstrap, logs.target)
    found = [(row["level"], row["count"], row["keys"], row["first"]) for row in rows]
    assert sorted(found, key=str) == [
        ("first", 1, 1, "k0"),
        ("first", 1, 1, "k0"),
        ("info", 1, 1, "k1"),
        ("info", 1, 1, "k2"),
        ("info", 2, 2, "k1"),
        ("last", 1, 1, "k3"),
        ("last", 1, 1, "k3"),
    ]
    starts = sorted(str(row["window_start"]) for row in rows)
    assert (starts[0], starts[-1]) == ("1969-12-31T23:59:00.000Z", "2100-01-01T00:00:00.000Z")


def test_given_updates_when_a_window_changes_then_every_batch_says_so_under_the_same_key(logs: Logs) -> None:
    logs.say(("00:01", "web", "info", 1.0), ("00:02", "web", "info", 2.0), ("00:03", "web", "info", 3.0))
    logs.run(emit="updates", max_per_batch=2)

    assert logs.found() == [("00", "web", "info", 2, 2.0), ("00", "web", "info", 3, 3.0)]
    (records,) = read(logs.bootstrap, logs.target)
    assert len({record.key for record in records}) == 1
    assert "is of another query: its emit is updates, not final" in logs.refusal()
    assert "is of another query: its where is true, not ms > 1;" in logs.refusal(emit="updates", where="ms > 1")
    other = f"{SCHEMA} NOT NULL"
    assert "is of another query: its schema is ts TIMESTAMP," in logs.refusal(emit="updates", schema=other)
    # A checkpoint of an earlier version says neither.
    files, marker = Files(logs.spark), f"{logs.directory}/checkpoint/penstock.json"
    known = read_json(files, marker) or {}
    files.write(marker, json.dumps({key: known[key] for key in known if key not in ("where", "schema")}))
    plan_aggregate(logs.spark, **logs.arguments(emit="updates", where="ms > 1", schema=other))


def test_given_a_table_when_batches_are_done_again_then_every_window_is_there_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ResultTable.add

    def dying(table: ResultTable, rows: DataFrame, query_id: str, batch_id: int) -> int:
        added = add(table, rows, query_id, batch_id)
        if added:
            raise PipelineError("killed")
        return added

    logs.say(("00:01", "web", "info", 1.0), ("01:45", "web", "info", 1.0))
    with monkeypatch.context() as dies:
        dies.setattr(ResultTable, "add", dying)
        with pytest.raises(PipelineError, match="killed"):
            logs.run(to=logs.table)
    assert logs.rows() == [(0, "web", 1)]
    logs.run(to=logs.table)
    logs.say(("05:00", "web", "info", 1.0), ("05:00", "db", "info", 1.0))
    monkeypatch.setattr("penstock.spark.pipelines.result_table._SMALL_FILES", 2)
    logs.run(to=logs.table)

    assert logs.rows() == [(0, "web", 1), (1, "web", 1)]
    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{logs.table}/catalog.db")
    table = catalog.load_table("penstock.windows")
    assert len(table.inspect.files()) == 1  # small ones are merged
    assert table.scan().to_arrow().num_rows == 2
    assert "other columns" in logs.refusal(to=logs.table, group_by=["service"], checkpoint=f"{logs.table}-other")
    assert "was written with another checkpoint" in logs.refusal(to=logs.table, checkpoint=f"{logs.table}-other")


def test_given_a_table_from_a_backup_when_its_checkpoint_is_newer_then_it_is_refused_and_nothing_is_left_out(
    logs: Logs,
) -> None:
    table, backup = Path(logs.table), Path(f"{logs.table}-backup")
    checkpoint = table / "_penstock/checkpoint"
    logs.say(("00:01", "web", "info", 1.0), ("02:00", "web", "info", 1.0))
    logs.run(to=logs.table)
    shutil.copytree(table, backup)
    logs.say(("04:00", "web", "info", 1.0))
    logs.run(to=logs.table)
    assert logs.rows() == [(0, "web", 1), (2, "web", 1)]

    shutil.rmtree(backup / "_penstock/checkpoint")
    checkpoint.rename(backup / "_penstock/checkpoint")
    shutil.rmtree(table)
    backup.rename(table)

    assert logs.rows() == [(0, "web", 1)]
    assert "is behind its checkpoint" in logs.refusal(to=logs.table)


@pytest.mark.parametrize("to_table", [False, True], ids=["topic", "table"])
def test_given_lines_that_are_none_when_there_is_a_quarantine_then_they_are_there_with_the_reason(
    logs: Logs, to_table: bool
) -> None:
    quarantine = f"{logs.topic}-bad"
    create(logs.bootstrap, quarantine)
    fill(logs.bootstrap, logs.topic, [Given("nonsense", "k"), Given('{"service": "web"}'), Given(None, "k")])
    logs.say(("00:01", "web", "info", 1.0), ("09:00", "web", "info", 1.0))
    target = {"to": logs.table} if to_table else {}
    if to_table:
        with pytest.raises(PipelineError, match=f"{logs.topic}-0 offset 0: it is not JSON of ts timestamp"):
            logs.run(**target)

    logs.run(quarantine=quarantine, **target)

    (found,) = read(logs.bootstrap, quarantine)
    reasons = {record.value: dict(record.headers)["penstock-quarantine-reason"].decode() for record in found}
    assert reasons == {
        b"nonsense": "it is not JSON of ts timestamp, service string, level string, ms double",
        b'{"service": "web"}': "it has no time: ts is null",
        None: "it has no value",
    }
    if to_table:
        assert logs.rows() == [(0, "web", 1)]
    else:
        assert logs.found() == [("00", "web", "info", 1, 1.0)]
        assert values(logs.bootstrap, quarantine) == [[record.value for record in found]]


def test_given_what_cannot_be_when_it_is_planned_then_one_sentence_says_why_and_nothing_is_left(logs: Logs) -> None:
    """What is asked of windows and expressions is in test_aggregate_options."""
    bad: list[tuple[dict[str, Any], str]] = [
        ({"watermark": None}, "--watermark is missing"),
        ({"aggregates": []}, "--aggregate is missing"),
        ({"to_topic": None}, "windows go to a topic or to a table"),
        ({"to": logs.table, "to_topic": logs.target}, "windows go to a topic or to a table"),
        ({"to": logs.table, "emit": "updates"}, "--emit updates goes with --to-topic"),
        ({"emit": "now"}, '--emit takes final or updates, not "now"'),
        ({"checkpoint": None}, "--checkpoint is missing: a topic has no place"),
        ({"to_topic": logs.topic}, "would be read and written, over and over"),
        ({"group_by": ["servcie"]}, "--group-by servcie"),
        ({"to": "/proc/version"}, "is not a table of a pipeline"),
    ]

    for arguments, said in bad:
        assert said in logs.refusal(**arguments)
    with pytest.raises(UnknownTopic, match='no topic "nowhere"'):
        plan_aggregate(logs.spark, **logs.arguments(to_topic="nowhere"))
    with pytest.raises(UnknownTopic, match='no topic "nowhere"'):
        plan_aggregate(logs.spark, **logs.arguments(topics=["nowhere"]))

    assert not any(logs.directory.iterdir())
    lines = dict(plan_aggregate(logs.spark, **logs.arguments()).lines())
    assert lines["windows"] == "of 1m, done 30s after their end, by ts"
    assert lines["to"] == f"topic {logs.target}, when they are done, exactly once"
