"""kio as a second opinion: its message classes, reflected into layouts, plain values and hypothesis strategies.

kio names durations without their unit and gives them Python types; here everything is put into the words of our schema:
(name, type, nullable, tag) for a layout, ints, strings, bytes and lists for values.
"""

from __future__ import annotations

import io
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from penstock.protocol.codec import Message, Request
from penstock.protocol.schema import NEW_LIST, Array, Nested, Struct

WIRE_NAMES = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64", "error_code": "int16"}


class FieldType(NamedTuple):
    """A kio annotation, taken apart: `struct` is set for entities, `kafka_type` for all others."""

    kafka_type: str
    struct: type | None
    is_array: bool
    is_optional: bool

    @property
    def nullable(self) -> bool:
        """kio uses None for the zero uuid and for timestamp -1 as well, which are not null on the wire."""
        return self.is_optional and (self.is_array or self.kafka_type not in ("uuid", "datetime_i64"))


def field_type(field: Field[Any]) -> FieldType:
    annotation: Any = field.type
    is_optional = get_origin(annotation) is UnionType
    if is_optional:
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    is_array = get_origin(annotation) is tuple
    if is_array:
        annotation = get_args(annotation)[0]
    struct = annotation if is_dataclass(annotation) else None
    return FieldType(field.metadata.get("kafka_type", ""), struct, is_array, is_optional)  # type: ignore[arg-type]


def oracle(message: type[Message], version: int) -> type:
    kind: Any = EntityType.request if issubclass(message, Request) else EntityType.response
    entity_type: type = getattr(load_payload_module(message.API_KEY, version, kind), message.__name__)
    return entity_type


def kio_versions(message: type[Message]) -> set[int]:
    """The versions that kio knows, in a generous range."""
    found = set()
    for version in range(30):
        try:
            oracle(message, version)
        except RuntimeError:
            continue
        found.add(version)
    return found


def encoded_by_kio(entity: Any) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


def layout(entity_type: type) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for field in fields(entity_type):
        kind = field_type(field)
        type_name = layout(kind.struct) if kind.struct else WIRE_NAMES.get(kind.kafka_type, kind.kafka_type)
        nullable = kind.nullable and "tag" not in field.metadata
        rows.append((our_name(field), type_name, kind.is_array, nullable, field.metadata.get("tag")))
    return rows


def our_name(field: Field[Any]) -> str:
    return field.name + "_ms" if field_type(field).kafka_type.startswith("timedelta") else field.name


def explicit_defaults(entity_type: type) -> dict[str, Any]:
    """Those of Kafka's definitions. That a nullable array is empty by default is kio's own addition."""
    return {
        our_name(field): plain_field(field, field.default)
        for field in fields(entity_type)
        if field.default is not MISSING and not (field.default == () and field_type(field).nullable)
    }


def plain_field(field: Field[Any], value: Any) -> Any:
    """The value as our constructor takes it, structs as dictionaries; None for a tagged struct that is not sent."""
    kind = field_type(field)
    if kind.struct and "tag" in field.metadata and not kind.is_array and value == field.default:
        return None
    if value is None and not kind.nullable:
        return bytes(16) if kind.kafka_type == "uuid" else -1
    return plain(value)


def plain(value: Any) -> Any:
    if is_dataclass(value):
        return {our_name(field): plain_field(field, getattr(value, field.name)) for field in fields(value)}
    match value:
        case tuple():
            return [plain(item) for item in value]
        case UUID():
            return value.bytes
        case Enum():
            return value.value
        case timedelta():
            return round(value / timedelta(milliseconds=1))
        case datetime():
            return round(value.timestamp() * 1000)
    return value


def ours(struct: type[Struct], values: dict[str, Any]) -> Any:
    """Our message with these plain values, made by its constructor. kio names a timestamp without its unit too."""
    by_name = {field.name: field for field in struct.FIELDS}
    arguments = {}
    for name, value in values.items():
        field = by_name.get(name) or by_name[name + "_ms"]
        arguments[field.name] = our_value(field.wire, value)
    return struct(**arguments)


def our_value(wire: Any, value: Any) -> Any:
    if isinstance(wire, Nested) and value is not None:
        return ours(wire.struct, value)
    if isinstance(wire, Array) and value is not None:
        return [our_value(wire.element, item) for item in value]
    return value


def our_default(default: Any) -> Any:
    return [] if default is NEW_LIST else default


STRINGS = st.one_of(st.text(max_size=4), st.sampled_from(["", "topic", "ü" * 70, "x" * 300]))
PLAIN_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "string": STRINGS,
    "bytes": st.one_of(st.binary(max_size=4), st.just(bytes(200))),
    "records": st.one_of(st.binary(max_size=4), st.just(bytes(200))),
    "uuid": st.one_of(st.none(), st.binary(min_size=16, max_size=16).filter(any).map(lambda raw: UUID(bytes=raw))),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    # kio writes them by way of seconds in floating point, which are off by a millisecond from 2**51 on.
    "timedelta_i64": st.integers(-(2**50), 2**50).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, tz=UTC)),
}


@cache
def entities(entity_type: type) -> st.SearchStrategy[Any]:
    return st.builds(entity_type, **{field.name: values(field) for field in fields(entity_type)})


def values(field: Field[Any]) -> st.SearchStrategy[Any]:
    kind = field_type(field)
    strategy = entities(kind.struct) if kind.struct else PLAIN_VALUES[kind.kafka_type]
    if kind.is_array:
        strategy = st.lists(strategy, max_size=2).map(tuple)
    if kind.is_optional and kind.kafka_type != "uuid":
        strategy = st.one_of(st.none(), strategy)
    if field.default is not MISSING and "tag" in field.metadata:
        strategy = st.one_of(st.just(field.default), strategy)
    return strategy
