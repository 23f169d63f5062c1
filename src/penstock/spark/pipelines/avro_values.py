"""Values in Avro's binary form, decoded with fastavro in the workers: Spark's own decoder is a jar of its own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
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
from penstock.spark.pipelines.table_schema import FIELDS, REASON

_PRIMITIVE: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}
# What columns cannot take; Arrow's own errors are among them.
_UNFIT = (ValueError, TypeError, OverflowError)
_UNREADABLE = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError)


def struct_of(schemas: Sequence[str]) -> StructType:
    """The fields of the first schema. Raises PipelineError when one of them is none, or not a record."""
    parsed = [_parsed(text) for text in schemas]
    found = _Types().of(parsed[0], "schema")
    if not isinstance(found, StructType):
        raise PipelineError(f"schema: values are taken apart into fields, so it is a record, not {parsed[0]}")
    return found


def decoded(schemas: Sequence[str], fields: StructType) -> Callable[..., Any]:
    """A function of values: the struct of a value, and why there is none."""
    result = StructType([StructField(FIELDS, fields), StructField(REASON, StringType())])

    def decode(values: pa.Array) -> pa.Array:
        read = _reader(schemas)
        records, reasons = [], []
        for value in values:
            record, reason = read(value.as_py())
            records.append(record)
            reasons.append(reason)
        structs = _structs(records, reasons, to_arrow_type(fields, timezone="UTC"))
        return pa.StructArray.from_arrays([structs, pa.array(reasons, pa.string())], [FIELDS, REASON])

    # Spark looks at the types, not at their names.
    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    return arrow_udf(decode, returnType=result)  # type: ignore[call-overload, no-any-return]


def _structs(records: list[object], reasons: list[str | None], type: pa.StructType) -> pa.Array:
    """Records that do not fit have none, and get a reason. Avro's encoding has no widths: an int may have any."""
    try:
        return pa.array(records, type)
    except _UNFIT:
        for at, record in enumerate(records):
            if reason := _misfit(record, type):
                records[at], reasons[at] = None, reason
        return pa.array(records, type)


def _misfit(record: Any, type: pa.StructType) -> str | None:
    for field in () if record is None else type:
        try:
            pa.array([record.get(field.name)], field.type)
        except _UNFIT as error:
            return f"it does not fit the schema: {field.name}: {error}"
    return None


def _reader(schemas: Sequence[str]) -> Callable[[bytes | None], tuple[object, str | None]]:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.read import SchemaResolutionError

    writers = [parse_schema(json.loads(text)) for text in schemas]
    has_uuids = any('"uuid"' in json.dumps(writer) for writer in writers)

    def read(value: bytes | None) -> tuple[object, str | None]:
        if value is None:
            return None, None
        trouble = ""
        for writer in writers:
            stream = io.BytesIO(value)
            try:
                found = schemaless_reader(stream, writer, writers[0])
            except (*_UNREADABLE, SchemaResolutionError) as error:
                trouble = trouble or f"{type(error).__name__}: {error}".rstrip(": ")
                continue
            left = len(value) - stream.tell()
            if not left:
                return _with_text(found) if has_uuids else found, None
            trouble = trouble or f"{left} bytes follow the record"
        return None, f"it is not Avro of this schema: {trouble}"

    return read


def _with_text(value: Any) -> Any:
    """fastavro makes objects of UUIDs."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: _with_text(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_text(each) for each in value]
    return value


def _parsed(text: str) -> Any:
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        return parse_schema(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException, UnknownType) as error:
        raise PipelineError(f"schema: this is not an Avro schema: {error!r}") from None


class _Types:
    """Avro's types as Spark's. A type that has a name can be named again."""

    def __init__(self) -> None:
        self._named: dict[str, DataType] = {}

    def of(self, schema: Any, where: str) -> DataType:
        if isinstance(schema, list):
            return self._union(schema, where)
        if isinstance(schema, str):
            found = self._named.get(schema) or _PRIMITIVE.get(schema)
            return found if found is not None else self._refuse(schema, where)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, where)
        if kind == "array":
            return ArrayType(self.of(schema["items"], f"{where}.items"))
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"], f"{where}.values"))
        found = self._plain(schema, kind, where)
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _record(self, schema: Any, where: str) -> DataType:
        fields = [
            StructField(field["name"], self.of(field["type"], f"{where}.{field['name']}")) for field in schema["fields"]
        ]
        self._named[schema["name"]] = StructType(fields)
        return self._named[schema["name"]]

    def _plain(self, schema: Any, kind: Any, where: str) -> DataType:
        logical = schema.get("logicalType")
        if logical == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0))
        # A uuid of another type than string is what it would be without.
        if logical in _LOGICAL and not (logical == "uuid" and kind != "string"):
            return _LOGICAL[logical]
        if isinstance(logical, str) and logical.startswith(("time-", "local-timestamp")):
            self._refuse(logical, where)
        return self.of(kind, where) if not isinstance(kind, str) or kind not in _PRIMITIVE else _PRIMITIVE[kind]

    def _union(self, branches: Iterable[Any], where: str) -> DataType:
        others = [branch for branch in branches if branch != "null"]
        if len(others) == 1:
            return self.of(others[0], where)
        if set(map(str, others)) == {"int", "long"}:
            return LongType()
        if set(map(str, others)) == {"float", "double"}:
            return DoubleType()
        return self._refuse(f"a union of {len(others)} types", where)

    def _refuse(self, what: str, where: str) -> DataType:
        raise PipelineError(f"{where}: {what} has no column type")
