"""How the records of __transaction_state are laid out: as Kafka does, so that its tools read our log, and we read its.

A key begins with an int16 that says what the record is about, a value with its version. What they mean to us is in
`records`.
"""

from __future__ import annotations

from penstock.protocol.codec import Data
from penstock.protocol.schema import Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Data):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Data, versions="0-1", flexible=1):
    """v1: fields that may be left away (KIP-915), and with them what an epoch for every transaction needs (KIP-890)

    The partitions are null when there is no transaction.
    """

    producer_id: int = int64()
    previous_producer_id: int = int64(versions="1+", tag=0, default=-1)
    next_producer_id: int = int64(versions="1+", tag=1, default=-1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(versions="1+", tag=3, default=-1)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(versions="1+", tag=2)
