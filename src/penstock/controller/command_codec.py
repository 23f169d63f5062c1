"""Commands for the controller, and its replies, as bytes: what one broker sends to another.

The classes of `commands.py` are the format. A dataclass is a JSON object with its fields by name, so brokers of two
releases understand each other: a field that the other side does not know is left out of account, one that it did not
send has its default. Where a value may be one of several types, its type's name goes along. A new command needs nothing
here unless it brings a type that no other has; then the test over all commands says so.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from penstock.controller import commands
from penstock.controller.commands import Command
from penstock.core.errors import BrokerError, ErrorCode

Reply = TypeVar("Reply")

COMMANDS: dict[str, type[Command[Any]]] = {
    name: value
    for name, value in vars(commands).items()
    if isinstance(value, type) and issubclass(value, Command) and value is not Command
}


class Undecodable(Exception):
    """Bytes that are not what they should be: of a release that is too new, or of nobody."""


def encode_command(command: Command[Any]) -> bytes:
    return _encode(type(command), command)


def decode_command(name: str, content: bytes) -> Command[Any]:
    kind = COMMANDS.get(name)
    if kind is None:
        raise Undecodable(f"there is no command {name!r} in this release")
    return cast(Command[Any], _decode(kind, content, name))


def encode_reply(command: Command[Reply], reply: Reply) -> bytes:
    return _encode(reply_type(type(command)), reply)


def decode_reply(command: Command[Reply], content: bytes) -> Reply:
    name = type(command).__name__
    return cast(Reply, _decode(reply_type(type(command)), content, f"the reply to {name}"))


def reply_type(kind: type[Command[Any]]) -> Any:
    """What `class CreateTopics(Command[...])` says."""
    for base in getattr(kind, "__orig_bases__", ()):
        if get_origin(base) is Command:
            (reply,) = get_args(base)
            return reply
    raise TypeError(f"{kind.__name__} does not say what its reply is")


def _encode(kind: Any, value: Any) -> bytes:
    return msgspec.json.encode(_codec(kind).pack(value))


def _decode(kind: Any, content: bytes, what: str) -> Any:
    try:
        return _codec(kind).unpack(msgspec.json.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise Undecodable(f"{what} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Codec:
    """Between a value and what JSON knows. `pack` trusts its value, `unpack` raises one of Python's own errors."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


@cache
def _codec(kind: Any) -> _Codec:
    kind = getattr(kind, "__supertype__", kind)  # BrokerId is an int
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (int, str, bool):
        return _Codec(_as_it_is, lambda plain: _checked(kind, plain))
    if kind is bytes:
        return _Codec(lambda value: b64encode(value).decode(), lambda plain: b64decode(plain, validate=True))
    if kind is BrokerError:
        return _Codec(lambda error: [error.code, error.message], _broker_error)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(arguments[0])
    if origin is tuple:
        return _row(arguments)
    if origin is dict and arguments[0] is str:
        return _mapping(arguments[1])
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_row(kind)
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        return _Codec(int, kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _Codec(msgspec.to_builtins, lambda plain: msgspec.convert(plain, kind))
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} cannot be sent to another broker")


def _as_it_is(value: Any) -> Any:
    return value


def _checked(kind: type, plain: Any) -> Any:
    if type(plain) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(plain).__name__}")
    return plain


def _broker_error(plain: Any) -> BrokerError:
    number, message = plain
    try:
        return BrokerError(ErrorCode(number), message)
    except ValueError:
        return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error {number}: {message}")


def _union(kinds: tuple[Any, ...]) -> _Codec:
    """`X | None` is X or null. Of several types each value says which it is of."""
    codecs = {_name(kind): _codec(kind) for kind in kinds if kind is not NoneType}
    may_be_none = NoneType in kinds
    only = next(iter(codecs.values())) if len(codecs) == 1 else None

    def pack(value: Any) -> Any:
        if value is None:
            return None
        if only is not None:
            return only.pack(value)
        name = type(value).__name__
        return [name, codecs[name].pack(value)]

    def unpack(plain: Any) -> Any:
        if plain is None and may_be_none:
            return None
        if only is not None:
            return only.unpack(plain)
        name, content = plain
        return codecs[name].unpack(content)

    return _Codec(pack, unpack)


def _name(kind: Any) -> str:
    return cast(str, getattr(kind, "__supertype__", kind).__name__)


def _sequence(kind: Any) -> _Codec:
    element = _codec(kind)
    pack, unpack = element.pack, element.unpack
    return _Codec(
        lambda value: [pack(each) for each in value],
        lambda plain: tuple([unpack(each) for each in _checked(list, plain)]),
    )


def _row(kinds: tuple[Any, ...]) -> _Codec:
    codecs = [_codec(kind) for kind in kinds]
    return _Codec(
        lambda value: [codec.pack(each) for codec, each in zip(codecs, value, strict=True)],
        lambda plain: tuple([codec.unpack(each) for codec, each in zip(codecs, _checked(list, plain), strict=True)]),
    )


def _named_row(kind: type[Any]) -> _Codec:
    """A NamedTuple, such as a TopicPartition."""
    hints = get_type_hints(kind)
    row = _row(tuple(hints[name] for name in kind._fields))
    return _Codec(row.pack, lambda plain: kind(*row.unpack(plain)))


def _mapping(kind: Any) -> _Codec:
    values = _codec(kind)
    return _Codec(
        lambda value: {key: values.pack(each) for key, each in value.items()},
        lambda plain: {key: values.unpack(each) for key, each in _checked(dict, plain).items()},
    )


def _dataclass(kind: type[Any]) -> _Codec:
    hints = get_type_hints(kind)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}

    def pack(value: Any) -> dict[str, Any]:
        return {name: codec.pack(getattr(value, name)) for name, codec in codecs.items()}

    def unpack(plain: Any) -> Any:
        if missing := needed - _checked(dict, plain).keys():
            raise KeyError(f"{kind.__name__} lacks {sorted(missing)}")
        return kind(**{name: codec.unpack(plain[name]) for name, codec in codecs.items() if name in plain})

    return _Codec(pack, unpack)
