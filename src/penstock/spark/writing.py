"""The writers of `format("penstock")`.

Spark makes one on the driver for every batch, hands it to the tasks, and makes another one to commit. Everything that
can be known to be wrong is said when it is made. What tasks commit is committed: `commit` only looks whether they were
the tasks that the batch was begun with (commit_checks), least of all does it take markers away that a late attempt may
look for, and `abort` undoes nothing, since Spark runs the batch again and finds what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.spark.commit_checks import check_tasks
from penstock.spark.errors import plainly
from penstock.spark.markers import new_unnamed_writer
from penstock.spark.sink_checks import check_cluster
from penstock.spark.sink_errors import BadColumns
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.sink_schema import check_schema
from penstock.spark.task_writer import Task, TaskWritten, write_at_least_once, write_exactly_once

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_ONLY_BATCH = 0
# Spark asks the same process again for the next batch: of these runs one was looked at already.
_looked_at: set[str] = set()


@dataclass(frozen=True)
class QueryWritten(WriterCommitMessage):
    """What the driver is told of a task of a stream. `run_id` is another one each time the query is started."""

    query_id: str
    run_id: str
    task: TaskWritten


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    with plainly():
        if overwrite:
            raise BadColumns('a topic cannot be overwritten, only appended to: write with mode("append")')
        return BatchWriter(_checked(options, schema, Kind.BATCH))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """`overwrite` is a query's output mode complete: as in Spark's Kafka sink, every batch is appended."""
    with plainly():
        return StreamWriter(_checked(options, schema, Kind.STREAM))


def _checked(options: Mapping[str, str], schema: StructType, kind: Kind) -> SinkOptions:
    parsed = SinkOptions.parse(options, kind)
    check_schema(schema, parsed.topic)
    check_cluster(parsed, kind)
    return parsed


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # Tasks that run again find what they have done, even if the write has no name, and even if it has ended.
        self._writer = options.write_id or new_unnamed_writer()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            number = _context().partitionId()
            if not self._options.exactly_once:
                return write_at_least_once(self._options, number, iterator)
            return write_exactly_once(self._options, Task(self._writer, number, _ONLY_BATCH), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A batch without a name is never done again by others than Spark, which keeps its tasks."""
        if self._options.write_id is None:
            return
        with plainly():
            tasks = [each for each in messages if isinstance(each, TaskWritten)]
            check_tasks(self._options, self._writer, _ONLY_BATCH, _with_rows(tasks))


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with plainly():
            context = _context()
            number = context.partitionId()
            if not self._options.exactly_once:
                return write_at_least_once(self._options, number, iterator)
            query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
            assert query_id is not None and batch_id is not None, "Spark tells tasks of a stream what they belong to"
            written = write_exactly_once(self._options, Task(query_id, number, int(batch_id)), iterator)
            return QueryWritten(query_id, context.getLocalProperty(_RUN_ID) or "", written)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        of_query = [each for each in messages if isinstance(each, QueryWritten)]
        if not of_query or of_query[0].run_id in _looked_at:
            return
        query_id, run_id = of_query[0].query_id, of_query[0].run_id
        with plainly():
            check_tasks(self._options, query_id, batchId, _with_rows([each.task for each in of_query]))
        if run_id:
            _looked_at.add(run_id)


def _with_rows(tasks: Sequence[TaskWritten]) -> set[int]:
    return {each.task for each in tasks if each.rows}


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context
