"""Records of __consumer_offsets against the classes in which Kafka's own coordinator reads and writes them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.group.records import (
    ClassicMemberMetadata,
    OffsetCommitRecord,
    OffsetTombstone,
    decode,
    encode,
)
from penstock.coordinators.record_bytes import BadRecord
from penstock.core.ids import TopicId, topic_id_to_text
from penstock.protocol.codec import Data
from penstock.protocol.schema import Array, Blob, Fixed, Nested, Struct, WireType
from tests.machines.group.any_records import KINDS, any_record, any_tombstone
from tests.protocol.every_version import examples
from tests.testkit.java import JavaDriver, JavaError, from_java, to_java

LAST_KIND_WITH_LOWER_CASE_NAMES = 2

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.record.__name__)


def as_json(layout: type[Struct], record: Any, number: int) -> dict[str, Any]:
    """In Kafka's names, all fields of whatever version."""
    named = {field.name: json_value(field.wire, getattr(record, field.name), number) for field in layout.FIELDS}
    return {camel_case(name, number): value for name, value in named.items()}


def camel_case(name: str, number: int) -> str:
    if name == "group_id" and number <= LAST_KIND_WITH_LOWER_CASE_NAMES:
        return "group"
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def json_value(wire: WireType, value: Any, number: int) -> Any:
    match wire:
        case Nested() if value is not None:
            return as_json(wire.struct, value, number)
        case Array():
            return [json_value(wire.element, one, number) for one in value]
        case Blob():
            return base64.b64encode(value).decode()
        case Fixed(format="16s"):
            return topic_id_to_text(TopicId(value))
    return value


def written_by_kafka(java: JavaDriver, kind: Any, record: Any, version: int, number: int) -> LogRecord:
    is_tombstone = isinstance(record, kind.tombstone)
    answer = java.call(
        "write_group_record",
        type=number,
        key=as_json(kind.key, record, number),
        value=None if is_tombstone else as_json(kind.value, record, number),
        version=version,
    )
    key = from_java(answer["key"])
    assert key is not None
    return LogRecord(key, from_java(answer["value"]))


def written_by_us(kind: Any, record: Any, version: int) -> LogRecord:
    layout: type[Data] = kind.value
    return LogRecord(encode(record).key, layout.encode_fields_of(record, version))


@every_kind
@examples(40)
@given(data=st.data())
def test_given_any_record_in_any_version_then_kafka_writes_the_same_bytes(
    kind: Any, java_driver: JavaDriver, data: st.DataObject
) -> None:
    record, tombstone = data.draw(any_record(kind)), data.draw(any_tombstone(kind))
    if getattr(record, "classic_member_metadata", None) == ClassicMemberMetadata(0, ()):
        return  # Kafka leaves this one away, which nobody writes: a classic member has a session timeout

    for version in range(kind.value.MIN_VERSION, kind.value.MAX_VERSION + 1):
        by_kafka = written_by_kafka(java_driver, kind, record, version, kind.number)

        assert written_by_us(kind, record, version) == by_kafka
        assert decode(by_kafka) is not None
    assert encode(tombstone)[:2] == written_by_kafka(java_driver, kind, tombstone, 0, kind.number)[:2]


@every_kind
@examples(10)
@given(data=st.data())
def test_given_any_record_when_we_write_it_then_kafka_reads_what_it_would_have_written(
    kind: Any, java_driver: JavaDriver, data: st.DataObject
) -> None:
    ours = encode(data.draw(any_record(kind)))

    read = java_driver.call("read_group_record", key=to_java(ours.key), value=to_java(ours.value))
    again = java_driver.call("write_group_record", **read)

    assert decode(LogRecord(from_java(again["key"]) or b"", from_java(again["value"]))) == decode(ours)


def test_given_the_oldest_kind_of_commit_then_we_read_what_kafka_writes(java_driver: JavaDriver) -> None:
    record = OffsetCommitRecord("g", "t", 7, 42, -1, "meta", 99)
    tombstone = OffsetTombstone("g", "t", 7)
    kind = KINDS[0]

    assert decode(written_by_kafka(java_driver, kind, record, 0, number=0)) == record
    assert decode(written_by_kafka(java_driver, kind, tombstone, 0, number=0)) == tombstone


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0", None),
        (b"\0\1\0\1g\0\1t\0\0\0", None),
        (b"\0\2\xff\xff", None),
        (b"\0\2\0\1g", b"\0"),
        (b"\0\2\0\1g", b"\0\5" + bytes(40)),
        (b"\0\3\0\1g", b"\0\1\0\0\0\5\0"),
        (b"\0\3\0\1g", b"\0\0\0\0\0"),
    ],
)
def test_given_a_broken_record_then_kafka_refuses_it_too(
    java_driver: JavaDriver, key: bytes, value: bytes | None
) -> None:
    with pytest.raises(BadRecord):
        decode(LogRecord(key, value))
    with pytest.raises(JavaError):
        java_driver.call("read_group_record", key=to_java(key), value=to_java(value))


def test_given_bytes_after_a_record_then_kafka_ignores_them_too(java_driver: JavaDriver) -> None:
    key, value = b"\0\3\0\1gmore", b"\0\0\0\0\0\5\0more"

    read = java_driver.call("read_group_record", key=to_java(key), value=to_java(value))

    assert (read["key"], read["value"]) == ({"groupId": "g"}, {"epoch": 5})
    assert decode(LogRecord(key, value)) is not None
