"""What a producer has to do for one partition: batches with sequences, in order, until each is acknowledged.

What must stay true:
- Batches are sent in the order of their sequences. Several may be under way, all with the same leader; but the first of
  all, and after trouble the first again, goes alone, since a leader that knows nothing of a producer takes whatever
  sequence comes first.
- When one fails in passing, nothing more is sent before all that are under way are answered or given up; then all that
  are not acknowledged are sent again, in order, with the sequences that they had.
- A leader takes a sequence behind the one before it only, so who has a batch has all before it. One that takes a batch
  behind another that it has just refused knows nothing of the producer any more: that is the end of it.
- A leader knows batches again that come twice, but one that was restarted may know the last one only (Kafka does), and
  says of others that they are out of order. Then what may have arrived is asked for from the last to the first; only if
  nothing of it is known, records are lost that were acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import MAX_SEQUENCE
from penstock.wire.cluster import Node
from penstock.wire.errors import UnknownTopic, WireError
from penstock.wire.patience import MAX_PAUSE_S, PAUSE_GROWTH


@dataclass(slots=True, eq=False)
class Sealed:
    """A batch as it is sent, however often."""

    lane: Lane
    batch: memoryview
    count: int
    tries: int = 0
    may_be_there: bool = False  # an attempt ended without an answer, or with one that leaves it open
    is_refused: bool = False  # the last answer said that it is not there


class StateLost(Exception):
    """The leader has a batch without one before it."""


@dataclass(slots=True)
class Trouble:
    """Since when nothing was acknowledged, and why."""

    error: WireError
    since_s: float
    retry_at_s: float
    pause_s: float
    unknown_since_s: float | None


@dataclass(slots=True, eq=False)
class Lane:
    partition: TopicPartition
    next_sequence: int = 0
    node: Node | None = None  # the leader that has what is under way
    trouble: Trouble | None = None
    _waiting: deque[Sealed] = field(default_factory=deque)  # those under way come first
    _sent: int = 0
    _unanswered: int = 0
    _is_known: bool = False  # to the leader: something was acknowledged since the last trouble
    _is_draining: bool = False
    _is_doubted: bool = False  # the first one was out of order, although it may be in the log
    _probed: int | None = None  # which one is asked for, of those that may have arrived

    @property
    def is_idle(self) -> bool:
        """Everything is acknowledged."""
        return not self._waiting

    @property
    def has_unanswered(self) -> bool:
        return self._unanswered > 0

    def append(self, batch: memoryview, count: int) -> Sealed:
        sealed = Sealed(self, batch, count)
        self._waiting.append(sealed)
        self.next_sequence = (self.next_sequence + count) & MAX_SEQUENCE  # after 2^31-1 comes 0
        return sealed

    def next_batch(self, now_s: float) -> Sealed | None:
        """What may be sent now."""
        if self._is_draining or (self.trouble is not None and now_s < self.trouble.retry_at_s):
            return None
        if self._unanswered and (self._probed is not None or not self._is_known):
            return None
        at = self._sent if self._probed is None else self._probed
        return self._waiting[at] if at < len(self._waiting) else None

    def led_by(self, node: Node) -> None:
        if node != self.node:
            self._probed = None  # what another one has is another question
        self.node = node

    def sent(self, sealed: Sealed) -> None:
        sealed.tries += 1
        sealed.is_refused = False
        self._unanswered += 1
        if self._probed is None:
            assert self._waiting[self._sent] is sealed
            self._sent += 1

    def acknowledged(self, sealed: Sealed, now_s: float) -> list[Sealed]:
        """This one, and all before it that were not yet: they are in the log as well. Raises StateLost."""
        done = [self._waiting.popleft()]
        while done[-1] is not sealed:
            if done[-1].is_refused and not done[-1].may_be_there:
                raise StateLost
            done.append(self._waiting.popleft())
        self._sent = max(0, self._sent - len(done))
        self._is_known, self._is_doubted, self._probed = True, False, None
        if self.is_idle or not self._is_draining:
            self.trouble = None
        elif self.trouble is not None:
            self.trouble.since_s = now_s
        self._answered()
        return done

    def out_of_order(self, sealed: Sealed, error: WireError, now_s: float, first_pause_s: float) -> bool:
        """True: what was acknowledged is not there any more. Else it is as if it had failed, and may be in the log."""
        if self._probed is not None:
            self._unanswered -= 1
            self._probed -= 1
            return self._probed < 0
        if self._waiting[0] is sealed:  # or else one before it has failed
            if sealed.tries == 1:
                return True
            self._is_doubted = True
        self._failed(error, now_s, first_pause_s)
        return False

    def refused(self, sealed: Sealed, error: WireError, now_s: float, first_pause_s: float) -> None:
        """For now, and nothing of it was written."""
        sealed.is_refused = True
        self._failed(error, now_s, first_pause_s)

    def failed(self, sealed: Sealed, error: WireError, now_s: float, first_pause_s: float) -> None:
        """A batch that was under way; it may have arrived."""
        sealed.may_be_there = True
        self._failed(error, now_s, first_pause_s)

    def _failed(self, error: WireError, now_s: float, first_pause_s: float) -> None:
        self._is_draining = True
        self._probed = None
        self.delayed(error, now_s, first_pause_s)
        self._answered()

    def delayed(self, error: WireError, now_s: float, first_pause_s: float) -> None:
        """Nobody could be asked, or somebody says no for now."""
        before = self.trouble
        unknown_since_s = None
        if isinstance(error, UnknownTopic):
            unknown_since_s = now_s if before is None or before.unknown_since_s is None else before.unknown_since_s
        if before is None:
            self.trouble = Trouble(error, now_s, now_s + first_pause_s, first_pause_s, unknown_since_s)
            return
        before.error, before.unknown_since_s = error, unknown_since_s
        if now_s >= before.retry_at_s:  # of several batches that fail together, one counts
            before.pause_s = min(before.pause_s * PAUSE_GROWTH, MAX_PAUSE_S)
            before.retry_at_s = now_s + before.pause_s

    def rested(self, for_s: float) -> None:
        """Nobody tried for so long: that is not the brokers' doing."""
        if self.trouble is not None:
            self.trouble.since_s += for_s
            if self.trouble.unknown_since_s is not None:
                self.trouble.unknown_since_s += for_s

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered == 0 and self._is_draining:
            self._is_draining = self._is_known = False
            self._sent = 0
            if self._is_doubted:
                self._is_doubted = False
                self._probed = sum(1 for each in self._waiting if each.tries) - 1
