"""Records of __transaction_state and end markers, against the classes in which Kafka's own coordinator has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.record_bytes import BadRecord
from penstock.coordinators.transaction.record_layouts import TransactionLogValue
from penstock.coordinators.transaction.records import (
    Record,
    TransactionRecord,
    TransactionStatus,
    TransactionTombstone,
    decode,
    encode,
)
from penstock.core.ids import TopicPartition
from penstock.protocol.control import EndMarker, build_end_marker, read_end_marker
from tests.machines.transaction.any_records import any_record, any_tombstone
from tests.protocol.any_marker import any_marker
from tests.protocol.every_version import examples
from tests.testkit.java import JavaDriver, JavaError, from_java, to_java

KEY = b"\0\0\0\2tx"
ONE_PARTITION = st.frozensets(st.just(TopicPartition("t", 3)), max_size=1)


def as_json(record: TransactionRecord) -> dict[str, Any]:
    """In Kafka's names, all fields of whatever version."""
    topics = sorted({partition.topic for partition in record.partitions})
    partitions = [
        {"topic": topic, "partitionIds": sorted(number for name, number in record.partitions if name == topic)}
        for topic in topics
    ]
    return {
        "producerId": record.producer_id,
        "previousProducerId": record.previous_producer_id,
        "nextProducerId": record.next_producer_id,
        "producerEpoch": record.producer_epoch,
        "nextProducerEpoch": record.next_producer_epoch,
        "transactionTimeoutMs": record.timeout_ms,
        "transactionStatus": record.status,
        "transactionPartitions": None if record.status is TransactionStatus.EMPTY else partitions,
        "transactionLastUpdateTimestampMs": record.last_update_ms,
        "transactionStartTimestampMs": record.start_ms,
        "clientTransactionVersion": record.client_transaction_version,
    }


def without_tagged_fields(record: TransactionRecord) -> TransactionRecord:
    tagged = {field.name: field.default for field in TransactionLogValue.FIELDS if field.tag is not None}
    return record._replace(**tagged)


def written_by_kafka(java: JavaDriver, record: Record, version: int) -> LogRecord:
    answer = java.call(
        "write_transaction_record",
        key={"transactionalId": record.transactional_id},
        value=as_json(record) if isinstance(record, TransactionRecord) else None,
        version=version,
    )
    key = from_java(answer["key"])
    assert key is not None
    return LogRecord(key, from_java(answer["value"]))


@examples(100)
@given(record=any_record(), tombstone=any_tombstone)
def test_given_any_record_then_kafkas_classes_write_the_same_bytes(
    java_driver: JavaDriver, record: TransactionRecord, tombstone: TransactionTombstone
) -> None:
    assert written_by_kafka(java_driver, record, version=1)[:2] == encode(record)[:2]
    assert written_by_kafka(java_driver, tombstone, version=1)[:2] == encode(tombstone)[:2]


@examples(40)
@given(record=any_record())
def test_given_any_record_of_version_0_by_kafka_then_we_read_it(
    java_driver: JavaDriver, record: TransactionRecord
) -> None:
    plain = without_tagged_fields(record)

    assert decode(written_by_kafka(java_driver, plain, version=0)) == plain


@examples(100)
@given(record=any_record())
def test_given_any_record_when_kafkas_coordinator_loads_it_then_it_has_the_state_that_we_wrote(
    java_driver: JavaDriver, record: TransactionRecord
) -> None:
    ours = encode(record)

    read = java_driver.call("read_transaction_record", key=to_java(ours.key), value=to_java(ours.value))

    expected = record._asdict() | {"status": record.status.kafka_name}
    for not_shown in ("next_producer_id", "next_producer_epoch"):
        del expected[not_shown]
    del read["again"]
    read["partitions"] = frozenset(TopicPartition(*each) for each in read["partitions"])
    assert read == expected


@examples(40)
@given(record=any_record(), partitions=ONE_PARTITION)
def test_given_a_record_as_kafka_writes_it_then_its_coordinator_writes_every_byte_as_we_do(
    java_driver: JavaDriver, record: TransactionRecord, partitions: frozenset[TopicPartition]
) -> None:
    # One partition at most: Kafka writes them in the order of a hash table.
    ours = encode(
        record._replace(
            partitions=frozenset() if record.status is TransactionStatus.EMPTY else partitions,
            previous_producer_id=-1,
            next_producer_id=-1,
            next_producer_epoch=-1,
        )
    )

    read = java_driver.call("read_transaction_record", key=to_java(ours.key), value=to_java(ours.value))

    assert from_java(read["again"]) == ours.value


def test_given_a_tombstone_then_kafka_reads_whose_it_is(java_driver: JavaDriver) -> None:
    ours = encode(TransactionTombstone("tx"))

    assert java_driver.call("read_transaction_record", key=to_java(ours.key), value=None) == {"transactional_id": "tx"}


START = b"\0\0\0\0\0\0\0\x09" + b"\0\2" + b"\0\0\xea\x60"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY[:-1], None),
        (b"\0\0\xff\xff", None),
        (KEY, b"\0"),
        (KEY, b"\0\2" + bytes(60)),
        (KEY, b"\0\1" + START + b"\x08" + b"\1" + bytes(17)),
        (KEY, b"\0\1" + START + b"\1" + b"\0" + bytes(17)),
        (KEY, b"\0\1" + START + b"\1" + b"\1" + bytes(16)),
    ],
    ids=["cut key", "null id", "cut version", "unknown version", "unknown status", "null partitions", "cut value"],
)
def test_given_a_broken_record_then_kafka_refuses_it_too(
    java_driver: JavaDriver, key: bytes, value: bytes | None
) -> None:
    with pytest.raises(BadRecord):
        decode(LogRecord(key, value))
    with pytest.raises(JavaError):
        java_driver.call("read_transaction_record", key=to_java(key), value=to_java(value))


# End markers


@examples(60)
@given(marker=any_marker, timestamp_ms=st.integers(0, 2**60))
def test_given_any_end_marker_then_kafka_writes_the_same_batch_and_reads_ours(
    java_driver: JavaDriver, marker: EndMarker, timestamp_ms: int
) -> None:
    ours = bytes(build_end_marker(marker, timestamp_ms))

    theirs = from_java(java_driver.call("write_end_marker", timestamp_ms=timestamp_ms, **marker._asdict()))

    assert theirs == ours
    assert read_end_marker(theirs) == marker
    assert java_driver.call("read_end_marker", batch=to_java(ours)) == marker._asdict()
