"""Producers that were told to send a batch again, and whose batches behind that one are therefore too early.

Told that they are out of order, librdkafka takes a new epoch, and sends all that it has not heard of under new numbers,
that which is here too. Told to try again, it does so with the old numbers. So what comes behind a batch that was turned
away is refused as that one was, until it is here. That goes for a producer of which nothing is here yet as well: were a
batch taken as the first of it, librdkafka would take all before it for delivered too, and it would be lost.

A leader that is new does not know what the one before it has turned away, or has not answered yet: for a while it
refuses whatever is too early as that one would. librdkafka (2.16) does send it the next batch first: when the old
leader turns a batch away just as the client learns of the new one, nothing is outstanding for a moment, and the batch
that is to be sent again is not back in the queue yet.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import MAX_TOPIC_NAME_LENGTH
from penstock.protocol.batch import BatchHeader
from penstock.storage.producers import is_before

# Clients try again much sooner than that.
AWAITED_MS = 30_000
# Of one partition; a client can make producer ids up. From more on it is as if the leader were new.
MAX_AWAITED = 1_000
# Of all partitions that could not be found.
MAX_MISSED_BATCHES = 10_000
_TRY_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,  # the disk is full
)


@dataclass(slots=True)
class _Awaited:
    """Which batches of a producer were turned away, from the first in order to the last, and what they were told."""

    producer_epoch: int
    first_sequence: int
    last_sequence: int
    error: BrokerError
    # When it was looked at first; anew with every batch that is turned away for a reason of its own.
    since_ms: int | None = None

    def reaches(self, batch: BatchHeader) -> None:
        """This one has to come again, too, before another may be out of order."""
        if is_before(self.last_sequence, batch.base_sequence):
            self.last_sequence = batch.base_sequence


class TurnedAway:
    __slots__ = ("_awaited", "_by_another", "_led_since_ms", "is_of_use")

    def __init__(self) -> None:
        # Whether any of this is to be asked at all: it seldom is, and appends are many.
        self.is_of_use = False
        self._awaited: dict[int, _Awaited] = {}
        # What is said instead where it is not known what was turned away.
        self._by_another: BrokerError | None = None
        self._led_since_ms: int | None = None

    def __len__(self) -> int:
        return len(self._awaited)

    def join(self, other: TurnedAway) -> None:
        """What somebody else has turned away, too."""
        self._awaited.update(other._awaited)
        self.is_of_use = self.is_of_use or other.is_of_use

    def led_anew(self, error: BrokerError | None) -> None:
        """`error`: somebody else may have turned batches away until now."""
        if error is None and len(self._awaited) >= MAX_AWAITED:
            return  # some of them may have been forgotten
        self._by_another, self._led_since_ms = error, None
        self.is_of_use = bool(self._awaited) or error is not None

    def told(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """`error`, remembered if a client answers it by sending the batch again."""
        if batch.producer_id >= 0 and batch.base_sequence >= 0 and error.code in _TRY_AGAIN:
            awaited = self._awaited.get(batch.producer_id)
            if awaited is None or awaited.producer_epoch < batch.producer_epoch:
                self._await(batch, error)
            elif awaited.producer_epoch == batch.producer_epoch:
                awaited.since_ms = None
                if is_before(batch.base_sequence, awaited.first_sequence):
                    awaited.first_sequence = batch.base_sequence
                awaited.reaches(batch)
        return error

    def _await(self, batch: BatchHeader, error: BrokerError) -> None:
        self._awaited.pop(batch.producer_id, None)
        if len(self._awaited) >= MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
            self._by_another, self._led_since_ms = error.anew(), None
        sequence = batch.base_sequence
        self._awaited[batch.producer_id] = _Awaited(batch.producer_epoch, sequence, sequence, error.anew())
        self.is_of_use = True

    def check_first(self, batch: BatchHeader, known: Container[int]) -> None:
        """Raises for a batch that would be the first of its producer here, and may not be."""
        if batch.base_sequence <= 0 or batch.producer_id in known:
            return
        if self._by_another is not None:
            raise self._by_another.anew()
        awaited = self._of(batch)
        if awaited is not None and awaited.first_sequence != batch.base_sequence:
            awaited.reaches(batch)
            raise awaited.error.anew()

    def instead_of(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """What a batch is refused with that the log did not take."""
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error
        awaited = self._of(batch)
        if awaited is not None:
            awaited.reaches(batch)
            return awaited.error.anew()
        return self._by_another.anew() if self._by_another is not None else error

    def came(self, batch: BatchHeader) -> None:
        awaited = self._awaited.get(batch.producer_id)
        if awaited is None or awaited.producer_epoch > batch.producer_epoch:
            return
        if awaited.producer_epoch < batch.producer_epoch or not is_before(batch.base_sequence, awaited.last_sequence):
            del self._awaited[batch.producer_id]

    def forget_old(self, now_ms: int) -> None:
        """To be asked from time to time while it is of use."""
        if self._by_another is not None:
            if self._led_since_ms is None:
                self._led_since_ms = now_ms
            elif now_ms - self._led_since_ms >= AWAITED_MS:
                self._by_another = None
        for producer_id, awaited in list(self._awaited.items()):
            if awaited.since_ms is None:
                awaited.since_ms = now_ms
            elif now_ms - awaited.since_ms >= AWAITED_MS:
                del self._awaited[producer_id]
        self.is_of_use = bool(self._awaited) or self._by_another is not None

    def _of(self, batch: BatchHeader) -> _Awaited | None:
        awaited = self._awaited.get(batch.producer_id)
        return awaited if awaited is not None and awaited.producer_epoch == batch.producer_epoch else None


class Missed:
    """Batches for partitions that could not be found: others know of a leader before it has its log."""

    __slots__ = ("_batches_count", "_turned_away")

    def __init__(self) -> None:
        # By what stands in a request: a topic's name or id, and a partition; and when. The oldest come first.
        self._turned_away: dict[tuple[bytes, int], tuple[TurnedAway, int]] = {}
        self._batches_count = 0

    def told(self, name_or_id: bytes, index: int, batch: BatchHeader, error: BrokerError, now_ms: int) -> None:
        if batch.producer_id < 0 or batch.base_sequence < 0 or len(name_or_id) > MAX_TOPIC_NAME_LENGTH:
            return
        turned_away = self._taken((name_or_id, index)) or TurnedAway()
        turned_away.told(batch, error)
        self._turned_away[name_or_id, index] = turned_away, now_ms
        self._batches_count += len(turned_away)
        self._forget_old(now_ms)

    def of(self, name: bytes, topic_id: bytes, index: int, now_ms: int) -> list[TurnedAway]:
        """What was told of one, which can be found now."""
        self._forget_old(now_ms)
        found = [self._taken((each, index)) for each in (name, topic_id)]
        return [each for each in found if each is not None]

    def _taken(self, key: tuple[bytes, int]) -> TurnedAway | None:
        found = self._turned_away.pop(key, None)
        if found is None:
            return None
        self._batches_count -= len(found[0])
        return found[0]

    def _forget_old(self, now_ms: int) -> None:
        while self._turned_away:
            oldest = next(iter(self._turned_away))
            if self._batches_count <= MAX_MISSED_BATCHES and now_ms - self._turned_away[oldest][1] < AWAITED_MS:
                return
            self._taken(oldest)
