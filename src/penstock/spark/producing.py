"""librdkafka's producer for one task: set up for throughput, its errors in plain words.

What the network has not taken yet is bounded by bytes and by records, whatever a row's size: who finds the queue full
waits, and goes on with the same row, so rows of a task stay in their order. Any record that is not delivered fails the
task.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.spark.producer_errors import explained
from penstock.spark.rows import Rows, header_lists, objects
from penstock.spark.sink_errors import WriteFailed

_log = logging.getLogger("penstock.spark.sink")
_SILENT = logging.Logger("nobody")
_SILENT.addHandler(logging.NullHandler())

_PAUSE_S = 0.1
_GRACE_S = 30.0
DELIVERY_TIMEOUT_MS = 300_000
TRANSACTION_TIMEOUT_MS = 300_000
_FOR_THROUGHPUT = {
    "linger.ms": "20",
    "batch.num.messages": "100000",
    # As Java's producer and Spark's own sink place them.
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": str(32 << 10),
    "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
}
_DECIDED: dict[str, str | bool] = {
    "enable.idempotence": "true",
    # Records as small as can be take some 200 bytes each in the queue.
    "queue.buffering.max.messages": "200000",
    "delivery.report.only.error": True,
    "log.connection.close": "false",
}
_ONLY_WHAT_IS_CRITICAL = 2
_LEAVE_TO_THE_KEY = -1
_TIME_OF_WRITING = 0


class Outbox:
    """One producer, from its making to the last acknowledgement."""

    def __init__(self, settings: Mapping[str, str], transactional_id: str | None = None) -> None:
        self._complaint: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._lost: KafkaError | None = None
        own: dict[str, Any] = {**_FOR_THROUGHPUT, **settings, **_DECIDED, "error_cb": self._on_error}
        if transactional_id is not None:
            own["transactional.id"] = transactional_id
        if "debug" not in settings:
            own["log_level"] = _ONLY_WHAT_IS_CRITICAL  # the rest comes as errors, and would be said twice
        delivery_timeout_ms = min(
            int(own.get(name, DELIVERY_TIMEOUT_MS)) or DELIVERY_TIMEOUT_MS
            for name in ("delivery.timeout.ms", "message.timeout.ms")
        )
        # A transaction whose records were not all delivered cannot be committed. Without one every record has to be
        # asked for, which is a sixth of the time that it takes to put it.
        self._report = self._on_delivery if transactional_id is None else None
        self._settled_within_s = delivery_timeout_ms / 1_000 + _GRACE_S
        self._producer = Producer(own, logger=_log)

    # Rows

    def put(self, topic: str, rows: Rows) -> None:
        """Returns when all are queued. Raises WriteFailed."""
        for part in rows.parts():
            self._put_part(topic, part)
            self._serve(0)

    def _put_part(self, topic: str, rows: Rows) -> None:
        values, calls = self._calls(topic, rows)
        what = f'writing to topic "{topic}"'
        while True:
            try:
                self._plainly(what, deque, calls, 0)
                return
            except BufferError:
                # The row that found no room is gone from the columns: it is put on its own, and the rest goes on.
                row = rows.slice(rows.count - length_hint(values) - 1, 1)
                self._put_when_there_is_room(partial(self._plainly, what, self._put_row, topic, row), row.nbytes)

    def _put_row(self, topic: str, row: Rows) -> None:
        _, calls = self._calls(topic, row)
        next(calls)

    def _calls(self, topic: str, rows: Rows) -> tuple[Iterator[object], Iterator[None]]:
        """The values that are still to come, and a `produce` for each row: no bytecode of ours runs in between."""
        values = iter(objects(rows.values))
        return values, map(
            self._producer.produce,
            repeat(topic),
            values,
            repeat(None) if rows.keys is None else objects(rows.keys),
            repeat(_LEAVE_TO_THE_KEY) if rows.partitions is None else _numbers(rows.partitions, _LEAVE_TO_THE_KEY),
            repeat(self._report),
            repeat(None),  # another name of the one before
            repeat(_TIME_OF_WRITING) if rows.timestamps_ms is None else _numbers(rows.timestamps_ms, _TIME_OF_WRITING),
            repeat(None) if rows.headers is None else header_lists(rows.headers),
        )

    def _put_when_there_is_room(self, put: Callable[[], object], nbytes: int) -> None:
        while True:
            if len(self._producer) == 0:
                raise WriteFailed(f"a row of {nbytes} bytes does not fit into kafka.queue.buffering.max.kbytes")
            self._serve(_PAUSE_S)
            try:
                put()
                return
            except BufferError:
                continue

    def flush(self) -> None:
        """Returns when everything is acknowledged. Raises WriteFailed."""
        deadline = time.monotonic() + self._settled_within_s
        while len(self._producer):
            if time.monotonic() >= deadline:
                raise WriteFailed(f"{len(self._producer)} records were not acknowledged in time{self._why()}")
            self._serve(_PAUSE_S, self._producer.flush)
        self._serve(0)

    def _serve(self, timeout_s: float, how: Callable[[float], object] | None = None) -> None:
        self._plainly("writing", how or self._producer.poll, timeout_s)
        if self._lost is not None:
            raise WriteFailed(f"a record was not delivered: {explained(self._fatal or self._lost)}")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._lost is None:
            self._lost = error

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error
        elif self._complaint is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which names none
            self._complaint = error

    def _plainly(self, what: str, act: Callable[..., object], *arguments: object) -> None:
        try:
            act(*arguments)
        except KafkaException as failure:
            raise self._failed(failure, what) from None

    def _failed(self, failure: KafkaException, what: str) -> WriteFailed:
        error = failure.args[0]
        if error.code() == KafkaError._FATAL:
            self._listen()
            error = self._fatal or error  # which has the reason
        why = self._why() if error.code() == KafkaError._TIMED_OUT else ""
        return WriteFailed(f"{what}: {explained(error)}{why}")

    def _why(self) -> str:
        """What the network had to say, when that is all there is."""
        self._listen()
        return "" if self._complaint is None else f"; last heard: {self._complaint.str()}"

    def _listen(self) -> None:
        try:
            self._producer.poll(0)
        except KafkaException as failure:
            self._fatal = failure.args[0]

    # Transactions

    def fence(self, timeout_s: float) -> None:
        """Earlier producers of this transactional id can do nothing more, and what they left open is aborted."""
        self._plainly("fencing earlier attempts of this task", self._producer.init_transactions, timeout_s)

    def begin(self) -> None:
        self._plainly("beginning a transaction", self._producer.begin_transaction)

    def put_marker(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        put = partial(self._producer.produce, topic, value, key, partition, self._report)
        try:
            self._plainly("writing a marker", put)
        except BufferError:
            self._put_when_there_is_room(partial(self._plainly, "writing a marker", put), len(key) + len(value or b""))

    def commit(self) -> None:
        """Raises WriteFailed; whether it is committed after all can then be asked of the marker."""
        self._plainly("committing a transaction", self._producer.commit_transaction, self._settled_within_s)

    def abort(self) -> None:
        """So that readers do not wait for its timeout. What cannot be aborted is left to that, or to who fences it."""
        try:
            self._producer.abort_transaction(_GRACE_S)
        except KafkaException as failure:
            _log.info("transaction not aborted", extra={"reason": failure.args[0].str()})


def refusal_of(settings: Mapping[str, str], *, exactly_once: bool = True) -> str | None:
    """What librdkafka has against these settings; it only looks when a producer is made."""
    own: dict[str, Any] = {**_FOR_THROUGHPUT, **settings, **_DECIDED}
    own.pop("bootstrap.servers", None)  # so that it stays at home
    if exactly_once:
        own["transactional.id"] = "checked"
    try:
        Producer(own, logger=_SILENT)
    except KafkaException as refused:
        return str(refused.args[0].str())
    return None


def _numbers(column: pa.Array, null: int) -> list[int]:
    return objects(column.fill_null(null))
