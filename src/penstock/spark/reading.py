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

from penstock.spark.errors import plainly
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
        includes_headers = SourceOptions.parse(options).includes_headers
    return StructType([*_FIELDS, StructField("headers", ArrayType(_HEADER))] if includes_headers else _FIELDS)


def batch_reader(options: Mapping[str, str]) -> DataSourceReader:
    from penstock.spark.batch_reader import BatchReader

    with plainly():
        return BatchReader(SourceOptions.parse(options).for_batch())


def stream_reader(options: Mapping[str, str]) -> DataSourceStreamReader:
    from penstock.spark.stream_reader import StreamReader

    with plainly():
        return StreamReader(SourceOptions.parse(options).for_stream())
