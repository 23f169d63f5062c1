"""`penstock pipeline audit`: what it finds, and that it finds nothing where there is nothing."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli.app import build_app
from penstock.spark.pipelines import audit_passes
from penstock.spark.pipelines.audit import audit
from penstock.spark.pipelines.audit_passes import Passes, Stopped
from penstock.spark.pipelines.audit_report import page
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.progress import Progress
from penstock.spark.pipelines.running import stopping_on_signals
from tests.spark.archiving import PARTITIONS, archived_to, some_records, visible_files
from tests.spark.piping import Given, create, delete, fill, values
from tests.spark.terminals import Terminal
from tests.testkit import BrokerProcess, eventually, free_port

FOR_EVER = {"retention.ms": "-1"}
TOPIC = "audited"


@pytest.fixture(scope="module")
def untouched(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty records of three days, in two partitions."""
    home = tmp_path_factory.mktemp("audited") / "archive"
    create(broker.bootstrap, TOPIC, partitions=PARTITIONS, config=FOR_EVER)
    fill(broker.bootstrap, TOPIC, some_records(60))
    archived_to(spark, broker.bootstrap, TOPIC, home, format="parquet")
    return home


@pytest.fixture
def archive(untouched: Path, tmp_path: Path) -> Path:
    """A copy, to tamper with."""
    return shutil.copytree(untouched, tmp_path / "archive")


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
    spark: SparkSession, broker: BrokerProcess, archive: Path, tmp_path: Path
) -> None:
    command = ["pipeline", "audit", str(archive), "--bootstrap", broker.bootstrap]
    before = CliRunner().invoke(build_app(), command)

    tamper(spark, archive)
    report, document = tmp_path / "report" / "audit.html", tmp_path / "report" / "audit.json"
    after = CliRunner().invoke(build_app(), [*command, "--report", str(report), "--json", str(document)])

    assert before.exit_code == 0 and before.stdout == "equal: 2 partitions, 60 archived records\n", before.output
    assert after.exit_code == 1, after.output
    found = json.loads(document.read_text())
    told = "\n".join(found["differences"])
    assert not found["equal"]
    assert f"{TOPIC}-0: 1 records of the broker are not in the archive: offsets 3" in told
    assert f"{TOPIC}-1: 1 records have other contents in the archive: offsets 5" in told
    assert f"{TOPIC}-0: 10 records are in the archive more than once" in told
    assert "4 differences" in after.stdout and '<h1 class="different">' in report.read_text()
    assert {each.name for each in report.parent.iterdir()} == {report.name, document.name}


def test_given_files_that_cannot_be_written_when_audited_then_it_is_said_before_and_is_no_difference(
    broker: BrokerProcess, untouched: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    command = ["pipeline", "audit", str(untouched), "--bootstrap", broker.bootstrap]

    report = CliRunner().invoke(build_app(), [*command, "--report", "/proc/nope.html"])
    document = CliRunner().invoke(build_app(), [*command, "--json", str(untouched)])

    assert (report.exit_code, document.exit_code) == (2, 2)
    assert "penstock: /proc/nope.html cannot be written: " in report.stderr
    assert f"penstock: {untouched} is a directory" in document.stderr
    assert not any("step" in each.__dict__ for each in caplog.records)


def test_given_a_broker_that_does_not_answer_when_audited_by_command_then_it_is_no_difference(
    spark: SparkSession, untouched: Path
) -> None:
    ended = CliRunner().invoke(
        build_app(), ["pipeline", "audit", str(untouched), "--bootstrap", f"127.0.0.1:{free_port()}"]
    )

    assert ended.exit_code == 2 and ended.stderr.startswith("penstock: "), ended.output


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


def test_given_contents_that_changed_places_when_audited_on_a_terminal_then_both_are_named_and_it_shows_how_far_it_is(
    spark: SparkSession,
    broker: BrokerProcess,
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    swap(archive, 3, 7)
    caplog.set_level(logging.INFO)

    with Terminal() as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        result = audit(spark, archive=str(archive), bootstrap=broker.bootstrap)

    assert result.differences == [f"{TOPIC}-0: 2 records have other contents in the archive: offsets 3, 7"]
    assert "audit " in terminal.shown
    assert re.search(r" [1-9]\d* rows, \d+ rows/s, 0:00 left ", terminal.shown)
    told = [(each.getMessage(), getattr(each, "step", None), getattr(each, "rows", None)) for each in caplog.records]
    assert [each for each in told if each[0] in ("step done", "pipeline ended")] == [
        ("step done", "broker", 60),
        ("step done", "archive", 60),
        ("step done", "changes", 2),
        ("pipeline ended", None, 60),
    ]


def test_given_deleted_records_and_then_a_deleted_topic_when_audited_then_both_are_differences(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, config=FOR_EVER)
    fill(broker.bootstrap, topic_name, [Given("0"), Given("1")])
    archived_to(spark, broker.bootstrap, topic_name, tmp_path / "archive", format="parquet")
    fill(broker.bootstrap, topic_name, [Given("lost"), Given("lost too"), Given("later")])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic_name, 0, 4)]).values():
        deleted.result(20)

    result = audit(spark, archive=str(tmp_path / "archive"), bootstrap=broker.bootstrap)
    delete(broker.bootstrap, topic_name)
    without_topic = audit(spark, archive=str(tmp_path / "archive"), bootstrap=broker.bootstrap)

    assert result.differences == [
        f"{topic_name}-0: 2 offsets were deleted on the broker before they were archived: 2-3"
    ]
    assert result.partitions[0].behind == 1
    assert without_topic.differences == [
        f"{topic_name}: nothing was compared with the broker: the topic is not on the broker any more"
    ]
    assert escape(without_topic.differences[0]) in page(without_topic)


def test_given_a_dry_run_when_the_commands_run_then_the_plan_is_shown_and_nothing_is_compared_or_written(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: Path
) -> None:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS)
    common = ["--bootstrap", broker.bootstrap, "--offsets", "0:5-", "--dry-run"]

    replay = CliRunner().invoke(build_app(), ["pipeline", "replay", str(archive), "--to", topic_name, *common])
    audit = CliRunner().invoke(build_app(), ["pipeline", "audit", str(archive), "--replayed", topic_name, *common])

    assert replay.exit_code == 0 and audit.exit_code == 0, replay.output + audit.output
    assert "25: partition 0, offsets 5-" in replay.stdout and "1, of which 0 are written" in replay.stdout
    assert values(broker.bootstrap, topic_name) == [[], []]
    assert not (archive / "_penstock" / "replays").exists()
    assert f"{TOPIC}: 60 offsets to compare" in audit.stdout
    assert f"{TOPIC} to {topic_name}: partition 0, offsets 5-" in audit.stdout


def test_given_an_audit_by_command_when_it_is_interrupted_then_it_says_so_and_is_neither_equal_nor_different(
    spark: SparkSession, broker: BrokerProcess, untouched: Path
) -> None:
    class Interrupts(logging.Handler):
        """As soon as the first step is done."""

        def emit(self, record: logging.LogRecord) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    interrupts = Interrupts()
    audit_passes.log.addHandler(interrupts)
    try:
        ended = CliRunner().invoke(
            build_app(), ["pipeline", "audit", str(untouched), "--bootstrap", broker.bootstrap, "--json", "-"]
        )
    finally:
        audit_passes.log.removeHandler(interrupts)

    assert (ended.exit_code, ended.stdout) == (130, "")
    assert ended.stderr.splitlines()[-1] == "penstock: audit: stopped on request, before everything was compared"


def test_given_a_pass_that_takes_long_when_it_is_interrupted_then_its_job_is_cancelled_at_once(
    spark: SparkSession,
) -> None:
    def endless() -> None:
        spark.range(10**15).selectExpr("max(hash(id))").collect()

    def interrupted_when_it_runs() -> None:
        eventually(tracker.getActiveJobsIds)
        os.kill(os.getpid(), signal.SIGINT)

    tracker = spark.sparkContext.statusTracker()
    with stopping_on_signals() as stop, Progress("audit") as progress:
        interrupting = InheritableThread(target=interrupted_when_it_runs)
        interrupting.start()
        with pytest.raises(Stopped, match="stopped on request"):
            Passes(spark, "audit", stop, progress).run("endless", endless)
        interrupting.join()

    assert not tracker.getActiveJobsIds()


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


def swap(home: Path, one: int, other: int) -> None:
    """Two records of partition 0 trade their offsets, and so their places."""
    for path in visible_files(home / "records"):
        table = pq.ParquetFile(path).read()
        offset, is_first = table["offset"], pc.equal(table["partition"], 0)
        traded = pc.case_when(
            pc.make_struct(pc.and_(is_first, pc.equal(offset, one)), pc.and_(is_first, pc.equal(offset, other))),
            pa.scalar(other, pa.int64()),
            pa.scalar(one, pa.int64()),
            offset,
        )
        pq.write_table(table.set_column(table.schema.get_field_index("offset"), "offset", traded), path)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
