"""`penstock pipeline replay`, from an archive to topics."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.replay import plan_replay, replay
from penstock.wire.errors import WireError
from tests.spark.archiving import DAY_MS, FIRST_DAY_MS, PARTITIONS, archived_to, some_records
from tests.spark.piping import Given, create, fill, read, values
from tests.testkit import BrokerProcess

RECORDS = some_records(60)
FOR_EVER = {"retention.ms": "-1"}


@pytest.fixture(scope="module")
def archive(spark: SparkSession, broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Sixty records of three days, in two partitions."""
    home = str(tmp_path_factory.mktemp("replayed") / "archive")
    create(broker.bootstrap, "replayed-from", partitions=PARTITIONS, config=FOR_EVER)
    fill(broker.bootstrap, "replayed-from", RECORDS)
    archived_to(spark, broker.bootstrap, "replayed-from", home, format="parquet")
    return home


def test_given_a_selection_when_replayed_then_only_those_records_are_written_in_their_order(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: str
) -> None:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config=FOR_EVER)

    ended = replay(
        spark,
        archive=archive,
        bootstrap=broker.bootstrap,
        to=topic_name,
        since=FIRST_DAY_MS + DAY_MS,
        until=FIRST_DAY_MS + 3 * DAY_MS,
        offsets=["0:12-28", "1:-29"],
        keys=["key 1", "key 4", "key 8", "key 9"],
        where="value IS NOT NULL AND offset % 2 = 0",
        rows_per_chunk=2,
    )

    at = [sum(other.partition == each.partition for other in RECORDS[:n]) for n, each in enumerate(RECORDS)]
    expected = [
        [
            str(each.value).encode()
            for each, offset in zip(RECORDS, at, strict=True)
            if each.partition == partition
            and each.timestamp_ms >= FIRST_DAY_MS + DAY_MS
            and (12 <= offset < 28 if partition == 0 else offset < 29)
            and each.key in ("key 1", "key 4", "key 8", "key 9")
            and each.value is not None
            and offset % 2 == 0
        ]
        for partition in range(PARTITIONS)
    ]
    assert all(expected)
    assert values(broker.bootstrap, topic_name) == expected
    assert ended.rows == sum(map(len, expected)) and ended.batches > 1


def test_given_a_replay_that_nobody_noted_when_it_runs_again_then_nothing_is_written_twice(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: str, tmp_path: Path
) -> None:
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config=FOR_EVER)
    state = tmp_path / "replays"

    def replayed() -> int:
        plan = plan_replay(
            spark,
            archive=archive,
            bootstrap=broker.bootstrap,
            to=topic_name,
            rows_per_chunk=40,
            replay_id="once",
            checkpoint=str(state),
        )
        return plan.run().rows

    first = replayed()
    again = replayed()
    (state / "once" / "done.json").unlink()  # as if it had died before it could note what it has written
    (state / "once" / ".done.json.crc").unlink(missing_ok=True)
    after_a_crash = replayed()

    assert (first, again, after_a_crash) == (60, 0, 60)
    assert read(broker.bootstrap, topic_name) == read(broker.bootstrap, "replayed-from")
    with pytest.raises(PipelineError, match="the replay once is another one: its where is None, not offset > 3"):
        plan_replay(
            spark,
            archive=archive,
            bootstrap=broker.bootstrap,
            to=topic_name,
            where="offset > 3",
            replay_id="once",
            checkpoint=str(state),
        )


def test_given_records_that_lie_unevenly_among_offsets_when_replayed_then_no_chunk_has_more_of_them_than_it_may(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets were cut evenly: most chunks had nothing, at which the replay ended, and one had nearly everything."""
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config=FOR_EVER)
    caplog.set_level(logging.INFO)

    ended = replay(
        spark,
        archive=archive,
        bootstrap=broker.bootstrap,
        to=topic_name,
        where="offset = 0 OR offset >= 24",
        rows_per_chunk=5,
    )

    source = read(broker.bootstrap, "replayed-from")
    assert (ended.rows, _rows_of_chunks(caplog)) == (14, [5, 5, 4])
    assert read(broker.bootstrap, topic_name) == [records[:1] + records[24:] for records in source]


def test_given_chunks_laid_down_with_none_or_too_many_records_when_it_goes_on_then_all_are_written_in_smaller_ones(
    spark: SparkSession,
    broker: BrokerProcess,
    topic_name: str,
    archive: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A chunk without records ended the replay, and every one after it; --rate was nothing to what was laid down."""
    create(broker.bootstrap, topic_name, partitions=PARTITIONS, config=FOR_EVER)
    caplog.set_level(logging.INFO)
    plan = plan_replay(
        spark,
        archive=archive,
        bootstrap=broker.bootstrap,
        to=topic_name,
        where="offset >= 24",
        rows_per_chunk=5,
        replay_id="before",
        checkpoint=str(tmp_path),
    )
    laid_down = {"rows": 12, "chunks": [{"0": [0, 24], "1": [0, 24]}, {"0": [24, 30], "1": [24, 30]}]}
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "plan.json").write_text(json.dumps({"purpose": dict(plan.state.purpose), **laid_down}))

    told = dict(plan.lines())
    ended = plan.run()

    assert told["chunks"] == "4, of which 0 are written"
    assert (ended.rows, _rows_of_chunks(caplog)) == (12, [0, 5, 5, 2])
    assert read(broker.bootstrap, topic_name) == [records[24:] for records in read(broker.bootstrap, "replayed-from")]
    assert len(json.loads((tmp_path / "before" / "plan.json").read_text())["chunks"]) == 4


def test_given_a_target_with_fewer_partitions_when_replayed_by_remainder_then_each_partition_is_in_order(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: str
) -> None:
    create(broker.bootstrap, topic_name, config=FOR_EVER)

    replay(
        spark,
        archive=archive,
        bootstrap=broker.bootstrap,
        to=topic_name,
        partitions="modulo",
        new_timestamps=True,
        rate=1_000,
    )

    (found,) = read(broker.bootstrap, topic_name)
    for partition in range(PARTITIONS):
        mine = [str(each.value).encode() for each in RECORDS if each.partition == partition and each.value is not None]
        assert [each.value for each in found if each.value in set(mine)] == mine
    assert len(found) == 60 and all(each.timestamp_ms > FIRST_DAY_MS + 5 * DAY_MS for each in found)


def test_given_arguments_that_cannot_be_when_a_replay_is_planned_then_one_sentence_says_what_is_wrong(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, archive: str, tmp_path: Path
) -> None:
    stamped, short_lived, narrow, recent = (f"{topic_name}-{n}" for n in ("stamped", "short", "narrow", "recent"))
    create(broker.bootstrap, stamped, partitions=2, config=FOR_EVER | {"message.timestamp.type": "LogAppendTime"})
    create(broker.bootstrap, short_lived, partitions=2, config={"retention.ms": "3600000"})
    create(broker.bootstrap, narrow, partitions=1)
    create(broker.bootstrap, recent, partitions=2, config=FOR_EVER | {"message.timestamp.before.max.ms": "3600000"})

    def refused(error: type[Exception], why: str, **changes: object) -> None:
        arguments = {"archive": archive, "bootstrap": broker.bootstrap, "to": short_lived} | changes
        with pytest.raises(error, match=why):
            plan_replay(spark, **arguments)  # type: ignore[arg-type]

    refused(PipelineError, "deletes records that are older than 3600000 ms")
    refused(PipelineError, "gives records its own time", to=stamped)
    refused(PipelineError, "refuses records of more than 3600000 ms before its own time", to=recent)
    refused(PipelineError, "has 1 partitions, and the records are of 2", to=narrow)
    refused(WireError, 'no topic "nowhere"', to="nowhere")
    refused(PipelineError, "is not an archive: there is nothing in it", archive=str(tmp_path / "nothing"))
    refused(PipelineError, 'the archive has no topic "other", only replayed-from', topic="other")
    refused(PipelineError, r'the condition "offst > 3" cannot be asked: .*offst', where="offst > 3")
    refused(PipelineError, "is not repeatable: rand", where="rand() > 0.5")
    refused(PipelineError, "partitions takes keep, modulo, key", partitions="any")
    refused(PipelineError, 'offsets are PARTITION:FIRST-END.*not "x"', offsets=["x"])


def test_given_records_of_times_to_come_when_a_replay_is_planned_then_a_topic_that_refuses_those_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic_name: str, tmp_path: Path
) -> None:
    """The broker refused them in the midst of the replay."""
    source, careful, home = f"{topic_name}-from", f"{topic_name}-careful", str(tmp_path / "archive")
    to_come = [Given("early", timestamp_ms=time.time_ns() // 1_000_000 + 2 * DAY_MS)]
    create(broker.bootstrap, source, topic_name, config={"message.timestamp.after.max.ms": str(3 * DAY_MS)})
    create(broker.bootstrap, careful)
    fill(broker.bootstrap, source, to_come)
    archived_to(spark, broker.bootstrap, source, home, format="parquet")

    with pytest.raises(PipelineError, match="refuses records of more than 3600000 ms after its own time"):
        plan_replay(spark, archive=home, bootstrap=broker.bootstrap, to=careful)
    plan_replay(spark, archive=home, bootstrap=broker.bootstrap, to=careful, new_timestamps=True)
    plan_replay(spark, archive=home, bootstrap=broker.bootstrap, to=topic_name)


def _rows_of_chunks(log: pytest.LogCaptureFixture) -> list[int]:
    return [getattr(each, "rows", -1) for each in log.records if each.getMessage() == "chunk written"]
