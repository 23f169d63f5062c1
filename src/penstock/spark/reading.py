"""The source: what `format("penstock")` reads with."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.errors import BadOffsets, BadOption, plainly
from penstock.spark.source_options import SourceOptions

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_FIELDS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]


def schema_of(options: Mapping[str, str]) -> StructType:
    """Checks the options as well: this is the first that Spark asks."""
    with plainly():
        return _schema(SourceOptions.parse(options))


def batch_reader(options: Mapping[str, str], schema: StructType | None = None) -> DataSourceReader:
    from penstock.spark.batch_reader import BatchReader, PruningBatchReader

    with plainly():
        parsed = SourceOptions.parse(options).for_batch()
        _check_schema(schema, parsed)
        return PruningBatchReader(parsed) if parsed.pushes_filters else BatchReader(parsed)


def stream_reader(options: Mapping[str, str], schema: StructType | None = None) -> DataSourceStreamReader:
    from penstock.spark.refused_stream import RefusedStream
    from penstock.spark.stream_reader import StreamReader

    try:
        parsed = SourceOptions.parse(options).for_stream()
        _check_schema(schema, parsed)
    except (BadOption, BadOffsets) as refused:
        return RefusedStream(refused)
    return StreamReader(parsed)


def _check_schema(schema: StructType | None, options: SourceOptions) -> None:
    """Spark lets users say what the columns are; here they are always the same."""
    if schema is not None and schema != _schema(options):
        raise BadOption(
            "schema",
            f"cannot be chosen: the columns are {_schema(options).simpleString()}, not {schema.simpleString()}",
        )


def _schema(options: SourceOptions) -> StructType:
    return StructType([*_FIELDS, StructField("headers", ArrayType(_HEADER))] if options.includes_headers else _FIELDS)
