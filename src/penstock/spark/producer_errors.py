"""What a producer's errors mean for a write, and what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.core.errors import ErrorCode
from penstock.spark.sink_errors import WriteFailed
from penstock.wire.errors import NotWritten, RowTooLarge

_TAKEN_OVER = "another attempt of this task has taken over"
_TAKEN_OVER_OR_TOO_LONG = f"{_TAKEN_OVER}, or the transaction took longer than kafka.transaction.timeout.ms"
_HINTS = {
    ErrorCode.PRODUCER_FENCED: _TAKEN_OVER_OR_TOO_LONG,
    ErrorCode.INVALID_PRODUCER_EPOCH: _TAKEN_OVER_OR_TOO_LONG,
    ErrorCode.INVALID_TXN_STATE: _TAKEN_OVER_OR_TOO_LONG,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: _TAKEN_OVER_OR_TOO_LONG,
    ErrorCode.TRANSACTION_ABORTABLE: _TAKEN_OVER_OR_TOO_LONG,
    ErrorCode.UNKNOWN_PRODUCER_ID: "the partition has no records of this producer any more",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the topic, or lower kafka.batch.size if rows are smaller",
    ErrorCode.RECORD_LIST_TOO_LARGE: "lower kafka.batch.size",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the user of this write may not write to the topic",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user of this write may not use transactional ids that begin "
    "with penstock-spark-; exactlyOnce=false needs none",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the user of this write may not write idempotently (IDEMPOTENT_WRITE)",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "lower kafka.transaction.timeout.ms, or raise the brokers' "
    "transaction.max.timeout.ms",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the partition has lost records that it had acknowledged",
    ErrorCode.INVALID_TIMESTAMP: "the topic's message.timestamp.before.max.ms and after.max.ms say which ones it takes",
}


@contextmanager
def explained() -> Iterator[None]:
    """What is final becomes WriteFailed, with what to do about it; what passed too late says so itself."""
    try:
        yield
    except NotWritten as error:
        hint = _HINTS.get(error.code) if error.code is not None else None
        raise WriteFailed(f"{error}{f': {hint}' if hint else ''}") from None
    except RowTooLarge as error:
        raise WriteFailed(
            f"{error}: raise kafka.max.request.size and kafka.buffer.memory if it is to be written"
        ) from None
