"""Values of records taken apart: JSON or Avro, as a struct of fields, with a reason for each that is neither.

A schema is columns as Spark writes them ("id BIGINT, name STRING"), Spark's or Avro's JSON, or a file with one of
these. Avro's values do not say what they were written with: further schemas are those of older writers, tried in their
order and turned into the first one by Avro's rules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.spark.pipelines import json_values
from penstock.spark.pipelines.errors import PipelineError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.table_schema import FIELDS, REASON

_APART = "_penstock_apart"


class ValueKind(StrEnum):
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """`avro` is the schemas as JSON texts, of which the first has `fields`."""

    kind: ValueKind
    fields: StructType
    avro: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {"kind": str(self.kind), "fields": self.fields.jsonValue(), "avro": list(self.avro)}

    def __str__(self) -> str:
        return f"{self.kind} as fields: {self.fields.simpleString()}"


def value_format(files: Files, kind: str, schemas: Sequence[str]) -> ValueFormat:
    """Raises PipelineError."""
    if kind not in list(ValueKind):
        raise PipelineError(f'value takes {" or ".join(ValueKind)}, not "{kind}"')
    if not schemas:
        raise PipelineError(f"value {kind} needs a schema: which fields to take out of values")
    texts = [_text(files, schema) for schema in schemas]
    if kind == ValueKind.AVRO:
        from penstock.spark.pipelines.avro_values import struct_of

        format = ValueFormat(ValueKind.AVRO, struct_of(texts), tuple(texts))
    elif len(texts) > 1:
        raise PipelineError("JSON takes one schema: fields that a value does not have are null")
    else:
        format = ValueFormat(ValueKind.JSON, _struct(texts[0]))
    json_values.check_columns(format.fields, "schema")
    return format


def taken_apart(records: DataFrame, format: ValueFormat) -> DataFrame:
    """With `fields`, and `reason` where that is null because the value cannot be read; tombstones have neither."""
    if format.kind is ValueKind.AVRO:
        from penstock.spark.pipelines.avro_values import decoded

        apart = records.withColumn(_APART, decoded(format.avro, format.fields)(F.col("value")))
        return _with(apart, F.col(_APART)[FIELDS], F.col(_APART)[REASON])
    text = F.col("value").cast("string")
    apart = records.withColumn(_APART, json_values.parsed(text, format.fields))
    struct = F.col(_APART)
    reason = json_values.reason_not(text, struct, format.fields)
    fields = F.when(struct.isNotNull(), F.struct(*json_values.fields(struct, format.fields)))
    return _with(apart, fields, reason)


def _with(apart: DataFrame, fields: Column, reason: Column) -> DataFrame:
    return apart.withColumn(REASON, reason).withColumn(FIELDS, F.when(F.col(REASON).isNull(), fields)).drop(_APART)


def _text(files: Files, schema: str) -> str:
    """What is not a schema itself is where one is; a path may have spaces, as columns do."""
    if schema.lstrip().startswith(("{", "[")):
        return schema
    if len(schema.split()) > 1 and not _is_there(files, schema):
        return schema
    text = files.read(schema)
    if text is None:
        raise PipelineError(f'schema: "{schema}" is neither a file nor columns such as "id BIGINT, name STRING"')
    return text


def _is_there(files: Files, schema: str) -> bool:
    try:
        return files.exists(schema)
    except (PipelineError, PySparkException):  # columns are no path: some have a colon
        return False


def _struct(text: str) -> StructType:
    if not text.lstrip().startswith("{"):
        return json_values.parse_schema(text.strip(), "schema")
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"schema: this is not a schema as Spark writes it in JSON: {error!r}") from None
