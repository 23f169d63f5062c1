"""Producers that were told to send a batch again, and whose batches behind that one are therefore out of order.

Told that, librdkafka takes a new epoch, and sends all that it has not heard of under new numbers, that which is here
too. Told to try again, it does so with the old numbers. So what comes behind a batch that was turned away is refused
as that one was, until it is here.

A leader that is new does not know what the one before it has turned away, or has not answered yet: for a while it
refuses whatever is out of order as that one would.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.batch import BatchHeader

# Clients try again much sooner than that.
AWAITED_MS = 30_000
_TRY_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,  # the disk is full
)


class TurnedAway:
    __slots__ = ("_by_another", "_since_ms", "awaited")

    def __init__(self) -> None:
        # By producer: its epoch, and what it was told.
        self.awaited: dict[int, tuple[int, BrokerError]] = {}
        # What a leader that is new says instead.
        self._by_another: BrokerError | None = None
        self._since_ms: int | None = None

    @property
    def is_of_use(self) -> bool:
        return bool(self.awaited) or self._by_another is not None

    def led_anew(self, error: BrokerError | None) -> None:
        """`error`: another broker may have led until now."""
        self._by_another = error
        self._since_ms = None

    def told(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """`error`, remembered if a client answers it by sending the batch again."""
        if batch.producer_id >= 0 and error.code in _TRY_AGAIN:
            self.awaited[batch.producer_id] = batch.producer_epoch, error
        return error

    def instead_of(self, batch: BatchHeader, error: BrokerError) -> BrokerError:
        """What a batch is refused with that the log did not take."""
        if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return error
        epoch, earlier = self.awaited.get(batch.producer_id, (-1, error))
        return earlier if epoch == batch.producer_epoch else self._by_another or error

    def came(self, batch: BatchHeader) -> None:
        self.awaited.pop(batch.producer_id, None)

    def forget_old(self, now_ms: int) -> None:
        """To be asked from time to time while there are any."""
        if self._since_ms is None:
            self._since_ms = now_ms
        elif now_ms - self._since_ms >= AWAITED_MS:
            self.awaited.clear()
            self._by_another = None
            self._since_ms = None
