"""Values that are JSON, as columns of a schema, and a reason for each that is not.

Spark's reader of JSON is lenient: what does not fit becomes null, bytes that are not UTF-8 become question marks, and
what follows the first object is not looked at. Here such a value keeps its bytes and gets a reason, and whoever asked
decides what becomes of it. What a type makes of a number that has more digits than it is as Spark does it:
docs/pipelines.md says which types keep them all.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.pipelines.errors import PipelineError

_VALUE, _END, _CORRUPT = "_penstock_value", "_penstock_end", "_penstock_corrupt"
_MOST_DIGITS = 38
# Of a column whose parts are not columns themselves: what Spark's readers, Parquet, Arrow and Iceberg all have.
_PLAIN = (NumericType, BooleanType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType)


def parse_schema(ddl: str, option: str = "--schema") -> StructType:
    """Of "id BIGINT, name STRING NOT NULL": NOT NULL asks for a field in every value. Raises PipelineError."""
    try:
        schema = StructType.fromDDL(ddl)
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise PipelineError(
            f'{option}: "{ddl}" is no list of columns such as "id BIGINT, name STRING": {lines[0]}'
        ) from None
    if not isinstance(schema, StructType):
        raise PipelineError(f"{option}: {schema.simpleString()} is no list of columns")
    check_columns(schema, option)
    return schema


def check_columns(schema: StructType, option: str) -> None:
    """Of values taken apart. A table that has a column which nobody can write or read would have it for ever.

    Raises PipelineError.
    """
    if not schema.fields:
        raise PipelineError(f"{option}: no columns")
    _check_struct(schema, option, "")


def _check_struct(struct: StructType, option: str, where: str) -> None:
    names = [name.lower() for name in struct.fieldNames()]
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f'{option}: column "{where}{name}" is there {names.count(name)} times')
    for field in struct.fields:
        _check_type(field.dataType, option, f"{where}{field.name}")


def _check_type(data_type: DataType, option: str, where: str) -> None:
    match data_type:
        case StructType() if data_type.fields:
            _check_struct(data_type, option, f"{where}.")
        case ArrayType():
            _check_type(data_type.elementType, option, f"{where}.element")
        case MapType() if data_type.keyType == StringType():
            _check_type(data_type.valueType, option, f"{where}.value")
        case DecimalType() if data_type.precision > _MOST_DIGITS:
            raise PipelineError(
                f"{option}: {where} cannot be {data_type.simpleString()}: {_MOST_DIGITS} digits at most"
            )
        case _ if not isinstance(data_type, _PLAIN):
            raise PipelineError(
                f"{option}: {where} cannot be {data_type.simpleString()}: there are numbers, STRING, BOOLEAN, BINARY, "
                "DATE, TIMESTAMP and TIMESTAMP_NTZ, and ARRAY, STRUCT and MAP<STRING, ...> of these"
            )


def parsed(text: Column, schema: StructType) -> Column:
    """A struct of the schema's columns; null where the text is not one object that fits them.

    Spark stops reading where the first object ends. So it reads another one, which has the text in it and something
    behind it.
    """
    nullable = StructType([StructField(field.name, field.dataType, True) for field in schema.fields])
    around = StructType(
        [StructField(_VALUE, nullable), StructField(_END, IntegerType()), StructField(_CORRUPT, StringType())]
    )
    whole = F.concat(F.lit(f'{{"{_VALUE}":'), text, F.lit(f',"{_END}":0}}'))
    read = F.from_json(whole, around, {"columnNameOfCorruptRecord": _CORRUPT})
    return F.when(read[_CORRUPT].isNull() & read[_END].isNotNull(), read[_VALUE])


def fields(struct: Column, schema: StructType) -> list[Column]:
    return [struct[field.name].alias(field.name) for field in schema.fields]


def reason_not(text: Column, struct: Column, schema: StructType, what: str | None = None) -> Column:
    """Why the text, which is not null, is not of the schema; null when it is. `struct` is what `parsed` made of it."""
    reason = F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
    not_json = F.lit(f"it is not JSON of {what or _told(schema)}")
    reason = reason.when(struct.isNull(), not_json)
    for field in schema.fields:
        if not field.nullable:
            reason = reason.when(struct[field.name].isNull(), F.lit(f"it has no {field.name}"))
    return F.when(text.isNotNull(), reason)


def _told(schema: StructType) -> str:
    told = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    return told if len(told) <= 200 else told[:197] + "..."
