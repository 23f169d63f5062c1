"""The columns of a table, and how they may change: fields are added, by name, and numbers may grow wider.

What was archived before a field was there has null in it. Anything else that changes a type is another table.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.pipelines.errors import PipelineError

FIELDS = "fields"
REASON = "reason"

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RECORD = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("timestamp", TimestampType()),
        StructField("timestamp_type", IntegerType()),
    ]
)
QUARANTINED = StructType([*RECORD.fields, StructField(REASON, StringType())])

_WIDER = {(IntegerType(), LongType()), (FloatType(), DoubleType())}


def with_fields(fields: StructType | None) -> StructType:
    """The columns of an archive whose values are taken apart, or are not."""
    return RECORD if fields is None else StructType([*RECORD.fields, StructField(FIELDS, nullable(fields))])


def nullable(data_type: DataType) -> DataType:
    """In a table every field can be null: there are records of before it was there."""
    if isinstance(data_type, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in data_type.fields])
    if isinstance(data_type, ArrayType):
        return ArrayType(nullable(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(nullable(data_type.keyType), nullable(data_type.valueType))
    return data_type


def records_of(source: DataFrame) -> DataFrame:
    """What the source gives, as an archive has it."""
    return source.withColumn("timestamp_type", F.col("timestampType")).select(*RECORD.fieldNames())


def evolved(table: StructType, wanted: StructType, where: str = "") -> StructType:
    """What the table has and, behind it, what is new. Raises PipelineError."""
    fields = {field.name: field for field in table.fields}
    spelled = {name.lower(): name for name in fields}
    for field in wanted.fields:
        name = f"{where}{field.name}"
        there = spelled.setdefault(field.name.lower(), field.name)
        if there != field.name:  # one and the same to Spark, which could not read a table that has both
            raise PipelineError(f"the table has another schema: {name} differs from {there} of the table in case only")
        known = fields.get(field.name)
        data_type = field.dataType if known is None else _evolved_type(known.dataType, field.dataType, name)
        fields[field.name] = StructField(field.name, data_type)
    return StructType(list(fields.values()))


def extended(table: StructType, wanted: StructType) -> StructType:
    """As `evolved`, with nothing left out. For tables whose rows are replaced: they would lose what they have there."""
    schema = evolved(table, wanted)
    left_out = list(_left_out(table, wanted))
    if left_out:
        raise PipelineError(
            f"the table has more columns than --schema: {', '.join(left_out)}; name them all, as rows that change "
            "would lose what they have there: where a value has none, null is written"
        )
    return schema


def _left_out(table: DataType, wanted: DataType, where: str = "") -> Iterator[str]:
    if isinstance(table, StructType) and isinstance(wanted, StructType):
        known = {field.name: field.dataType for field in wanted.fields}
        for field in table.fields:
            if field.name in known:
                yield from _left_out(field.dataType, known[field.name], f"{where}{field.name}.")
            else:
                yield f"{where}{field.name}"
    elif isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        yield from _left_out(table.elementType, wanted.elementType, f"{where}element.")
    elif isinstance(table, MapType) and isinstance(wanted, MapType):
        yield from _left_out(table.valueType, wanted.valueType, f"{where}value.")


def _evolved_type(table: DataType, wanted: DataType, name: str) -> DataType:
    if isinstance(table, StructType) and isinstance(wanted, StructType):
        return evolved(table, wanted, f"{name}.")
    if isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_evolved_type(table.elementType, wanted.elementType, f"{name}.element"))
    if isinstance(table, MapType) and isinstance(wanted, MapType) and table.keyType == wanted.keyType:
        return MapType(table.keyType, _evolved_type(table.valueType, wanted.valueType, f"{name}.value"))
    if table == wanted or (wanted, table) in _WIDER:
        return table
    if (table, wanted) in _WIDER:
        return wanted
    raise PipelineError(
        f"the table has another schema: {name} is {table.simpleString()} there, and {wanted.simpleString()} now; "
        "fields can be added, not changed"
    )
