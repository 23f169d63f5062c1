"""Records of __transaction_state against bytes made by hand after Kafka's layout; tests/compat asks Kafka itself."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.transaction.any_records import any_record, any_tombstone
from tests.protocol.every_version import examples

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.record_bytes import BadRecord
from penstock.coordinators.transaction.records import (
    Record,
    TransactionRecord,
    TransactionStatus,
    TransactionTombstone,
    decode,
    encode,
)
from penstock.core.ids import TopicPartition

KEY = b"\0\0" + b"\0\2tx"
EMPTY = TransactionRecord("tx", 9, 2, 60_000, TransactionStatus.EMPTY, frozenset(), 99)
ONGOING = EMPTY._replace(
    status=TransactionStatus.ONGOING,
    partitions=frozenset({TopicPartition("b", 0), TopicPartition("a", 7), TopicPartition("a", 1)}),
    start_ms=88,
    client_transaction_version=2,
)
ENDING = EMPTY._replace(
    status=TransactionStatus.COMPLETE_COMMIT,
    previous_producer_id=7,
    next_producer_id=8,
    next_producer_epoch=3,
)


def int64(value: int) -> bytes:
    return pack(">q", value)


START = int64(9) + b"\0\2" + pack(">i", 60_000)

WRITTEN: list[tuple[Record, bytes | None]] = [
    (EMPTY, b"\0\1" + START + b"\0" + b"\0" + int64(99) + int64(-1) + b"\0"),
    (
        ONGOING,
        b"\0\1" + START + b"\1"
        + b"\3" + b"\2a\3\0\0\0\1\0\0\0\7\0" + b"\2b\2\0\0\0\0\0"
        + int64(99) + int64(88) + b"\1\2\2\0\2",
    ),
    (
        ENDING,
        b"\0\1" + START + b"\4" + b"\1" + int64(99) + int64(-1)
        + b"\3" + b"\0\x08" + int64(7) + b"\1\x08" + int64(8) + b"\3\2\0\3",
    ),
    (TransactionTombstone("tx"), None),
]  # fmt: skip


# What is written


@pytest.mark.parametrize(("record", "value"), WRITTEN, ids=["empty", "ongoing", "ending", "tombstone"])
def test_given_a_record_then_it_is_written_as_kafka_4_2_lays_it_out_and_read_again(
    record: Record, value: bytes | None
) -> None:
    assert encode(record) == LogRecord(KEY, value, record)
    assert decode(LogRecord(KEY, value)) == record


@examples(200)
@given(record=any_record(), tombstone=any_tombstone)
def test_given_any_record_when_written_and_read_then_it_is_the_same(
    record: TransactionRecord, tombstone: TransactionTombstone
) -> None:
    assert decode(encode(record)) == record
    assert decode(encode(tombstone)) == tombstone
    assert hash(decode(encode(record))) == hash(record)


def test_given_an_empty_transaction_with_partitions_then_it_is_not_written() -> None:
    with pytest.raises(AssertionError, match="has partitions"):
        encode(ONGOING._replace(status=TransactionStatus.EMPTY))


def test_given_a_status_then_its_name_is_the_one_that_kafkas_tools_show() -> None:
    assert [status.kafka_name for status in TransactionStatus] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip


# What is read


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\0\0" + START + b"\0" + b"\xff\xff\xff\xff" + int64(99) + int64(-1), EMPTY),
        (
            b"\0\0" + START + b"\1" + b"\0\0\0\2" + b"\0\1a\0\0\0\2\0\0\0\1\0\0\0\7" + b"\0\1b\0\0\0\1\0\0\0\0"
            + int64(99) + int64(88),
            ONGOING._replace(client_transaction_version=0),
        ),
    ],
)  # fmt: skip
def test_given_a_value_of_version_0_then_what_it_lacks_has_its_default(
    value: bytes, expected: TransactionRecord
) -> None:
    assert decode(LogRecord(KEY, value)) == expected


def test_given_an_empty_transaction_with_partitions_in_the_log_then_they_are_ignored_as_in_kafka() -> None:
    value = b"\0\1" + START + b"\0" + b"\2\2a\2\0\0\0\1\0" + int64(99) + int64(-1) + b"\0"

    assert decode(LogRecord(KEY, value)) == EMPTY


def test_given_the_same_topic_twice_then_its_partitions_are_taken_together() -> None:
    topics = b"\4" + b"\2a\2\0\0\0\1\0" + b"\2b\2\0\0\0\0\0" + b"\2a\3\0\0\0\7\0\0\0\1\0"
    value = b"\0\1" + START + b"\1" + topics + int64(99) + int64(88) + b"\1\2\2\0\2"

    assert decode(LogRecord(KEY, value)) == ONGOING


def test_given_tags_of_a_later_version_then_they_are_skipped() -> None:
    value = b"\0\1" + START + b"\0" + b"\0" + int64(99) + int64(-1) + b"\2\2\2\0\2" + b"\x09\4" + b"what"

    assert decode(LogRecord(KEY, value)) == EMPTY._replace(client_transaction_version=2)


@pytest.mark.parametrize("number", [-1, 1, 2, 32767])
def test_given_a_kind_of_record_we_do_not_know_then_it_is_skipped(number: int) -> None:
    key = number.to_bytes(2, "big", signed=True) + b"whatever"

    assert decode(LogRecord(key, b"whatever")) is None
    assert decode(LogRecord(key, None)) is None


# What is refused


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (b"", None, "the key of a record has 0 bytes, not even its version"),
        (b"\0\0\0\5tx", None, "TransactionLogKey v0: transactional_id: 5 bytes, but only 2 are left"),
        (b"\0\0\xff\xff", None, "TransactionLogKey v0: transactional_id: must not be null"),
        (KEY, b"\0", "the value of a record has 1 bytes"),
        (KEY, b"\0\2" + bytes(60), "TransactionLogValue v2 is not supported"),
        (KEY, b"\xff\xff" + bytes(60), "TransactionLogValue v-1 is not supported"),
        (KEY, b"\0\1" + START + b"\x08" + b"\1" + bytes(17), "no status has the number 8"),
        (KEY, b"\0\1" + START + b"\xff" + b"\1" + bytes(17), "no status has the number -1"),
        (KEY, b"\0\1" + START + b"\1" + b"\0" + bytes(17), "status 1 with partitions that are null"),
    ],
)
def test_given_a_broken_record_then_the_complaint_says_what_is_wrong(
    key: bytes, value: bytes | None, complaint: str
) -> None:
    with pytest.raises(BadRecord, match=complaint):
        decode(LogRecord(key, value))


@examples(30)
@given(record=any_record())
def test_given_a_record_cut_at_any_byte_then_it_is_bad_and_with_more_bytes_it_is_not(
    record: TransactionRecord,
) -> None:
    key, value, *_ = encode(record)
    assert value is not None

    for cut in range(2, len(key)):
        with pytest.raises(BadRecord):
            decode(LogRecord(key[:cut], value))
    for cut in range(len(value)):
        with pytest.raises(BadRecord):
            decode(LogRecord(key, value[:cut]))
    assert decode(LogRecord(key + b"more", value + b"more")) == record


@examples(300)
@given(record=any_record(), garbage=st.binary(min_size=1, max_size=12), data=st.data())
def test_given_garbage_then_nothing_but_a_bad_record_is_raised(
    record: TransactionRecord, garbage: bytes, data: st.DataObject
) -> None:
    key, value, *_ = encode(record)
    assert value is not None
    start = data.draw(st.integers(2, len(value)))

    for version in (b"\0\0", b"\0\1"):
        spoilt = version + value[2:start] + garbage + value[start + len(garbage) :]
        try:
            decode(LogRecord(key, spoilt))
        except BadRecord as error:
            assert str(error)
