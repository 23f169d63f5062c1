"""What a replay is known by, so that it is done once, and once more where it is another one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.replay import plan_replay, replay
from penstock.spark.pipelines.replay_state import check_id, write_id
from penstock.spark.pipelines.selection import Selection
from tests.spark.archiving import PARTITIONS, archived_to, some_records
from tests.spark.piping import create, delete, fill, read
from tests.testkit import BrokerProcess

PURPOSE = {"archive": "a1", "to": "again", "topic_id": "t1", "where": None}


def test_given_an_archive_or_a_target_made_anew_when_replayed_under_the_same_id_then_it_is_another_write() -> None:
    """Brokers remember writes for ever: one of the same name was taken for done, and nothing was written."""
    changes = {"archive": "a2", "topic_id": "t2", "where": "offset > 3"}
    others = [{**PURPOSE, name: value} for name, value in changes.items()]

    names = {write_id("nightly", purpose, 0) for purpose in (PURPOSE, *others)}

    assert len(names) == 4
    assert write_id("nightly", dict(reversed(PURPOSE.items())), 0) in names
    assert names.isdisjoint({write_id("nightly", PURPOSE, 1), write_id("other", PURPOSE, 0)})


@pytest.mark.parametrize("given", ["", "../elsewhere", "a/b", ".hidden", "x" * 101, "two words"])
def test_given_an_id_that_names_no_directory_when_checked_then_it_is_refused(given: str) -> None:
    with pytest.raises(PipelineError, match="--id takes 1 to 100 letters, digits"):
        check_id(given)


@pytest.mark.parametrize("given", ["nightly", "2026-01-31", "a.b_c", "x" * 100])
def test_given_an_id_when_checked_then_it_is_taken(given: str) -> None:
    check_id(given)


@pytest.mark.parametrize("until_ms", [1_000, 999])
def test_given_an_end_that_is_not_after_the_beginning_when_selected_then_it_is_refused(until_ms: int) -> None:
    with pytest.raises(PipelineError, match=r"nothing between since 1970-01-01T00:00:01\.000Z and until"):
        Selection("orders", since_ms=1_000, until_ms=until_ms)


def test_given_an_archive_and_a_target_made_anew_when_replayed_under_the_same_id_then_records_are_written_again(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    source, archive = f"{topic_name}-from", tmp_path / "archive"
    create(broker.bootstrap, source, topic_name, partitions=PARTITIONS)
    fill(broker.bootstrap, source, some_records(12))

    def replayed() -> None:
        archived_to(spark, broker.bootstrap, source, archive, format="parquet")
        replay(spark, archive=str(archive), bootstrap=broker.bootstrap, to=topic_name, replay_id="nightly")

    replayed()
    shutil.rmtree(archive)
    delete(broker.bootstrap, topic_name)
    create(broker.bootstrap, topic_name, partitions=PARTITIONS)
    replayed()

    assert read(broker.bootstrap, topic_name) == read(broker.bootstrap, source)
    for condition in ("rand() > 0.5", "timestamp < current_timestamp()", "timestamp < now()"):
        with pytest.raises(PipelineError, match=r"is not repeatable: .* gives another result in every run"):
            plan_replay(spark, archive=str(archive), bootstrap=broker.bootstrap, to=topic_name, where=condition)
