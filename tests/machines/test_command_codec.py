"""Every command and every reply, as bytes and back."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.controller
from penstock.controller.command_codec import (
    COMMANDS,
    Undecodable,
    _codec,
    decode_command,
    decode_reply,
    encode_command,
    encode_reply,
    reply_type,
)
from penstock.controller.commands import (
    AlterPartition,
    Command,
    CreatedTopic,
    CreateTopicResult,
    CreateTopics,
    NewTopic,
    ProposedIsr,
    RemoveUnclaimedPartitions,
)
from penstock.controller.forwarding import FORWARDED, KEPT_HERE
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition


def every_command() -> dict[str, type[Command[Any]]]:
    """All subclasses, wherever in the package they are declared."""
    for module in pkgutil.iter_modules(penstock.controller.__path__):
        importlib.import_module(f"penstock.controller.{module.name}")
    # A dataclass with slots is made a second time; the first one may still be there.
    return {kind.__name__: kind for kind in _subclasses(Command)}


def _subclasses(kind: type[Any]) -> Iterator[type[Command[Any]]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, found by looking at the type and not at the codec."""
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if kind is BrokerError:
        return st.builds(BrokerError, st.sampled_from(list(ErrorCode)), st.text(max_size=20))
    if kind is NoneType:
        return st.none()
    if kind is int:
        return st.integers(-(2**63), 2**63 - 1)
    if kind is str:
        return st.text(max_size=20)
    if kind is bytes:
        return st.binary(max_size=16)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind.__struct_fields__
        hints = get_type_hints(kind)
        return st.builds(kind, **{name: values_of(hints[name]) for name in names})
    return st.from_type(kind)


def shape(value: Any) -> Any:
    """The same for equal values, also where they contain errors, which Python compares by identity."""
    if isinstance(value, BrokerError):
        return ("BrokerError", value.code, value.message)
    if isinstance(value, tuple):
        return tuple(map(shape, value))
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if is_dataclass(value):
        return (type(value), *(shape(getattr(value, field.name)) for field in fields(value)))
    return (type(value), value)


each_command = pytest.mark.parametrize("name", sorted(every_command()))


@each_command
@settings(max_examples=25)
@given(data=st.data())
def test_given_any_command_when_sent_then_it_arrives_as_it_was(name: str, data: st.DataObject) -> None:
    command = data.draw(values_of(COMMANDS[name]))

    assert shape(decode_command(name, encode_command(command))) == shape(command)


@each_command
@settings(max_examples=25)
@given(data=st.data())
def test_given_any_reply_when_sent_then_it_arrives_as_it_was(name: str, data: st.DataObject) -> None:
    command = data.draw(values_of(COMMANDS[name]))
    reply = data.draw(values_of(reply_type(COMMANDS[name])))

    assert shape(decode_reply(command, encode_reply(command, reply))) == shape(reply)


def test_given_all_commands_then_the_codec_knows_them_and_somebody_decided_where_they_go() -> None:
    """A new command belongs into one of the two tables of controller/forwarding.py; think of a lost answer."""
    assert COMMANDS.keys() == every_command().keys()
    assert FORWARDED.keys() | KEPT_HERE == set(COMMANDS.values())
    assert not FORWARDED.keys() & KEPT_HERE


@each_command
@settings(max_examples=30)
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["topics", "name", "partitions", "broker_id", "resources"]), inner, max_size=4
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_given_any_bytes_when_read_then_they_are_a_command_or_undecodable(name: str, content: bytes) -> None:
    try:
        command = decode_command(name, content)
    except Undecodable:
        return
    assert isinstance(command, COMMANDS[name])


def test_given_a_command_of_a_newer_release_when_read_then_fields_that_are_not_known_are_left_out() -> None:
    newer = b'{"topics": [{"name": "orders", "colour": "blue"}], "validate_only": true, "wish": [1]}'
    older = b'{"topics": []}'

    assert decode_command("CreateTopics", newer) == CreateTopics((NewTopic("orders"),), validate_only=True)
    assert decode_command("CreateTopics", older) == CreateTopics(())
    with pytest.raises(Undecodable, match="there is no command 'SingSong'"):
        decode_command("SingSong", b"{}")
    with pytest.raises(Undecodable, match="lacks"):
        decode_command("AlterPartition", b'{"broker_id": 1}')


def test_given_an_error_code_of_a_newer_release_when_read_then_its_message_still_arrives() -> None:
    command = CreateTopics(())
    content = b'[{"name": "orders", "outcome": ["BrokerError", [30000, "what is this"]]}]'

    (result,) = decode_reply(command, content)

    assert isinstance(result.outcome, BrokerError)
    assert result.outcome.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "what is this" in result.outcome.message


def test_given_either_of_two_types_when_sent_then_it_is_told_which() -> None:
    command = CreateTopics(())
    made = CreateTopicResult("a", CreatedTopic(b"i" * 16, 1, 1, {"k": "v"}))  # type: ignore[arg-type]
    failed = CreateTopicResult("b", BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, "there is one"))

    first, second = decode_reply(command, encode_reply(command, (made, failed)))

    assert first == made
    assert shape(second) == shape(failed)


def test_given_types_that_no_command_has_yet_then_a_partitions_name_is_known_and_others_are_refused() -> None:
    codec = _codec(tuple[TopicPartition, ...])
    partitions = (TopicPartition("orders", 0), TopicPartition("orders", 1))

    assert codec.pack(partitions) == [["orders", 0], ["orders", 1]]
    assert shape(codec.unpack(codec.pack(partitions))) == shape(partitions)
    assert type(codec.unpack(codec.pack(partitions))[0]) is TopicPartition
    with pytest.raises(TypeError, match="cannot be sent to another broker"):
        _codec(set[int])


def test_given_a_thousand_partitions_when_sent_then_the_bytes_are_few_enough() -> None:
    rows = tuple(ProposedIsr(TopicId(bytes(16)), n, LeaderEpoch(7), n, (BrokerId(1), BrokerId(2))) for n in range(1000))

    assert len(encode_command(AlterPartition(BrokerId(1), 5, rows))) < 150_000
    assert encode_command(RemoveUnclaimedPartitions()) == b"{}"
