"""Producers that were told to send a batch again, and whose batches behind that one are therefore too early.

Told that they are out of order, librdkafka takes a new epoch, and sends all that it has not heard of under new numbers,
that which is here too. Told to try again, it does so with the old numbers. So what comes behind a batch that was turned
away is refused as that one was, until it is here. That goes for a producer of which nothing is here yet as well: taken
as the first of it, a batch would stand before the one that it follows for good.

A leader that is new does not know what the one before it has turned away, or has not answered yet: for a while it
refuses whatever is too early as that one would.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import BatchHeader

# Clients try again much sooner than that.
AWAITED_MS = 30_000
_TRY_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,  # the disk is full
)


class _Awaited(NamedTuple):
    """The first batch of a producer that was turned away, and what it was told."""

    producer_epoch: int
    base_sequence: int
    error: BrokerError


class TurnedAway:
    __slots__ = ("_awaited", "_by_another", "_since_ms", "is_of_use")

    def __init__(self) -> None:
        # Whether any of this is to be asked at all: it seldom is, and appends are many.
        self.is_of_use = False
        self._awaited: dict[int, _Awaited] = {}
        # What a leader that is new says instead.
        self._by_another: BrokerError | None = None
        self._since_ms: int | None = None

    def led_anew(self, error: BrokerError | None) -> None:
        """`error`: another broker may have led until now."""
        self._by_another = error
        self._begin()

    def told(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """`error`, remembered if a client answers it by sending the batch again."""
        if batch.producer_id >= 0 and error.code in _TRY_AGAIN:
            if self._of(batch) is None:
                self._awaited[batch.producer_id] = _Awaited(batch.producer_epoch, batch.base_sequence, error.anew())
            self._begin()
        return error

    def check_first(self, batch: BatchHeader, known: Container[int]) -> None:
        """Raises for a batch that would be the first of its producer here, and may not be."""
        if batch.base_sequence <= 0 or batch.producer_id in known:
            return
        if self._by_another is not None:
            raise self._by_another.anew()
        awaited = self._of(batch)
        if awaited is not None and awaited.base_sequence != batch.base_sequence:
            raise awaited.error.anew()

    def instead_of(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """What a batch is refused with that the log did not take."""
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error
        awaited = self._of(batch)
        instead = awaited.error if awaited is not None else self._by_another
        return instead.anew() if instead is not None else error

    def came(self, batch: BatchHeader) -> None:
        self._awaited.pop(batch.producer_id, None)

    def forget_old(self, now_ms: int) -> None:
        """To be asked from time to time while it is of use."""
        if self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= AWAITED_MS:
            self._awaited.clear()
            self._by_another = None
            self.is_of_use = False

    def _of(self, batch: BatchHeader) -> _Awaited | None:
        awaited = self._awaited.get(batch.producer_id)
        return awaited if awaited is not None and awaited.producer_epoch == batch.producer_epoch else None

    def _begin(self) -> None:
        """Forgets all at once, long enough after the last."""
        self._since_ms = None
        self.is_of_use = bool(self._awaited) or self._by_another is not None
