"""Values that are JSON, as columns of a schema, and a reason for each that is not.

Spark's reader of JSON is lenient: what does not fit becomes null, bytes that are not UTF-8 become question marks. Here
such a value keeps its bytes and gets a reason, and whoever asked decides what becomes of it. One leniency stays: what
follows the first JSON object of a value is not looked at.
"""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.pipelines.errors import PipelineError

_CORRUPT = "_penstock_corrupt"


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
    names = [name.lower() for name in schema.fieldNames()]
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f'{option}: column "{name}" is there {names.count(name)} times')
    if not names:
        raise PipelineError(f"{option}: no columns")
    return schema


def parsed(text: Column, schema: StructType) -> Column:
    """A struct of the schema's columns and one more, for `reason_not`; null where the text is."""
    nullable = [StructField(field.name, field.dataType, True) for field in schema.fields]
    whole = StructType([*nullable, StructField(_CORRUPT, StringType())])
    return F.from_json(text, whole, {"columnNameOfCorruptRecord": _CORRUPT})


def fields(struct: Column, schema: StructType) -> list[Column]:
    return [struct[field.name].alias(field.name) for field in schema.fields]


def reason_not(text: Column, struct: Column, schema: StructType, what: str | None = None) -> Column:
    """Why the text, which is not null, is not of the schema; null when it is. `struct` is what `parsed` made of it."""
    reason = F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
    not_json = F.lit(f"it is not JSON of {what or _told(schema)}")
    reason = reason.when(struct.isNull() | struct[_CORRUPT].isNotNull(), not_json)
    for field in schema.fields:
        if not field.nullable:
            reason = reason.when(struct[field.name].isNull(), F.lit(f"it has no {field.name}"))
    return F.when(text.isNotNull(), reason)


def _told(schema: StructType) -> str:
    told = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    return told if len(told) <= 200 else told[:197] + "..."
