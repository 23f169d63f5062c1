"""Which columns a write may have, as Spark's own Kafka sink has them, and `timestamp`, which is ours."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.core.config_values import nearest
from penstock.spark.sink_errors import BadColumns

_BYTES: tuple[type[DataType], ...] = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "key": (_BYTES, "string or binary"),
    "value": (_BYTES, "string or binary"),
    "headers": ((ArrayType,), "array<struct<key:string,value:binary>>"),
    "timestamp": ((TimestampType,), "timestamp"),
}


def check_schema(schema: StructType, topic: str | None) -> None:
    """`topic` is the option. Raises BadColumns."""
    names = [field.name for field in schema.fields]
    for name in names:
        if name not in _TYPES:
            guess = nearest(name.lower(), _TYPES)
            hint = f"did you mean {guess}?" if guess else "drop it, or put it into the value (to_json, for example)"
            raise BadColumns(f'a record has no column "{name}": it has {", ".join(_TYPES)}; {hint}')
        if names.count(name) > 1:
            raise BadColumns(f'column "{name}" is there {names.count(name)} times')
    for field in schema.fields:
        types, wanted = _TYPES[field.name]
        if not isinstance(field.dataType, types) or (field.name == "headers" and not _are_headers(field.dataType)):
            raise BadColumns(f'column "{field.name}" is {field.dataType.simpleString()}, and must be {wanted}: cast it')
    if "value" not in names:
        raise BadColumns(f"there is no column value, only {', '.join(names) or 'none at all'}")
    if topic is None and "topic" not in names:
        raise BadColumns("no topic: give option topic, or a column topic")


def _are_headers(found: DataType) -> bool:
    assert isinstance(found, ArrayType)
    entry = found.elementType
    return (
        isinstance(entry, StructType)
        and [field.name for field in entry.fields] == ["key", "value"]
        and isinstance(entry.fields[0].dataType, StringType)
        and isinstance(entry.fields[1].dataType, BinaryType)
    )
