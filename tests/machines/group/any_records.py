"""Records of a group coordinator with any content, drawn field by field from their layouts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from penstock.coordinators.group import records
from penstock.protocol.schema import Array, Blob, Field, Fixed, Nested, Struct, Text, WireType

KINDS = records._KINDS

TEXT = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.just("x" * 200))
NUMBERS = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.one_of(st.just(-1), st.integers(-(2**63), 2**63 - 1)),
    "16s": st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
}


def any_record(kind: records._Kind) -> st.SearchStrategy[Any]:
    return st.builds(kind.record, *fields(kind.key), *fields(kind.value))


def any_tombstone(kind: records._Kind) -> st.SearchStrategy[Any]:
    return st.builds(kind.tombstone, *fields(kind.key))


def fields(layout: type[Struct]) -> list[st.SearchStrategy[Any]]:
    return [field_values(field) for field in layout.FIELDS]


def field_values(field: Field) -> st.SearchStrategy[Any]:
    is_nullable = field.nullable.last >= field.nullable.first
    return st.one_of(st.none(), values(field.wire)) if is_nullable else values(field.wire)


def values(wire: WireType) -> st.SearchStrategy[Any]:
    match wire:
        case Fixed():
            return NUMBERS[wire.format]
        case Text():
            return TEXT
        case Blob():
            return st.binary(max_size=4)
        case Array():
            return st.lists(values(wire.element), max_size=2).map(tuple)
        case Nested():
            return st.builds(records._NESTED[wire.struct], *fields(wire.struct))


def as_written(kind: records._Kind, record: Any, version: int) -> Any:
    """What is left of the record after that version of its value, which lacks some fields."""
    names = [field.name for layout in (kind.key, kind.value) for field in layout.FIELDS]
    kept = in_version(kind.value, {name: getattr(record, name) for name in names}, version)
    return kind.record(*(kept[name] for name in names))


def in_version(layout: type[Struct], by_name: dict[str, Any], version: int) -> dict[str, Any]:
    kept = dict(by_name)
    for field in layout.FIELDS:
        value = kept[field.name]
        if not field.versions.has(version):
            kept[field.name] = field.default
        elif isinstance(field.wire, Array) and isinstance(field.wire.element, Nested):
            kept[field.name] = tuple(nested_in_version(field.wire.element.struct, one, version) for one in value)
    return kept


def nested_in_version(layout: type[Struct], value: Any, version: int) -> Any:
    by_name = {field.name: getattr(value, field.name) for field in layout.FIELDS}
    return type(value)(**in_version(layout, by_name, version))
