"""The writers of `format("penstock")`.

Spark makes one on the driver for every batch, hands it to the tasks, and makes another one to commit. Everything that
can be known to be wrong is said when it is made. What tasks commit is committed: `commit` has nothing left to do, least
of all to take markers away that a late attempt may look for, and `abort` undoes nothing, since Spark runs the batch
again and finds what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.spark.errors import plainly
from penstock.spark.markers import new_unnamed_writer
from penstock.spark.sink_checks import check_cluster
from penstock.spark.sink_errors import BadColumns
from penstock.spark.sink_options import Kind, SinkOptions
from penstock.spark.sink_schema import check_schema
from penstock.spark.task_writer import Task, write_at_least_once, write_exactly_once

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_ONLY_BATCH = 0


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
            return write_exactly_once(self._options, Task(query_id, number, int(batch_id)), iterator)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    return context
