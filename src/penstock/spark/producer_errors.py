"""What librdkafka's errors mean for a write, and what to do about them."""

from __future__ import annotations

from confluent_kafka import KafkaError

_TAKEN_OVER = "another attempt of this task has taken over"
_HINTS = {
    KafkaError._FENCED: f"{_TAKEN_OVER}, or the transaction took longer than kafka.transaction.timeout.ms",
    KafkaError.PRODUCER_FENCED: _TAKEN_OVER,
    KafkaError.INVALID_PRODUCER_EPOCH: f"{_TAKEN_OVER}, or the transaction took longer than "
    "kafka.transaction.timeout.ms",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic, and kafka.message.max.bytes of this write",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user of this write may not write to the topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user of this write may not use transactional ids that begin "
    "with penstock-spark-; exactlyOnce=false needs none",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower kafka.transaction.timeout.ms, or raise the brokers' "
    "transaction.max.timeout.ms",
    KafkaError._MSG_TIMED_OUT: "no broker took it within kafka.delivery.timeout.ms",
    KafkaError._UNKNOWN_PARTITION: "the topic has fewer partitions",
}


def explained(error: KafkaError) -> str:
    hint = _HINTS.get(error.code())
    return f"{error.str()} ({error.name()}){f': {hint}' if hint else ''}"
