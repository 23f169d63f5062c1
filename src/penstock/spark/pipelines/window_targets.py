"""Where windows go: a topic, in the sink's transactions, or a table, in a commit for each batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.spark.pipelines import checkpoints, table_home
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.result_table import ResultTable, check_columns, check_reached, open_result_table
from penstock.spark.pipelines.running import Ended, Running, run
from penstock.spark.pipelines.settings import STATES, STREAMS, settings
from penstock.spark.pipelines.table_home import TableHome
from penstock.spark.pipelines.topic_target import TopicTarget
from penstock.spark.pipelines.topics import Brokers
from penstock.spark.pipelines.window_query import START, Answer

_RESULT, _BAD = "_penstock_result", "_penstock_bad"


class Emit(StrEnum):
    FINAL = "final"
    UPDATES = "updates"


@dataclass(frozen=True, slots=True)
class WindowTopic:
    """Keys are the window's beginning and its group, so that of several updates a compacted topic keeps the last.

    A record's own timestamp is when it was written. A window's time may be one that a broker refuses, before 1970 or
    far ahead, or so old that retention would delete it at once.
    """

    brokers: Brokers
    topic: str
    emit: Emit

    @property
    def checkpoint(self) -> None:
        """A topic has no place for one."""

    def __str__(self) -> str:
        how = "when they are done, exactly once" if self.emit is Emit.FINAL else "whenever they change, at least once"
        return f"topic {self.topic}, {how}"

    @property
    def purpose(self) -> dict[str, str]:
        return {"to": f"topic {self.topic}", "emit": self.emit}

    def check(self, answer: Answer) -> None:
        self.brokers.partitions_of([self.topic, *([answer.quarantine] if answer.quarantine else [])])

    def check_reached(self, files: Files, checkpoint: str) -> None:
        """A topic is not put back from a backup."""

    def made(self, files: Files) -> WindowTopic:
        return self

    def run(self, spark: SparkSession, answer: Answer, how: Running) -> Ended:
        columns = answer.windows.columns
        rows = answer.windows.select(
            F.lit(self.topic).alias("topic"),
            _json(START, *answer.groups).alias("key"),
            _json(*columns).alias("value"),
        )
        rows = rows.unionByName(answer.quarantined, allowMissingColumns=True)
        with settings(spark, STREAMS | STATES):
            return run(self._writer(rows), how)

    def _writer(self, rows: DataFrame) -> DataStreamWriter:
        if self.emit is Emit.FINAL:
            return TopicTarget(self.brokers, None, exactly_once=True, compares_rows=False).writer(rows)
        # Spark has no mode for updates with sinks that are written in Python. A batch that is done again writes the
        # same updates again, before any later ones: what a key has last is the same.
        target = TopicTarget(self.brokers, None, exactly_once=False)
        return rows.writeStream.foreachBatch(lambda batch, _: target.append(batch)).outputMode("update")


@dataclass(frozen=True, slots=True)
class WindowTable:
    brokers: Brokers
    home: TableHome
    catalog: Mapping[str, str]

    def __str__(self) -> str:
        return f"table {'.'.join(self.home.identifier)} in {self.home.path}, when they are done, exactly once"

    @property
    def checkpoint(self) -> str:
        return self.home.checkpoint

    @property
    def purpose(self) -> dict[str, str]:
        return {"table": self.home.id}

    def check(self, answer: Answer) -> None:
        if answer.quarantine is not None:
            self.brokers.partitions_of([answer.quarantine])
        found = table_home.load(Files(answer.windows.sparkSession), self.home, self.catalog)
        if found is not None:
            check_columns(found, answer.windows.schema)

    def check_reached(self, files: Files, checkpoint: str) -> None:
        """Raises PipelineError when the table lacks what is done by the checkpoint."""
        found = table_home.load(files, self.home, self.catalog)
        check_reached(found, checkpoints.last_done(files, checkpoint), checkpoint)

    def made(self, files: Files) -> WindowTable:
        return replace(self, home=table_home.made(files, self.home))

    def run(self, spark: SparkSession, answer: Answer, how: Running) -> Ended:
        order = (START, *answer.groups)
        table = open_result_table(spark, self.home, answer.windows.schema, order, self.catalog)
        writer = (
            _both(answer)
            .writeStream.foreachBatch(_Adding(self.brokers, table, answer.quarantine).add)
            .outputMode("append")
        )
        with settings(spark, STREAMS | STATES):
            return run(writer, how)


WindowTarget = WindowTopic | WindowTable


class _Adding:
    """What is done with each batch."""

    def __init__(self, brokers: Brokers, table: ResultTable, quarantine: str | None) -> None:
        self._brokers = brokers
        self._table = table
        self._quarantine = quarantine

    def add(self, batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None, "only a query's batches are added"
        if self._quarantine is None:
            self._table.add(batch.select(f"{_RESULT}.*"), query_id, batch_id)
            return
        # Windows and records come from one computation, which may be done only once: states move on with it.
        kept = batch.persist()
        try:
            bad = kept.where(F.col(_BAD).isNotNull()).select(f"{_BAD}.*")
            TopicTarget(self._brokers, None, exactly_once=True).append(bad, f"{query_id}-{batch_id}")
            self._table.add(kept.where(F.col(_RESULT).isNotNull()).select(f"{_RESULT}.*"), query_id, batch_id)
        finally:
            kept.unpersist()


def parse_emit(text: str) -> Emit:
    try:
        return Emit(text)
    except ValueError:
        raise PipelineError(f'--emit takes {" or ".join(Emit)}, not "{text}"') from None


def _both(answer: Answer) -> DataFrame:
    """Windows and records for the quarantine, as two columns of which each row has one."""
    windows = answer.windows.select(F.struct(*answer.windows.columns).alias(_RESULT))
    bad = answer.quarantined.select(F.struct(*answer.quarantined.columns).alias(_BAD))
    return windows.unionByName(bad, allowMissingColumns=True)


def _json(*columns: str) -> Column:
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
