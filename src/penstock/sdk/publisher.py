"""Publishing: one producer, and one thread that hears how its messages fared.

librdkafka calls back from `poll`, so somebody has to poll. A thread of its own does, and completes futures: callers
wait for theirs, in any thread or event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from penstock.sdk.connection import Connection
from penstock.sdk.delivery import PRODUCER_SETTINGS, Delivery
from penstock.sdk.errors import ClientClosed, PartlyPublished, PenstockError, is_unreachable, publish_failed
from penstock.sdk.messages import Headers, Published

Text: TypeAlias = str | bytes | None
"""A key or a payload to publish; str goes as UTF-8."""

Outgoing: TypeAlias = tuple[Text, Text] | tuple[Text, Text, Headers]
"""Key, payload, and headers if it has any."""

_Settle: TypeAlias = Callable[[int, Published | PenstockError], None]
"""Takes the position of a message among those published together, and how it fared."""

_PARTITION_BY_KEY = -1
_PARTITIONS_KNOWN_FOR_S = 60.0  # a topic that grew gets its share within a minute
_POLL_S = 0.1
_BUSY_QUEUE = 50_000  # half of what librdkafka queues unless told otherwise
_DEFAULTS: Mapping[str, str | int] = {
    "linger.ms": 0,  # a single publish waits for its answer; a burst fills batches while others are in flight
    "partitioner": "murmur2_random",  # the same key goes where Kafka's Java clients put it
    "message.max.bytes": 100_000_000,  # the topic decides, not the client
}


class Publisher:
    """The producer side of a client."""

    def __init__(self, connection: Connection, delivery: Delivery) -> None:
        self._connection = connection
        defaults = {**_DEFAULTS, "message.timeout.ms": round(connection.timeout_s * 1000)}
        self._producer = connection.made(Producer, connection.settings(defaults, PRODUCER_SETTINGS[delivery]))
        self._topics: dict[str, _RoundRobin] = {}
        self._is_closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="penstock-sdk-publisher", daemon=True)
        self._poller.start()

    def would_wait(self, topic: str) -> bool:
        """Whether `submit` may block: what an event loop has to know."""
        return not self._is_known(topic) or len(self._producer) > _BUSY_QUEUE

    def submit(self, topic: str, key: Text, payload: Text, headers: Headers | None) -> Future[Published]:
        """Queues a message. Waits only to look up a topic that is not known, and when the queue is full."""
        future: Future[Published] = Future()
        future.set_running_or_notify_cancel()  # a caller who no longer waits does not unsend the message

        def settle(_: int, outcome: Published | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._produce(topic, key, payload, headers, partial(self._delivered, settle, 0))
        return future

    def publish_many(self, topic: str, messages: Iterable[Outgoing]) -> list[Published]:
        """Queues as fast as librdkafka takes messages, and returns when all are settled."""
        outcomes = _Outcomes()
        for position, message in enumerate(messages):
            key, payload = message[:2]
            headers = message[2] if len(message) == 3 else None
            outcomes.expect()
            try:
                self._produce(topic, key, payload, headers, partial(self._delivered, outcomes.settle, position))
            except PenstockError as failure:
                outcomes.settle(position, failure)
        return outcomes.published(topic)

    def close(self) -> None:
        """What was queued is sent first; a caller who waits for it hears the outcome."""
        if self._is_closed.is_set():
            return
        self._producer.flush(self._connection.timeout_s)
        self._is_closed.set()
        self._poller.join()

    def _produce(self, topic: str, key: Text, payload: Text, headers: Headers | None, report: partial[None]) -> None:
        if self._is_closed.is_set():
            raise ClientClosed("the client is closed")
        round_robin = self._round_robin(topic)
        partition = round_robin.next_partition() if key is None else _PARTITION_BY_KEY
        listed = None if headers is None else list(headers.items() if isinstance(headers, Mapping) else headers)
        while True:
            try:
                self._producer.produce(topic, payload, key, partition, on_delivery=report, headers=listed)
                return
            except BufferError:
                self._producer.flush(_POLL_S)  # the queue is full: the sender has to take some of it first
            except KafkaException as refusal:
                raise publish_failed(refusal.args[0], topic, partition, _size(key, payload)) from None

    def _round_robin(self, topic: str) -> _RoundRobin:
        if not self._is_known(topic):
            count = self._connection.partition_count(self._producer, topic)
            before = self._topics.get(topic)
            self._topics[topic] = _RoundRobin(count, 0 if before is None else before.turn)
        return self._topics[topic]

    def _is_known(self, topic: str) -> bool:
        known = self._topics.get(topic)
        return known is not None and time.monotonic() < known.known_until

    def _delivered(self, settle: _Settle, position: int, error: KafkaError | None, record: Delivered) -> None:
        topic, partition = record.topic(), record.partition()
        assert topic is not None and partition is not None
        if error is None:
            settle(position, Published(topic, partition, _known_offset(record.offset())))
        elif is_unreachable(error):
            settle(position, self._connection.unreachable(error))
        else:
            self._topics.pop(topic, None)  # it may have been deleted, or made again with fewer partitions
            settle(position, publish_failed(error, topic, partition, _size(record.key(), record.value())))

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(_POLL_S)


class _RoundRobin:
    """Whose turn it is among a topic's partitions. Threads that meet here may share a turn, which does no harm."""

    __slots__ = ("_count", "known_until", "turn")

    def __init__(self, partition_count: int, turn: int) -> None:
        self._count = partition_count
        self.turn = turn
        self.known_until = time.monotonic() + _PARTITIONS_KNOWN_FOR_S

    def next_partition(self) -> int:
        partition = self.turn % self._count
        self.turn += 1
        return partition


class _Outcomes:
    """How the messages of one `publish_many` fared, by their position."""

    def __init__(self) -> None:
        self._outcomes: list[Published | PenstockError | None] = []
        self._settled = 0
        self._change = threading.Condition()

    def expect(self) -> None:
        self._outcomes.append(None)

    def settle(self, position: int, outcome: Published | PenstockError) -> None:
        with self._change:
            self._outcomes[position] = outcome
            self._settled += 1
            if self._settled == len(self._outcomes):
                self._change.notify_all()

    def published(self, topic: str) -> list[Published]:
        with self._change:
            # librdkafka settles every message at the latest when its message.timeout.ms is over.
            self._change.wait_for(lambda: self._settled == len(self._outcomes))
        landed: Sequence[Published | None] = [one if isinstance(one, Published) else None for one in self._outcomes]
        failures = {at: one for at, one in enumerate(self._outcomes) if isinstance(one, PenstockError)}
        if failures:
            raise PartlyPublished(topic, landed, failures)
        return [one for one in landed if one is not None]


def _known_offset(offset: int | None) -> int | None:
    """With acks=0 there is no answer that could tell it."""
    return offset if offset is not None and offset >= 0 else None


def _size(key: Text, payload: Text) -> int:
    return len(key or b"") + len(payload or b"")
