"""A client's membership in one group on one topic, kept between calls.

What must stay true: an offset is committed only when every message before it was handed out and is done (at least
once), or is about to be handed out and never will be again (at most once).

`fetch` polls in short slices and lets other calls in between, because confluent-kafka's Consumer takes one call at a
time: pausing does not wait for a long poll to end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Polled

from penstock.sdk.connection import Connection
from penstock.sdk.delivery import Delivery
from penstock.sdk.errors import (
    ClientClosed,
    NotAssigned,
    PenstockError,
    UnknownTopic,
    check_offset,
    commit_refused,
    is_unknown_topic,
    is_unreachable,
)
from penstock.sdk.messages import Batch, Message

if TYPE_CHECKING:
    from confluent_kafka._types import HeadersType

_SLICE_S = 0.1
_ANSWER_SLICE_S = 0.005  # a poll does not return when a callback was served
_EARLY_BATCH_SIZE = 100
_YIELD_S = 0.001
_DEFAULTS: Mapping[str, str] = {"auto.offset.reset": "earliest"}  # a new group finds what was published before it
_FIXED: Mapping[str, bool] = {"enable.auto.commit": False, "enable.auto.offset.store": False}
# The group is between two generations, and librdkafka will follow it with the next polls. Should this member have lost
# its partitions meanwhile, the callback says so.
_GROUP_IS_MOVING = frozenset(
    {KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION, KafkaError.STALE_MEMBER_EPOCH}
)
# When partitions are new to it, librdkafka looks for where to begin half a second later, and may have to look again.
_BEGIN_READING_S = 2.0
# A member that took too long is told so by the refusal of its commit; it joins again with its next poll.
_HARMLESS = frozenset({KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED})


class GroupConsumer:
    """One consumer of confluent-kafka, subscribed to one topic when it is first asked for messages."""

    def __init__(self, connection: Connection, delivery: Delivery, topic: str, group: str) -> None:
        self._connection = connection
        self._delivery = delivery
        self._topic = topic
        self._group = group
        fixed = {**_FIXED, "group.id": group, "on_commit": self._commit_answered}
        self._consumer = connection.made(Consumer, connection.settings(_DEFAULTS, fixed))
        self._is_subscribed = False
        self._is_assigned = False
        self._is_newly_assigned = False
        self.is_broken = False
        """Fenced for good: librdkafka wants a new consumer."""
        self._is_closed = False
        self._batch: Batch | None = None
        self._early: list[Message] = []  # came while something else was waited for; the next ones to hand out
        self._awaited: frozenset[tuple[int, int]] = frozenset()  # partitions and offsets of the commit under way
        self._answer: KafkaError | None = None
        self._done: dict[int, int] = {}  # next offsets of what is done and not committed yet
        self._gone: set[int] = set()  # partitions revoked since the last call that returned messages
        self._paused: set[int] = set()
        self._all_paused = False
        self._failure: PenstockError | None = None  # found where it could not be raised
        self._one_fetch = threading.Lock()
        self._one_call = threading.Lock()
        self._callers = 0
        self._callers_change = threading.Lock()

    def fetch(self, max_batch_size: int, wait_s: float) -> Batch:
        """The next batch; the one before it counts as done. The caller marks what it hands out."""
        with self._one_fetch:
            with self._call():
                if self._batch is not None and not self._batch.handed_out:
                    return self._batch
                self._subscribe()
                self._finish_batch()
            failures_before = self._connection.failures
            messages = self._long_poll(max_batch_size, wait_s)
            with self._call():
                if not messages and self._connection.failures > failures_before:
                    self._check_reachable()
                if not messages:
                    self._raise_failure()
                self._batch = self._handed_over(messages)
                return self._batch

    def commit(self, partition: int, offset: int) -> None:
        offsets = {partition: offset}
        with self._call():
            error = self._commit_patiently(offsets)
            if error is not None:
                raise self._commit_failure(error, offsets)
            self._forget(partition)

    def seek(self, partition: int, offset: int) -> None:
        """Waits for the group to assign partitions, if it has not yet."""
        check_offset(offset)
        with self._call():
            self._subscribe()
            deadline = time.monotonic() + self._connection.timeout_s
            while not self._is_assigned and time.monotonic() < deadline:
                self._poll_early(_SLICE_S)
            if partition not in self._assigned():
                raise NotAssigned(
                    f"partition {partition} of {self._topic!r} is not assigned to this member of group {self._group!r}"
                )
            self._forget(partition)
            self._early = [message for message in self._early if message.partition != partition]
            self._seek(partition, offset)

    def pause(self, partition: int | None) -> None:
        with self._call():
            if partition is None:
                self._all_paused = True
            else:
                self._paused.add(partition)
            self._apply_pauses()

    def resume(self, partition: int | None) -> None:
        with self._call():
            if partition is None:
                self._all_paused = False
                self._paused.clear()
            elif self._all_paused:
                self._all_paused = False
                self._paused = self._assigned() - {partition}
            else:
                self._paused.discard(partition)
            flowing = [TopicPartition(self._topic, each) for each in self._assigned() if not self._is_paused(each)]
            self._consumer.resume(flowing)

    def close(self, *, is_clean: bool) -> None:
        """Leaves the group; a clean close first commits what the loop over the batch has gone past."""
        if self._is_closed:
            return
        with self._call():
            self._is_closed = True
            try:
                if is_clean and self._delivery is Delivery.AT_LEAST_ONCE:
                    if self._batch is not None:
                        self._done |= self._batch.next_offsets(passed_only=True)
                    self._commit_done(self._commit_patiently)
            finally:
                self._consumer.close()

    # What is done, and what is committed.

    def _finish_batch(self) -> None:
        if self._batch is not None and self._delivery is Delivery.AT_LEAST_ONCE:
            self._done |= self._batch.next_offsets()
        self._batch = None
        self._commit_done(self._try_commit)
        self._raise_failure()

    def _handed_over(self, messages: list[Message]) -> Batch:
        batch = Batch(messages)
        if self._delivery is Delivery.AT_LEAST_ONCE or not messages:
            return batch
        offsets = batch.next_offsets()
        error = self._try_commit(offsets)
        if error is None:
            return batch
        self._rewind(messages)  # nobody has seen them: whoever gets the partition may have them
        if error.code() in _GROUP_IS_MOVING:
            return Batch([])
        raise self._commit_failure(error, offsets)

    def _commit_done(self, commit: Callable[[Mapping[int, int]], KafkaError | None]) -> None:
        if not self._done:
            return
        error = commit(self._done)
        if error is not None and error.code() in _GROUP_IS_MOVING:
            return  # the next fetch, the revocation or the close tries again
        offsets, self._done = self._done, self._done if error is not None and is_unreachable(error) else {}
        if error is not None:
            raise self._commit_failure(error, offsets)

    def _commit_patiently(self, offsets: Mapping[int, int]) -> KafkaError | None:
        """For those who will not come again: waits until a group on the move has settled."""
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            error = self._try_commit(offsets)
            if error is None or error.code() not in _GROUP_IS_MOVING or time.monotonic() > deadline:
                return error
            self._poll_early(_SLICE_S)

    def _try_commit(self, offsets: Mapping[int, int]) -> KafkaError | None:
        """Polls for the answer itself: librdkafka's own wait has no deadline and outlasts a broker that is away."""
        self._awaited = frozenset(offsets.items())
        try:
            self._consumer.commit(offsets=self._places(offsets), asynchronous=True)
        except KafkaException as refusal:
            error: KafkaError = refusal.args[0]
            return error
        deadline = time.monotonic() + self._connection.timeout_s
        while self._awaited:
            if time.monotonic() > deadline:
                self._awaited = frozenset()
                return KafkaError(KafkaError._TIMED_OUT)
            self._poll_early(_ANSWER_SLICE_S)
        return self._answer

    def _commit_answered(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if self._awaited == {(place.partition, place.offset) for place in places}:  # not one given up before
            self._awaited = frozenset()
            self._answer = error or next((place.error for place in places if place.error is not None), None)

    def _commit_failure(self, error: KafkaError, offsets: Mapping[int, int]) -> PenstockError:
        self.is_broken |= error.fatal() or error.code() == KafkaError.FENCED_INSTANCE_ID
        if is_unreachable(error):
            return self._connection.unreachable(error)
        return commit_refused(error, self._topic, self._group, offsets)

    def _forget(self, partition: int) -> None:
        """The caller decides about this partition: what was handed out of it is no longer committed for him."""
        self._done.pop(partition, None)
        if self._batch is not None:
            self._batch.forget(partition)

    # Polling.

    def _long_poll(self, max_batch_size: int, wait_s: float) -> list[Message]:
        """Until there is a message, or `wait_s` after a new member could have begun to read."""
        started, was_assigned = time.monotonic(), self._is_assigned
        limit_s = wait_s if was_assigned else self._connection.timeout_s
        while True:
            left_s = started + limit_s - time.monotonic()
            with self._call():
                messages = self._poll(max_batch_size, max(0.0, min(_SLICE_S, left_s)))
            if messages or self._failure is not None or left_s <= 0:
                return messages
            if self._is_assigned and not was_assigned:
                started, was_assigned, limit_s = time.monotonic(), True, wait_s + _BEGIN_READING_S
            self._let_others_in()

    def _poll(self, max_batch_size: int, timeout_s: float) -> list[Message]:
        """What is there: the first message may be waited for, the others have to be in librdkafka's queue already."""
        if self._early:
            early, self._early = self._early[:max_batch_size], self._early[max_batch_size:]
            return early
        return self._poll_new(max_batch_size, timeout_s)

    def _poll_new(self, max_batch_size: int, timeout_s: float) -> list[Message]:
        first = self._consumer.poll(timeout_s)
        polled = [] if first is None else [first]
        self._gone.clear()
        if polled and max_batch_size > 1:
            polled += self._consumer.consume(max_batch_size - 1, 0)
        if self._is_newly_assigned:
            self._is_newly_assigned = False
            self._apply_pauses()
        messages = [_message(each) for each in polled if not self._is_error(each)]
        # A partition may be revoked between two messages of one call: what came before is the next owner's.
        held = [each for each in messages if each.partition in self._gone or self._is_paused(each.partition)]
        if not held:
            return messages
        self._rewind(held)
        return [message for message in messages if message not in held]

    def _poll_early(self, timeout_s: float) -> None:
        """For those who poll to be called back, not for messages."""
        polled = self._poll_new(_EARLY_BATCH_SIZE, timeout_s)  # may replace `_early`: partitions may be revoked
        self._early += polled

    def _is_error(self, polled: Polled) -> bool:
        error = polled.error()
        if error is None:
            return False
        if error.code() not in _HARMLESS and self._failure is None:
            self.is_broken |= error.fatal()
            what = f"group {self._group!r} cannot read topic {self._topic!r}"
            failure = UnknownTopic(self._topic) if is_unknown_topic(error) else self._connection.translated(error, what)
            self._failure = failure
        return True

    def _raise_failure(self) -> None:
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure

    def _check_reachable(self) -> None:
        try:
            self._consumer.list_topics(self._topic, timeout=self._connection.timeout_s)
        except KafkaException as failure:
            raise self._connection.translated(failure.args[0], f"topic {self._topic!r} cannot be read") from None

    # Joining, and partitions that come and go.

    def _subscribe(self) -> None:
        if self._is_subscribed:
            return
        self._connection.partition_count(self._consumer, self._topic)  # an unknown topic would only be silent
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned_now, on_revoke=self._revoked, on_lost=self._lost
        )
        self._is_subscribed = True

    def _assigned_now(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._is_assigned = True
        self._is_newly_assigned = True

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        """The last moment to commit what is done: the next owner starts from there."""
        if offsets := self._no_longer_ours(places):
            try:
                # Called from a poll, so the answer cannot be polled for; but the coordinator has just been heard.
                self._consumer.commit(offsets=self._places(offsets), asynchronous=False)
            except KafkaException as refusal:
                self._failure = self._commit_failure(refusal.args[0], offsets)

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        if offsets := self._no_longer_ours(places):
            self._failure = self._commit_failure(KafkaError(KafkaError._ASSIGNMENT_LOST), offsets)

    def _no_longer_ours(self, places: list[TopicPartition]) -> dict[int, int]:
        gone = {place.partition for place in places}
        self._gone |= gone
        self._early = [message for message in self._early if message.partition not in gone]
        return {partition: self._done.pop(partition) for partition in gone if partition in self._done}

    def _assigned(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def _is_paused(self, partition: int) -> bool:
        return self._all_paused or partition in self._paused

    def _apply_pauses(self) -> None:
        held = [partition for partition in self._assigned() if self._is_paused(partition)]
        if held:
            self._consumer.pause([TopicPartition(self._topic, partition) for partition in held])
        self._rewind([message for message in self._early if message.partition in held])

    def _rewind(self, messages: list[Message]) -> None:
        """Takes messages back that were polled but not handed out."""
        first: dict[int, int] = {}
        for message in messages:
            first.setdefault(message.partition, message.offset)
        for partition, offset in first.items():
            with suppress(KafkaException):  # no longer assigned: then it starts from what is committed anyway
                self._consumer.seek(TopicPartition(self._topic, partition, offset))
        self._early = [message for message in self._early if message.partition not in first]

    def _seek(self, partition: int, offset: int) -> None:
        deadline = time.monotonic() + self._connection.timeout_s
        while True:
            try:
                return self._consumer.seek(TopicPartition(self._topic, partition, offset))
            except KafkaException as failure:
                error = failure.args[0]
                # A partition just assigned is still being looked up.
                if error.code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise self._connection.translated(error, f"cannot seek in {self._topic!r}") from None
            self._poll_early(_SLICE_S)
            self._early = [message for message in self._early if message.partition != partition]

    def _places(self, offsets: Mapping[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]

    # One call at a time.

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._callers_change:
            self._callers += 1
        try:
            with self._one_call:
                if self._is_closed:
                    raise ClientClosed("the client is closed")
                yield
        finally:
            with self._callers_change:
                self._callers -= 1

    def _let_others_in(self) -> None:
        """A lock that is released and taken again at once lets nobody in: waits until those who wait had their turn."""
        while self._callers:
            time.sleep(_YIELD_S)


def _message(polled: Polled) -> Message:
    topic, partition, offset = polled.topic(), polled.partition(), polled.offset()
    assert topic is not None and partition is not None and offset is not None, "a message without error has its place"
    headers = tuple(
        (name, value.encode() if isinstance(value, str) else value) for name, value in _pairs(polled.headers())
    )
    return Message(topic, partition, offset, polled.key(), polled.value(), headers, polled.timestamp()[1])


def _pairs(headers: HeadersType | None) -> Iterable[tuple[str, str | bytes | None]]:
    if headers is None:
        return ()
    return headers.items() if isinstance(headers, dict) else headers
