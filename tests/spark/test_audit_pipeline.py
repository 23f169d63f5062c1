"""`penstock pipeline audit`: what it finds, and that it finds nothing where there is nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.app import build_app
from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.errors import PipelineError
from tests.spark.archiving import PARTITIONS, archived_to, some_records, visible_files
from tests.spark.piping import Given, create, fill
from tests.testkit import BrokerProcess

FOR_EVER = {"retention.ms": "-1"}


def test_given_a_topic_with_transactions_when_audited_then_it_is_equal_and_gaps_are_explained(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, config=FOR_EVER)
    with_transactions(broker.bootstrap, topic_name)
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive")
    fill(broker.bootstrap, topic_name, [Given("later")])

    result = audit(spark, archive=str(tmp_path / "archive"), bootstrap=broker.bootstrap)

    (found,) = result.partitions
    assert result.is_equal, str(result)
    assert found.archive.rows == 4 and found.explained_gaps == 4
    assert found.behind == 2  # the marker of the last transaction, and what came later


def test_given_an_archive_that_was_tampered_with_when_audited_by_command_then_it_says_what_differs_and_exits_with_1(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config=FOR_EVER)
    fill(broker.bootstrap, topic_name, some_records(60))
    home = tmp_path / "archive"
    archived_to(spark, broker.bootstrap, topic_name, home, format="parquet")
    command = ["pipeline", "audit", str(home), "--bootstrap", broker.bootstrap]
    before = CliRunner().invoke(build_app(), command)

    tamper(spark, home)
    page, document = tmp_path / "report" / "audit.html", tmp_path / "report" / "audit.json"
    after = CliRunner().invoke(build_app(), [*command, "--report", str(page), "--json", str(document)])

    assert before.exit_code == 0 and before.stdout == "equal: 2 partitions, 60 archived records\n", before.output
    assert after.exit_code == 1, after.output
    found = json.loads(document.read_text())
    told = "\n".join(found["differences"])
    assert not found["equal"]
    assert f"{topic_name}-0: 1 records of the broker are not in the archive: offsets 3" in told
    assert f"{topic_name}-1: 1 records have other contents in the archive: offsets 5" in told
    assert f"{topic_name}-0: 10 records are in the archive more than once" in told
    assert "4 differences" in after.stdout and '<h1 class="different">' in page.read_text()


def test_given_a_replay_whose_records_are_in_another_order_or_missing_when_audited_then_both_are_found(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    swapped = f"{topic_name}-swapped"
    create(broker.bootstrap, topic_name, swapped, partitions=PARTITIONS, config=FOR_EVER)
    records = some_records(20)
    fill(broker.bootstrap, topic_name, records)
    fill(broker.bootstrap, swapped, [records[2], records[0], *records[4::2], *records[1:-1:2]])
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")

    result = audit(spark, archive=str(tmp_path / "archive"), bootstrap=broker.bootstrap, replayed_to=swapped)

    assert result.differences == [
        f"{swapped}-0: records are in another order: the first is between record 0 and 65536 of it",
        f"{swapped}-1: 9 records, and 10 were to be replayed",
    ]
    with pytest.raises(PipelineError, match="a selection is of what was replayed"):
        audit(spark, archive=str(tmp_path / "archive"), bootstrap=broker.bootstrap, where="offset > 3")


def with_transactions(bootstrap: str, topic: str) -> None:
    """Two that are committed, and one between them that is aborted: four records, and five offsets of others."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        for at in range(2):
            producer.produce(topic, f"{number}-{at}")
        producer.flush(20)
        end(20)


def tamper(spark: SparkSession, home: Path) -> None:
    """A record goes, another changes, and a file is there twice."""
    first, *_, last = visible_files(home / "records")
    content = spark.read.parquet(str(first))
    changed = content.where("NOT (partition = 0 AND offset = 3)").selectExpr(
        "* EXCEPT (value)",
        "CASE WHEN partition = 1 AND offset = 5 THEN CAST('other' AS binary) ELSE value END AS value",
    )
    changed.coalesce(1).write.parquet(str(home / "draft"))
    (written,) = visible_files(home / "draft")
    first.unlink()
    first.with_name(f".{first.name}.crc").unlink(missing_ok=True)
    shutil.move(written, first)
    shutil.rmtree(home / "draft")
    shutil.copy(last, last.with_name(f"copy-{last.name}"))
