"""Records of __consumer_offsets against bytes made by hand from Kafka's definitions; tests/compat asks Kafka itself."""

from __future__ import annotations

from dataclasses import fields, replace
from struct import pack
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.group.any_records import KINDS, any_record, any_tombstone, as_written
from tests.protocol.every_version import examples

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.group.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignment,
    ConsumerGroupMemberMetadata,
    ConsumerGroupMemberMetadataTombstone,
    ConsumerGroupMetadata,
    ConsumerGroupMetadataTombstone,
    ConsumerGroupPartitionMetadata,
    ConsumerGroupRegularExpression,
    ConsumerGroupRegularExpressionTombstone,
    ConsumerGroupTargetAssignmentMember,
    ConsumerGroupTargetAssignmentMetadata,
    GroupMetadataMember,
    GroupMetadataRecord,
    GroupTombstone,
    OffsetCommitRecord,
    OffsetTombstone,
    PartitionRacks,
    Record,
    TopicMetadata,
    TopicPartitions,
    decode,
    encode,
)
from penstock.coordinators.record_bytes import BadRecord
from penstock.core.ids import TopicId

TOPIC_ID = TopicId(b"0123456789abcdef")
OFFSET_KEY = b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\7"

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.record.__name__)


def int64(value: int) -> bytes:
    return pack(">q", value)


def a_member(**changes: Any) -> GroupMetadataMember:
    return replace(GroupMetadataMember("m", "i", "c", "/h", 300, 10, b"sub", b"as"), **changes)


def a_consumer_member(classic: ClassicMemberMetadata | None = None) -> ConsumerGroupMemberMetadata:
    return ConsumerGroupMemberMetadata("g", "m", "i", None, "c", "/h", ("a", "bc"), "x.*", 300, "range", classic)


CONSUMER_MEMBER_KEY = b"\0\5" + b"\0\1g" + b"\0\1m"
CONSUMER_MEMBER = b"\0\0" + b"\2i" + b"\0" + b"\2c" + b"\3/h" + b"\3\2a\3bc" + b"\4x.*" + b"\0\0\1\x2c" + b"\6range"
ASSIGNMENT = b"\2" + TOPIC_ID + b"\3\0\0\0\1\0\0\0\2" + b"\0"

WRITTEN: list[tuple[Record, bytes, bytes | None]] = [
    (
        OffsetCommitRecord("g", "t", 7, 42, 3, "meta", 99, topic_id=TOPIC_ID),
        OFFSET_KEY,
        b"\0\4" + int64(42) + b"\0\0\0\3" + b"\5meta" + int64(99) + b"\1\0\x10" + TOPIC_ID,
    ),
    (
        OffsetCommitRecord("g", "t", 7, 42, -1, "", 99),
        OFFSET_KEY,
        b"\0\4" + int64(42) + b"\xff\xff\xff\xff" + b"\1" + int64(99) + b"\0",
    ),
    (OffsetTombstone("g", "t", 7), OFFSET_KEY, None),
    (
        GroupMetadataRecord("g", "consumer", 5, "range", "m", 99, (a_member(), a_member(group_instance_id=None))),
        b"\0\2\0\1g",
        b"\0\3\0\x08consumer\0\0\0\5\0\5range\0\1m"
        + int64(99)
        + b"\0\0\0\2"
        + b"\0\1m\0\1i\0\1c\0\2/h\0\0\1\x2c\0\0\0\x0a\0\0\0\3sub\0\0\0\2as"
        + b"\0\1m\xff\xff\0\1c\0\2/h\0\0\1\x2c\0\0\0\x0a\0\0\0\3sub\0\0\0\2as",
    ),
    (
        GroupMetadataRecord("g", "", 0, None, None, -1),
        b"\0\2\0\1g",
        b"\0\3\0\0\0\0\0\0\xff\xff\xff\xff" + int64(-1) + b"\0\0\0\0",
    ),
    (GroupTombstone("g"), b"\0\2\0\1g", None),
    (ConsumerGroupMetadata("g", 5, -6), b"\0\3\0\1g", b"\0\0\0\0\0\5\1\0\x08" + int64(-6)),
    (ConsumerGroupMetadata("g", 5), b"\0\3\0\1g", b"\0\0\0\0\0\5\0"),
    (ConsumerGroupMetadataTombstone("g"), b"\0\3\0\1g", None),
    (
        ConsumerGroupPartitionMetadata("g", (TopicMetadata(TOPIC_ID, "t", 2, (PartitionRacks(1, ("r",)),)),)),
        b"\0\4\0\1g",
        b"\0\0\2" + TOPIC_ID + b"\2t\0\0\0\2" + b"\2\0\0\0\1\2\2r\0" + b"\0" + b"\0",
    ),
    (a_consumer_member(), CONSUMER_MEMBER_KEY, CONSUMER_MEMBER + b"\1\0\1\0"),
    (
        a_consumer_member(ClassicMemberMetadata(45, (ClassicProtocol("range", b"sub"),))),
        CONSUMER_MEMBER_KEY,
        CONSUMER_MEMBER + b"\1\0\x12\1" + b"\0\0\0\x2d\2\6range\4sub\0" + b"\0",
    ),
    (ConsumerGroupMemberMetadataTombstone("g", "m"), CONSUMER_MEMBER_KEY, None),
    (ConsumerGroupTargetAssignmentMetadata("g", 5), b"\0\6\0\1g", b"\0\0\0\0\0\5\0"),
    (
        ConsumerGroupTargetAssignmentMember("g", "m", (TopicPartitions(TOPIC_ID, (1, 2)),)),
        b"\0\7\0\1g\0\1m",
        b"\0\0" + ASSIGNMENT + b"\0",
    ),
    (
        ConsumerGroupCurrentMemberAssignment("g", "m", 5, 4, 1, (TopicPartitions(TOPIC_ID, (1, 2)),)),
        b"\0\x08\0\1g\0\1m",
        b"\0\0\0\0\0\5\0\0\0\4\1" + ASSIGNMENT + b"\1" + b"\0",
    ),
    (
        ConsumerGroupRegularExpression("g", "a.*", ("ab", "ac"), 8, 99),
        b"\0\x10\0\1g\0\3a.*",
        b"\0\0\3\3ab\3ac" + int64(8) + int64(99) + b"\0",
    ),
    (ConsumerGroupRegularExpressionTombstone("g", "a.*"), b"\0\x10\0\1g\0\3a.*", None),
]


# What is written


@every_kind
@examples(30)
@given(data=st.data())
def test_given_any_record_then_it_means_what_its_bytes_say(kind: Any, data: st.DataObject) -> None:
    """A machine applies the former, a replay the latter."""
    written = encode(data.draw(any_record(kind)))

    assert written.meaning == decode(written)


@pytest.mark.parametrize(("record", "key", "value"), WRITTEN, ids=lambda part: type(part).__name__)
def test_given_a_record_then_it_is_written_as_kafka_4_2_writes_it_and_read_again(
    record: Record, key: bytes, value: bytes | None
) -> None:
    assert encode(record) == LogRecord(key, value, record)
    assert decode(LogRecord(key, value)) == record


def test_given_every_kind_of_record_then_its_fields_are_those_of_the_layouts_in_order() -> None:
    kinds = {kind.record for kind in KINDS} | {kind.tombstone for kind in KINDS}

    assert kinds == set(get_args(Record))
    for kind in KINDS:
        key, value = ([field.name for field in layout.FIELDS] for layout in (kind.key, kind.value))
        assert [field.name for field in fields(kind.record)] == key + value
        assert [field.name for field in fields(kind.tombstone)] == key


@every_kind
@examples(30)
@given(data=st.data())
def test_given_any_record_when_written_and_read_then_it_is_the_same(kind: Any, data: st.DataObject) -> None:
    record, tombstone = data.draw(any_record(kind)), data.draw(any_tombstone(kind))
    if isinstance(record, OffsetCommitRecord) and record.expire_timestamp != -1:
        record = as_written(kind, record, version=1)

    assert decode(encode(record)) == record
    assert decode(encode(tombstone)) == tombstone
    assert hash(decode(encode(record))) == hash(record)


def test_given_an_expiry_then_the_commit_is_written_in_the_last_version_that_has_one() -> None:
    record = OffsetCommitRecord("g", "t", 7, 42, 3, "meta", 99, 111, TOPIC_ID)

    encoded = encode(record)

    assert encoded.value == b"\0\1" + int64(42) + b"\0\4meta" + int64(99) + int64(111)
    assert decode(encoded) == OffsetCommitRecord("g", "t", 7, 42, -1, "meta", 99, 111)


# What is read


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0" + int64(42) + b"\0\4meta" + int64(99), OffsetCommitRecord("g", "t", 7, 42, -1, "meta", 99)),
        (b"\0\2" + int64(42) + b"\0\4meta" + int64(99), OffsetCommitRecord("g", "t", 7, 42, -1, "meta", 99)),
        (b"\0\3" + int64(42) + b"\0\0\0\3\0\0" + int64(99), OffsetCommitRecord("g", "t", 7, 42, 3, "", 99)),
    ],
)
def test_given_a_commit_of_an_older_version_then_what_it_lacks_has_its_default(
    value: bytes, expected: OffsetCommitRecord
) -> None:
    assert decode(LogRecord(OFFSET_KEY, value)) == expected
    assert decode(LogRecord(b"\0\0" + OFFSET_KEY[2:], value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            b"\0\0\0\1c\0\0\0\5\0\1r\0\1m\0\0\0\1" + b"\0\1m\0\1c\0\2/h\0\0\0\x0a\0\0\0\0\0\0\0\0",
            (-1, a_member(group_instance_id=None, rebalance_timeout=-1, subscription=b"", assignment=b"")),
        ),
        (
            b"\0\1\0\1c\0\0\0\5\0\1r\0\1m\0\0\0\1" + b"\0\1m\0\1c\0\2/h\0\0\1\x2c\0\0\0\x0a\0\0\0\0\0\0\0\0",
            (-1, a_member(group_instance_id=None, subscription=b"", assignment=b"")),
        ),
        (
            b"\0\2\0\1c\0\0\0\5\0\1r\0\1m"
            + int64(9)
            + b"\0\0\0\1"
            + b"\0\1m\0\1c\0\2/h\0\0\1\x2c\0\0\0\x0a\0\0\0\0\0\0\0\0",
            (9, a_member(group_instance_id=None, subscription=b"", assignment=b"")),
        ),
        (
            b"\0\4\2c\0\0\0\5\2r\2m" + int64(9) + b"\2" + b"\2m\2i\2c\3/h\0\0\1\x2c\0\0\0\x0a\4sub\3as\0" + b"\0",
            (9, a_member()),
        ),
    ],
)
def test_given_a_group_of_another_version_then_what_it_lacks_has_its_default(
    value: bytes, expected: tuple[int, GroupMetadataMember]
) -> None:
    timestamp, member = expected

    assert decode(LogRecord(b"\0\2\0\1g", value)) == GroupMetadataRecord("g", "c", 5, "r", "m", timestamp, (member,))


@every_kind
@examples(20)
@given(data=st.data())
def test_given_a_value_in_any_version_then_it_is_read(kind: Any, data: st.DataObject) -> None:
    record = data.draw(any_record(kind))
    key = encode(record).key

    for version in range(kind.value.MIN_VERSION, kind.value.MAX_VERSION + 1):
        value = kind.value.encode_fields_of(record, version)
        assert decode(LogRecord(key, value)) == as_written(kind, record, version)


def test_given_a_member_written_without_classic_metadata_then_they_are_empty_as_kafka_reads_it() -> None:
    assert decode(LogRecord(CONSUMER_MEMBER_KEY, CONSUMER_MEMBER + b"\0")) == a_consumer_member(
        ClassicMemberMetadata(0, ())
    )


def test_given_tags_of_a_later_version_then_they_are_skipped() -> None:
    later = b"\0\0\0\0\0\5" + b"\2\0\x08" + int64(6) + b"\1\x08" + int64(77)

    assert decode(LogRecord(b"\0\3\0\1g", later)) == ConsumerGroupMetadata("g", 5, 6)


@pytest.mark.parametrize("number", [-1, 9, 10, 15, 17, 22, 32767])
def test_given_a_kind_of_record_we_do_not_know_then_it_is_skipped(number: int) -> None:
    key = number.to_bytes(2, "big", signed=True) + b"whatever"

    assert decode(LogRecord(key, b"whatever")) is None
    assert decode(LogRecord(key, None)) is None


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (b"", None, "the key of a record has 0 bytes, not even its version"),
        (b"\0", b"", "the key of a record has 1 bytes"),
        (OFFSET_KEY, b"\0", "the value of a record has 1 bytes"),
        (OFFSET_KEY[:-1], None, "OffsetCommitKey v0: 9 bytes, but it goes on"),
        (b"\0\1\xff\xff\0\1t\0\0\0\7", None, "OffsetCommitKey v0: group_id: must not be null"),
        (b"\0\2\xff\xfe", None, "GroupKey v0: group_id: invalid length -2"),
        (b"\0\2\0\5g", None, "GroupKey v0: group_id: 5 bytes, but only 1 are left"),
        (OFFSET_KEY, b"\0\5" + bytes(40), "OffsetCommitValue v5 is not supported"),
        (OFFSET_KEY, b"\xff\xff" + bytes(40), "OffsetCommitValue v-1 is not supported"),
        (b"\0\3\0\1g", b"\0\1\0\0\0\5\0", "ConsumerGroupMetadataValue v1 is not supported"),
        (b"\0\2\0\1g", b"\0\0\0\0\0\0\0\5\xff\xff\xff\xff\xff\xff\xff\xfe", "members: negative count -2"),
    ],
)
def test_given_a_broken_record_then_the_complaint_says_what_is_wrong(
    key: bytes, value: bytes | None, complaint: str
) -> None:
    with pytest.raises(BadRecord, match=complaint):
        decode(LogRecord(key, value))


@every_kind
@examples(10)
@given(data=st.data())
def test_given_a_record_cut_at_any_byte_then_it_is_bad_and_with_more_bytes_it_is_not(
    kind: Any, data: st.DataObject
) -> None:
    key, value, *_ = encode(data.draw(any_record(kind)))
    assert value is not None

    for cut in range(2, len(key)):
        with pytest.raises(BadRecord):
            decode(LogRecord(key[:cut], value))
    for cut in range(len(value)):
        with pytest.raises(BadRecord):
            decode(LogRecord(key, value[:cut]))
    assert decode(LogRecord(key + b"more", value + b"more")) == decode(LogRecord(key, value))


GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]), min_size=1, max_size=12).map(bytes),
)


def is_read_or_bad(record: LogRecord) -> None:
    """Any other exception fails the test."""
    try:
        decode(record)
    except BadRecord as error:
        assert str(error)


@every_kind
@examples(60)
@given(data=st.data(), garbage=GARBAGE)
def test_given_garbage_then_nothing_but_a_bad_record_is_raised(kind: Any, data: st.DataObject, garbage: bytes) -> None:
    key, value, *_ = encode(data.draw(any_record(kind)))
    assert value is not None
    start = data.draw(st.integers(0, len(value)))
    versions = [version.to_bytes(2, "big") for version in range(6)]

    is_read_or_bad(LogRecord(garbage, value))
    is_read_or_bad(LogRecord(key[:2] + garbage, None))
    for version in versions:
        is_read_or_bad(LogRecord(key, version + garbage))
        is_read_or_bad(LogRecord(key, version + value[2:start] + garbage + value[start + len(garbage) :]))
        is_read_or_bad(LogRecord(key, version + value[2:start] + garbage + value[start:]))
