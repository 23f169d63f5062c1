"""The commands of transform, aggregate and materialize: their options are those of the functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import pipeline_transforms
from penstock.cli.app import build_app
from penstock.cli.client import fail
from penstock.spark.pipelines.errors import PipelineError
from tests.spark.piping import create
from tests.testkit import BrokerProcess


class Commands:
    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.bootstrap, self.topic, self.directory = bootstrap, topic, directory

    def plan(self, name: str, *arguments: str) -> str:
        """What it would do, or why it would not."""
        common = ["--bootstrap-server", self.bootstrap, "--dry-run"]
        ended = CliRunner().invoke(build_app(), ["pipeline", name, self.topic, *arguments, *common])
        return " ".join(ended.output.split())


@pytest.fixture
def commands(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """In the session that is there: a command ends the one that it has made."""

    @contextmanager
    def shared(*_: Any) -> Iterator[SparkSession]:
        try:
            yield spark
        except PipelineError as error:
            fail(str(error))

    monkeypatch.setattr(pipeline_transforms, "spark_session", shared)
    create(broker.bootstrap, topic_name, f"{topic_name}-to", f"{topic_name}-bad")
    return Commands(broker.bootstrap, topic_name, tmp_path)


def test_given_options_of_transform_when_it_is_a_dry_run_then_the_plan_has_them(commands: Commands) -> None:
    topic = commands.topic
    (commands.directory / "query.sql").write_text("SELECT json.a AS value FROM input")

    said = commands.plan(
        "transform",
        *("--to", f"{topic}-to", "--checkpoint", f"{commands.directory}/checkpoint", "--at-least-once", "--follow"),
        *("--sql", f"@{commands.directory}/query.sql", "--schema", "a STRING", "--quarantine", f"{topic}-bad"),
    )

    assert f"from topic {topic} to topic {topic}-to, at least once columns value binary, key binary, partition" in said
    assert f"bad values to topic {topic}-bad" in said
    assert said.endswith("runs until it is stopped")
    assert "No such file" in commands.plan("transform", "--checkpoint", "x", "--sql", "@nowhere.sql")
    assert "takes --sql or --function" in commands.plan("transform", "--to", f"{topic}-to", "--checkpoint", "x")


def test_given_options_of_aggregate_when_it_is_a_dry_run_then_the_plan_has_them(commands: Commands) -> None:
    topic = commands.topic
    windows = ("--window", "1h", "--slide", "10m", "--watermark", "30s", "--time", "ts", "--where", "n > 1")
    grouped = ("-g", "lower(a) AS a", "-g", "_key", "-a", "count", "-a", "p99(n) AS p99", "--skip-bad")
    schema = ("--schema", "ts TIMESTAMP, a STRING, n INT")

    said = commands.plan(
        "aggregate", *windows, *grouped, *schema, "--to", f"{commands.directory}/t", "--table", "hours"
    )

    assert f"from topic {topic} to table penstock.hours in file://{commands.directory}/t, when they are done" in said
    assert "windows of 1h, one every 10m, done 30s after their end, by ts" in said
    assert "a string, _key string, count bigint, p99 int bad values are left out, and counted" in said
    assert "--watermark is missing" in commands.plan("aggregate", "-a", "count", "--window", "1h", "--to-topic", topic)
    updates = ("--to-topic", f"{topic}-to", "--emit", "updates", "--checkpoint", f"{commands.directory}/c")
    assert "whenever they change" in commands.plan("aggregate", *windows, *grouped, *schema, *updates)


def test_given_options_of_materialize_when_it_is_a_dry_run_then_the_plan_has_them(commands: Commands) -> None:
    topic, to = commands.topic, f"{commands.directory}/t"
    options = ("--table", "users", "--envelope", "debezium", "--schema", "id INT", "--key", "binary", "--buckets", "4")

    said = commands.plan("materialize", "--to", to, *options, "--quarantine", f"{topic}-bad", "--follow")

    assert f"from topic {topic}, debezium changes to table penstock.users in file://{to}" in said
    assert "columns _key binary, id int, _partition int" in said
    assert said.endswith("runs until it is stopped, every 60 s")
    assert "--buckets takes 1 to 4096, not 0" in commands.plan("materialize", "--to", to, "--buckets", "0")
    assert not any(commands.directory.iterdir())
