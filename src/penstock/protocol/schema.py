"""The words in which message layouts are declared: fields with version ranges, and structs of them.

    class CreatableTopicConfig(Struct):
        name: str = string()
        value: str | None = string(nullable="0+")

A struct is a cheap object with slots and a keyword constructor. The annotation is for readers and type checkers, the
call on the right is the layout. `versions` and `nullable` are ranges as in Kafka's definitions: "3", "0-12", "5+".
A nullable field defaults to None, another one to zero, empty or `default`. A field with a `tag` is a tagged field in
all its versions; it is sent only when it differs from its default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast, dataclass_transform, overload

from penstock.core.ids import NO_TOPIC_ID, TopicId

T = TypeVar("T")

NEW_LIST = object()
"""As a default: every message gets an empty list of its own."""


class Versions(NamedTuple):
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        first, plus, _ = text.partition("+")
        if plus:
            return cls(int(first), ALL_VERSIONS.last)
        first, dash, last = text.partition("-")
        return cls(int(first), int(last if dash else first))

    def has(self, version: int) -> bool:
        return self.first <= version <= self.last


ALL_VERSIONS = Versions(0, 32767)
NO_VERSIONS = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number, boolean or uuid: `format` is its letter in the struct module."""

    format: str
    size: int


@dataclass(frozen=True, slots=True)
class Text:
    pass


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes. Records are not copied by decoding, and may be a RecordsSpan in encoding."""

    is_records: bool


@dataclass(frozen=True, slots=True)
class Nested:
    struct: type[Struct]


@dataclass(frozen=True, slots=True)
class Array:
    element: WireType


WireType: TypeAlias = Fixed | Text | Blob | Nested | Array


@dataclass(frozen=True, slots=True)
class Field:
    wire: WireType
    default: Any
    versions: Versions
    nullable: Versions
    tag: int | None
    name: str = ""


def _field(
    wire: WireType, default: Any, *, versions: str = "0+", nullable: str | None = None, tag: int | None = None
) -> Any:
    return Field(
        wire,
        default,
        Versions.parse(versions),
        NO_VERSIONS if nullable is None else Versions.parse(nullable),
        tag,
    )


def boolean(*, default: bool = False, versions: str = "0+", tag: int | None = None) -> bool:
    return cast(bool, _field(Fixed("?", 1), default, versions=versions, tag=tag))


def int8(*, default: int = 0, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, _field(Fixed("b", 1), default, versions=versions, tag=tag))


def int16(*, default: int = 0, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, _field(Fixed("h", 2), default, versions=versions, tag=tag))


def int32(*, default: int = 0, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, _field(Fixed("i", 4), default, versions=versions, tag=tag))


def int64(*, default: int = 0, versions: str = "0+", tag: int | None = None) -> int:
    return cast(int, _field(Fixed("q", 8), default, versions=versions, tag=tag))


def uuid(*, versions: str = "0+", tag: int | None = None) -> TopicId:
    return cast(TopicId, _field(Fixed("16s", 16), NO_TOPIC_ID, versions=versions, tag=tag))


@overload
def string(*, default: str = "", versions: str = "0+", tag: int | None = None) -> str: ...
@overload
def string(
    *, nullable: str, default: str | None = None, versions: str = "0+", tag: int | None = None
) -> str | None: ...
def string(*, nullable: str | None = None, default: str | None = None, **options: Any) -> Any:
    if default is None and nullable is None:
        default = ""
    return _field(Text(), default, nullable=nullable, **options)


@overload
def bytestring(*, versions: str = "0+", tag: int | None = None) -> bytes: ...
@overload
def bytestring(*, nullable: str, versions: str = "0+", tag: int | None = None) -> bytes | None: ...
def bytestring(*, nullable: str | None = None, **options: Any) -> Any:
    """Kafka's type `bytes`, whose name Python has taken."""
    return _field(Blob(is_records=False), b"" if nullable is None else None, nullable=nullable, **options)


def records(*, nullable: str | None = None, default: bytes | None = None, versions: str = "0+") -> Any:
    """Annotate with what the message needs: decoding gives a memoryview, encoding takes any Records."""
    return _field(Blob(is_records=True), default, nullable=nullable, versions=versions)


@overload
def nested(struct: type[T], *, versions: str = "0+") -> T: ...
@overload
def nested(struct: type[T], *, nullable: str, versions: str = "0+", tag: int | None = None) -> T | None: ...
@overload
def nested(struct: type[T], *, tag: int, versions: str = "0+") -> T | None: ...
def nested(struct: Any, *, nullable: str | None = None, tag: int | None = None, versions: str = "0+") -> Any:
    """One struct. A tagged one is None when it was not sent, so that the common case costs no object.

    The one field of Kafka that is both nullable and tagged is empty when it was not sent: there, null is sent.
    """
    default = struct if (nullable is None) == (tag is None) else None
    return _field(Nested(struct), default, nullable=nullable, tag=tag, versions=versions)


@overload
def array(element: Callable[..., T], *, versions: str = "0+", tag: int | None = None) -> list[T]: ...
@overload
def array(element: Callable[..., T], *, nullable: str, versions: str = "0+") -> list[T] | None: ...
def array(element: Any, *, nullable: str | None = None, **options: Any) -> Any:
    """`array(SomeStruct)` or an array of a plain type, `array(int32)`."""
    wire = Nested(element) if isinstance(element, type) else element().wire
    return _field(Array(wire), NEW_LIST if nullable is None else None, nullable=nullable, **options)


def _constructor(fields: tuple[Field, ...]) -> Callable[..., None]:
    """__init__ with a keyword per field. Each call makes its own lists and structs: defaults are never shared."""
    parameters, lines, names = ["self"], [], {"NEW_LIST": NEW_LIST}
    for field in fields:
        default = f"default_{field.name}"
        names[default] = field.default
        parameters += [f"{field.name}={default}"] if len(parameters) > 1 else ["*", f"{field.name}={default}"]
        value = field.name
        if field.default is NEW_LIST:
            value = f"[] if {field.name} is NEW_LIST else {field.name}"
        elif isinstance(field.default, type):
            value = f"{default}() if {field.name} is {default} else {field.name}"
        lines.append(f"    self.{field.name} = {value}\n")
    source = f"def __init__({', '.join(parameters)}):\n{''.join(lines) or '    pass'}"
    exec(source, names)
    return cast(Callable[..., None], names["__init__"])


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns the declared fields into slots and a constructor with keywords."""

    FIELDS: tuple[Field, ...]

    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> StructType:
        fields = tuple(replace(value, name=key) for key, value in body.items() if isinstance(value, Field))
        for field in fields:
            del body[field.name]
        body["__slots__"] = tuple(field.name for field in fields)
        body["FIELDS"] = fields
        body["__init__"] = _constructor(fields)
        return super().__new__(mcls, name, bases, body, **options)


class Struct(metaclass=StructType):
    FIELDS: ClassVar[tuple[Field, ...]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{type(self).__name__}({values})"
