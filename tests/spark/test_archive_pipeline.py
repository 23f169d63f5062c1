"""`penstock pipeline archive`, from topics to tables."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.app import build_app
from penstock.spark.pipelines import archived
from penstock.spark.pipelines.archive import _Archiver, _Written, archive, plan_archive
from penstock.spark.pipelines.archive_reading import Archive
from penstock.spark.pipelines.archive_table import open_table, read_table
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.values import taken_apart, value_format
from penstock.wire.errors import WireError
from tests.spark.archiving import FIRST_DAY_MS, FORMATS, PARTITIONS, archived_to, as_rows, rows_in, some_records
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess


@pytest.mark.parametrize("format", FORMATS)
def test_given_a_topic_that_grows_when_it_is_archived_again_without_its_checkpoint_then_each_record_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path, format: str
) -> None:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config={"retention.ms": "-1"})
    records = some_records(150)
    home = tmp_path / "archive"
    fill(broker.bootstrap, topic_name, records[:100])
    first = archived_to(spark, broker.bootstrap, topic_name, home, format=format, max_per_batch=50)

    fill(broker.bootstrap, topic_name, records[100:])
    shutil.rmtree(home / "_penstock" / "checkpoint")
    second = archived_to(spark, broker.bootstrap, topic_name, home, format=format)

    assert (first.rows, first.batches, second.rows) == (100, 2, 50)
    assert rows_in(spark, home) == as_rows(records)
    if format == "parquet":
        by_directory = spark.read.parquet(str(home / "records"))
        assert by_directory.count() == 150 and "day" in by_directory.columns


def test_given_a_checkpoint_older_than_the_archive_when_it_goes_on_in_many_batches_then_each_record_is_there_once(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, config={"retention.ms": "-1"})
    texts = ["{" if at % 5 == 0 else json.dumps({"id": at}) for at in range(60)]
    records = [Given(text, timestamp_ms=FIRST_DAY_MS + at) for at, text in enumerate(texts)]
    home = tmp_path / "archive"

    def archive_with(checkpoint: str, max_per_batch: int) -> int:
        how = {"format": "parquet", "value": "json", "schema": "id BIGINT", "max_per_batch": max_per_batch}
        at = str(tmp_path / checkpoint)
        rows: int = archived_to(spark, broker.bootstrap, topic_name, home, checkpoint=at, **how).rows
        return rows

    fill(broker.bootstrap, topic_name, records[:10])
    assert archive_with("old", 100) == 10
    fill(broker.bootstrap, topic_name, records[10:50])
    assert archive_with("new", 100) == 40
    fill(broker.bootstrap, topic_name, records[50:])

    assert archive_with("old", 15) == 10
    assert rows_in(spark, home) == as_rows(records)  # those in quarantine among them


def test_given_json_values_when_taken_apart_then_bad_ones_are_in_quarantine_and_new_fields_are_null_in_old_records(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)
    old = [Given(json.dumps({"id": at})) for at in range(3)]
    bad = [Given("{"), Given(json.dumps({"id": "x"})), Given(None)]
    fill(broker.bootstrap, topic_name, [*old, *bad])
    home = tmp_path / "archive"
    archived_to(spark, broker.bootstrap, topic_name, home, value="json", schema="id BIGINT")

    fill(broker.bootstrap, topic_name, [Given(json.dumps({"id": 3, "name": "three"})), Given("]")])
    archived_to(spark, broker.bootstrap, topic_name, home, value="json", schema="id BIGINT, name STRING")

    archive = Archive.at(spark, str(home), {})
    fields = [
        (row["offset"], row["fields"] and row["fields"].asDict())
        for row in archive.records().orderBy("offset").collect()
    ]
    apart = [{"id": at, "name": None} for at in range(3)]
    assert fields[:3] == list(enumerate(apart))
    assert fields[3:] == [(3, None), (4, None), (5, None), (6, {"id": 3, "name": "three"}), (7, None)]
    quarantine = open_table(spark, archive.home, archive.home.quarantine, None, {})
    assert quarantine is not None
    kept = read_table(spark, quarantine).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in kept] == [(3, b"{"), (4, b'{"id": "x"}'), (7, b"]")]
    assert all(row["reason"].startswith("it is not JSON of id bigint") for row in kept)
    with pytest.raises(PipelineError, match=r"another schema: fields\.id is bigint there, and string now"):
        archived_to(spark, broker.bootstrap, topic_name, home, value="json", schema="id STRING")


def test_given_a_run_killed_between_quarantine_and_table_when_it_comes_with_another_schema_then_it_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)
    fill(broker.bootstrap, topic_name, [Given('{"id": 0}'), Given('{"id": "x"}')])
    home = tmp_path / "archive"

    def archive_as(schema: str) -> None:
        archived_to(spark, broker.bootstrap, topic_name, home, format="parquet", value="json", schema=schema)

    archive_as("id BIGINT")
    fill(broker.bootstrap, topic_name, [Given('{"id": 2}'), Given('{"id": "y"}')])
    with pytest.MonkeyPatch.context() as dies:
        dies.setattr(_Archiver, "_commit", _killed_after_the_quarantine)
        with pytest.raises(PipelineError, match="killed"):
            archive_as("id BIGINT")

    with pytest.raises(PipelineError, match="run it once more as it was, json as fields: struct<id:bigint>, and then"):
        archive_as("name STRING")
    with pytest.raises(PipelineError, match="killed in the middle of a batch"):
        archived_to(spark, broker.bootstrap, topic_name, home, format="parquet")
    archive_as("id BIGINT")
    archive_as("id BIGINT, name STRING")

    assert [row.offset for row in rows_in(spark, home)] == [0, 1, 2, 3]


def test_given_avro_values_of_two_writers_when_taken_apart_then_both_are_of_the_newer_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    (tmp_path / "new.avsc").write_text(json.dumps(new))
    values = [avro(old, {"id": 1}), avro(new, {"id": 2, "note": "two"}), b"\x02\x02", None]
    records = spark.createDataFrame([(value,) for value in values], "value binary")

    format = value_format(Files(spark), "avro", [str(tmp_path / "new.avsc"), json.dumps(old)])
    first, second, third, fourth = taken_apart(records, format).collect()

    assert first["fields"].asDict() == {"id": 1, "note": None} and first["reason"] is None
    assert second["fields"].asDict() == {"id": 2, "note": "two"}
    assert third["fields"] is None and third["reason"].startswith("it is not Avro of this schema")
    assert fourth["fields"] is None and fourth["reason"] is None


def test_given_a_topic_that_was_created_anew_when_it_is_archived_then_it_is_refused_before_data_moves(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)
    fill(broker.bootstrap, topic_name, [Given("first")])
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic_name])[topic_name].result(20)
    create(broker.bootstrap, topic_name)
    fill(broker.bootstrap, topic_name, [Given("another first"), Given("second")])

    with pytest.raises(PipelineError, match="was deleted and created anew since it was archived"):
        archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")

    assert len(rows_in(spark, tmp_path / "archive")) == 1


def test_given_records_that_were_deleted_before_they_were_archived_when_it_goes_on_then_the_error_says_which(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)
    fill(broker.bootstrap, topic_name, [Given("0"), Given("1")])
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")
    fill(broker.bootstrap, topic_name, [Given("lost"), Given("lost too")])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic_name, 0, 4)]).values():
        deleted.result(20)
    fill(broker.bootstrap, topic_name, [Given("4")])

    with pytest.raises(PipelineError) as refused:
        archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet", skip_lost=True)

    told = f"archive {topic_name}: offsets 2 to 3 of {topic_name}-0 are not there any more, the first one is 4"
    assert str(refused.value) == f"{told} (--skip-lost goes on with what is there)"
    assert [(row.offset, row.value) for row in rows_in(spark, tmp_path / "archive")] == [
        (0, b"0"),
        (1, b"1"),
        (4, b"4"),
    ]


def test_given_a_checkpoint_of_more_topics_when_an_archive_is_planned_then_another_checkpoint_is_asked_for(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    left, home = f"{topic_name}-left", str(tmp_path / "archive")
    create(broker.bootstrap, topic_name, left)
    fill(broker.bootstrap, topic_name, [Given("0")])
    fill(broker.bootstrap, left, [Given("0")])
    how: dict[str, Any] = {"bootstrap": broker.bootstrap, "to": home, "format": "parquet"}
    archive(spark, topics=[topic_name, left], **how)
    fill(broker.bootstrap, topic_name, [Given("1")])

    with pytest.raises(PipelineError) as refused:
        plan_archive(spark, topics=[topic_name], **how)
    went_on = archive(spark, topics=[topic_name], checkpoint=str(tmp_path / "checkpoint"), **how)

    assert str(refused.value) == (
        f"the checkpoint file://{home}/_penstock/checkpoint has read {left}, and that is not to be archived now: "
        "--checkpoint takes another directory, and with a new one it goes on where the archive ends"
    )
    assert went_on.rows == 1 and len(rows_in(spark, home)) == 3
    assert plan_archive(spark, topics=[topic_name, left], **how).checkpoint.endswith("/checkpoint")


def test_given_arguments_that_cannot_be_when_an_archive_is_planned_then_one_sentence_says_what_is_wrong(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("Dear")

    def refused(error: type[Exception], why: str, **changes: object) -> None:
        arguments = {"bootstrap": broker.bootstrap, "topics": [topic_name], "to": str(tmp_path / "archive")} | changes
        with pytest.raises(error, match=why):
            plan_archive(spark, **arguments)  # type: ignore[arg-type]

    refused(WireError, 'no topic "nowhere"', topics=["nowhere", topic_name])
    refused(PipelineError, "no topic was named", topics=[])
    refused(WireError, "Connection refused", bootstrap="127.0.0.1:1")
    refused(WireError, r"sasl\.passwort is not a setting: did you mean sasl\.password", kafka={"sasl.passwort": "x"})
    refused(PipelineError, "letters is not an archive: it has letter.txt", to=str(tmp_path / "letters"))
    refused(PipelineError, 'format takes iceberg or parquet, not "orc"', format="orc")
    refused(PipelineError, "table takes letters", table="a b")
    refused(PipelineError, "nowhere:/x cannot be reached: .*No FileSystem for scheme", to="nowhere:/x")
    refused(PipelineError, "is not a checkpoint of a pipeline", checkpoint=str(tmp_path / "letters"))
    refused(PipelineError, "value takes json or avro", value="xml", schema="a INT")
    refused(PipelineError, "value json needs a schema", value="json")
    refused(PipelineError, "is neither a file nor columns", value="json", schema="nowhere.ddl")
    refused(PipelineError, "this is not an Avro schema", value="avro", schema="{}")
    refused(PipelineError, "a schema is for values", schema="a INT")
    refused(PipelineError, r"schema: c cannot be varchar\(5\)", value="json", schema="c VARCHAR(5)")
    assert not (tmp_path / "archive").exists()


def test_given_a_dry_run_when_the_command_runs_then_the_plan_is_shown_and_nothing_is_made(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, partitions=3)
    arguments = ["pipeline", "archive", topic_name, "--to", str(tmp_path / "archive"), "--dry-run"]

    shown = CliRunner().invoke(build_app(), [*arguments, "--bootstrap", broker.bootstrap])
    wrong = CliRunner().invoke(build_app(), [*arguments, "--bootstrap", broker.bootstrap, "--format", "orc"])

    assert shown.exit_code == 0, shown.output
    assert f"{topic_name}, 3 partitions, from the first record" in shown.stdout
    assert not (tmp_path / "archive").exists()
    assert wrong.exit_code == 1 and 'penstock: format takes iceberg or parquet, not "orc"' in wrong.stderr


def _killed_after_the_quarantine(archiver: _Archiver, written: _Written, batch_id: int) -> None:
    bad = written.bad
    assert bad is not None and bad.files
    bad.table.commit(bad.directory, bad.files, archived.after(bad.table.archived, bad.files))
    raise PipelineError("killed")


def avro(schema: dict[str, Any], record: object) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return buffer.getvalue()
