"""What the transaction coordinator writes to its partition of __transaction_state, as typed records.

There is one for each transactional id, with all that is to be remembered of it, and a tombstone that takes it away.
`encode` writes the version that Kafka 4.2 writes once transaction.version is 1 or more, `decode` reads all that it
reads.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.record_bytes import BadRecord, decode_after_number, leading_number
from penstock.coordinators.transaction.record_layouts import PartitionsSchema, TransactionLogKey, TransactionLogValue
from penstock.core.ids import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1

_KIND = 0
_VALUE_VERSION = 1


class TransactionStatus(IntEnum):
    """The numbers are those of Kafka's records. Kafka writes none with the last two, but would read them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """As it is listed and described, and filtered by: PrepareCommit."""
        return self.name.title().replace("_", "")


class TransactionTombstone(NamedTuple):
    transactional_id: str


class TransactionRecord(NamedTuple):
    """Times are of the wall clock. Empty is the status of an id without a transaction, and so without partitions.

    Kafka 4.2 has a place for the previous and the next producer id and the next epoch but leaves them away: only we
    know them after a restart.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[TopicPartition]
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    """That of the last transaction which ended, when its epochs were used up with it."""
    next_producer_id: int = NO_PRODUCER_ID
    """Given to the producer in the answer to the EndTxn that is being carried out."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_transaction_version: int = 0
    """2 for a client that has an epoch for every transaction (KIP-890)."""


Record: TypeAlias = TransactionRecord | TransactionTombstone


def encode(record: Record) -> LogRecord:
    key = _key_of(record.transactional_id)
    if isinstance(record, TransactionTombstone):
        return LogRecord(key, None, record)
    return LogRecord(key, TransactionLogValue.encode_fields_of(_value_of(record), _VALUE_VERSION), record)


@lru_cache(maxsize=200)
def _key_of(transactional_id: str) -> bytes:
    return TransactionLogKey.encode_fields_of(TransactionTombstone(transactional_id), 0, prefix=_KIND)


def decode(record: LogRecord) -> Record | None:
    """None for a kind of record that we do not know, of a later Kafka."""
    if leading_number(record.key, "key") != _KIND:
        return None
    transactional_id = decode_after_number(TransactionLogKey, record.key, 0).transactional_id
    if record.value is None:
        return TransactionTombstone(transactional_id)
    value = decode_after_number(TransactionLogValue, record.value, leading_number(record.value, "value"))
    return _record_of(transactional_id, value)


def _value_of(record: TransactionRecord) -> TransactionLogValue:
    assert record.status is not TransactionStatus.EMPTY or not record.partitions, f"{record} has partitions"
    by_topic = groupby(sorted(record.partitions), key=lambda partition: partition.topic)
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=[each.partition for each in same_topic])
        for topic, same_topic in by_topic
    ]
    return TransactionLogValue(
        producer_id=record.producer_id,
        previous_producer_id=record.previous_producer_id,
        next_producer_id=record.next_producer_id,
        producer_epoch=record.producer_epoch,
        next_producer_epoch=record.next_producer_epoch,
        transaction_timeout_ms=record.timeout_ms,
        transaction_status=record.status,
        transaction_partitions=None if record.status is TransactionStatus.EMPTY else partitions,
        transaction_last_update_timestamp_ms=record.last_update_ms,
        transaction_start_timestamp_ms=record.start_ms,
        client_transaction_version=record.client_transaction_version,
    )


def _record_of(transactional_id: str, value: TransactionLogValue) -> TransactionRecord:
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise BadRecord(f"TransactionLogValue: no status has the number {value.transaction_status}") from None
    return TransactionRecord(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset() if status is TransactionStatus.EMPTY else _partitions_of(value),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        start_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_transaction_version=value.client_transaction_version,
    )


def _partitions_of(value: TransactionLogValue) -> frozenset[TopicPartition]:
    # Taken for an empty set, null would leave partitions without the marker that they wait for.
    if value.transaction_partitions is None:
        raise BadRecord(f"TransactionLogValue: status {value.transaction_status} with partitions that are null")
    return frozenset(
        TopicPartition(each.topic, partition)
        for each in value.transaction_partitions
        for partition in each.partition_ids
    )
