"""librdkafka's producer for one task: set up for throughput, its errors in plain words.

Rows are queued by bytes: what the network has not taken yet is bounded, whatever a row's size. Any record that is not
delivered fails the task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.spark.rows import Rows, header_lists, messages, objects, partition_numbers
from penstock.spark.sink_errors import WriteFailed

DEFAULT_QUEUE_KBYTES = 32 << 10
_QUEUE_KEY = "queue.buffering.max.kbytes"
_PAUSE_S = 0.002
_FOR_THROUGHPUT = {
    "linger.ms": "20",
    "batch.num.messages": "100000",
    # As Java's producer and Spark's own sink place them.
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": "300000",
    "log.connection.close": "false",
}
# Ours is bounded in `_wait_for_room`: a queue that is full in the midst of a batch would change the order of its rows.
_UNBOUNDED = {"queue.buffering.max.messages": "0", _QUEUE_KEY: str(2**31 - 1)}


class Outbox:
    """One producer, from its making to the last acknowledgement."""

    def __init__(self, settings: Mapping[str, str], transactional_id: str | None) -> None:
        self._max_bytes = int(settings.get(_QUEUE_KEY, DEFAULT_QUEUE_KBYTES)) << 10
        self._transactional_id = transactional_id
        self._lost: KafkaError | None = None
        self._sizes: deque[tuple[int, int]] = deque()
        self.producer = Producer(producer_settings(settings, transactional_id), logger=None)

    def put(self, topic: str, rows: Rows) -> None:
        """Raises WriteFailed."""
        for part in rows.parts():
            self._wait_for_room()
            if part.headers is None and part.timestamps_ms is None:
                self._put_together(topic, part)
            else:
                self._put_each(topic, part)
            self._sizes.append((part.count, part.nbytes))
            self._serve(0)

    def _put_together(self, topic: str, rows: Rows) -> None:
        queued = messages(rows)
        count = self._call(lambda: self.producer.produce_batch(topic, queued, on_delivery=self._on_delivery))
        if count != rows.count:
            failed = next(message["_error"] for message in queued if "_error" in message)
            raise WriteFailed(explained(failed, f'topic "{topic}"'))

    def _put_each(self, topic: str, rows: Rows) -> None:
        nothing = [None] * rows.count
        keys = nothing if rows.keys is None else objects(rows.keys)
        partitions = [-1] * rows.count if rows.partitions is None else partition_numbers(rows.partitions)
        headers = nothing if rows.headers is None else header_lists(rows.headers)
        # 0 is the time of writing.
        times = [0] * rows.count if rows.timestamps_ms is None else objects(rows.timestamps_ms.fill_null(0))
        produce, on_delivery = self.producer.produce, self._on_delivery

        def produce_all() -> None:
            for key, value, partition, time_ms, header in zip(
                keys, objects(rows.values), partitions, times, headers, strict=True
            ):
                produce(topic, value, key, partition, on_delivery, None, time_ms, header)

        self._call(produce_all, f'topic "{topic}"')

    def _wait_for_room(self) -> None:
        while self._queued_bytes() >= self._max_bytes:
            self._serve(_PAUSE_S)

    def _queued_bytes(self) -> int:
        """At most: what was queued last is what is still there."""
        left = len(self.producer)
        total = 0
        kept = 0
        for count, size in reversed(self._sizes):
            if left <= 0:
                break
            left -= count
            total += size
            kept += 1
        while len(self._sizes) > kept:
            self._sizes.popleft()
        return total

    def _serve(self, timeout_s: float) -> None:
        self.producer.poll(timeout_s)
        if self._lost is not None:
            raise WriteFailed(explained(self._lost, "a record was not delivered"))

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._lost is None:
            self._lost = error

    def _call(self, act: Callable[[], Any], what: str = "writing") -> Any:
        try:
            return act()
        except KafkaException as failure:
            raise WriteFailed(explained(failure.args[0], what)) from None

    def flush(self, timeout_s: float) -> None:
        """Returns when everything is acknowledged. Raises WriteFailed."""
        deadline = time.monotonic() + timeout_s
        while len(self.producer):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WriteFailed(f"{len(self.producer)} records were not acknowledged within {timeout_s:g} s")
            self._call(lambda left_s=left_s: self.producer.flush(min(left_s, 1.0)))  # type: ignore[misc]
            self._serve(0)
        self._serve(0)


def producer_settings(settings: Mapping[str, str], transactional_id: str | None) -> dict[str, Any]:
    decided: dict[str, Any] = {"enable.idempotence": True, "delivery.report.only.error": True}
    if transactional_id is not None:
        decided["transactional.id"] = transactional_id
    return {**_FOR_THROUGHPUT, **settings, **_UNBOUNDED, **decided}


def explained(error: KafkaError, what: str) -> str:
    code = error.code()
    hint = _HINTS.get(code)
    return f"{what}: {error.str()}{f': {hint}' if hint else ''} ({error.name()})"


_HINTS = {
    KafkaError._FENCED: "another attempt of this task has taken over, which is no harm if it is of the same query",
    KafkaError.PRODUCER_FENCED: "another attempt of this task has taken over",
    KafkaError.INVALID_PRODUCER_EPOCH: "another attempt of this task has taken over, or the transaction timed out",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise the topic's max.message.bytes, and kafka.message.max.bytes of this write",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user of this write may not write to the topic",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user of this write may not use transactional ids that begin "
    "with penstock-spark-; exactlyOnce=false needs none",
    KafkaError._MSG_TIMED_OUT: "no broker took it within kafka.delivery.timeout.ms",
}
