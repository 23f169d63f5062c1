"""A partition as readers see it: what of its log is visible to whom, and who waits for more.

Consumers see records below the high watermark only; those that read committed data, below the last stable offset.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
from penstock.replication.fetch_session import Served
from penstock.replication.follower import Follower
from penstock.replication.parking import ParkedFetch
from penstock.storage.log import Log
from penstock.storage.log_file import FileSpan, LogPosition
from penstock.storage.txn_index import AbortedTransaction


def not_leading(topic_partition: TopicPartition) -> BrokerError:
    return BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {topic_partition}")


class ReadablePartition:
    __slots__ = (
        "_stable_position",
        "_stable_seen",
        "follower",
        "high_watermark",
        "is_forsaken",
        "leader_epoch",
        "log",
        "offline",
        "refusal",
        "replica_waiters",
        "topic_partition",
        "waiters",
    )

    def __init__(self, topic_partition: TopicPartition, log: Log, high_watermark: LogPosition) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.leader_epoch = -1
        self.high_watermark = high_watermark
        # What whoever wants to read or write is told; None while this broker leads.
        self.refusal: BrokerError | None = not_leading(topic_partition)
        # It leads as far as it knows, but nothing more can be committed: others may have gone on without it.
        self.is_forsaken = False
        # Why the log cannot be used any more.
        self.offline: BrokerError | None = None
        # While another broker leads.
        self.follower: Follower | None = None
        self.waiters: set[ParkedFetch] = set()
        # Replicas wait for what is written, consumers for what is committed.
        self.replica_waiters: dict[Served, None] = {}
        # Where the last stable offset lies, when that is not the high watermark; and what it was at the last wake-up.
        self._stable_position = high_watermark
        self._stable_seen = self.last_stable_offset

    @property
    def is_led(self) -> bool:
        return self.refusal is None

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A3: a client with another idea of the leader epoch must refresh its metadata before it is served."""
        if current_leader_epoch == -1 or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        else:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        raise BrokerError(code, f"{self.topic_partition}: epoch {current_leader_epoch} asked, {self.leader_epoch} here")

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided, and its outcome committed."""
        committed = self.high_watermark.offset
        unstable = self.log.first_unstable_offset(committed)
        return committed if unstable is None else min(unstable, committed)

    def last_stable_position(self, *, wait: bool) -> LogPosition:
        committed = self.high_watermark
        unstable = self.log.first_unstable_offset(committed.offset)
        if unstable is None or unstable >= committed.offset:
            return committed
        stable = self._stable_position
        if stable.offset != unstable:
            stable = self._stable_position = self.log.position_of(unstable, wait=wait)
        return stable

    def stable_position_waiting(self) -> LogPosition:
        """`last_stable_position` for a file thread."""
        return self.last_stable_position(wait=True)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        stable_only: bool = False,
        from_followers: bool = False,
        wait: bool = False,
    ) -> FileSpan | None:
        """Records from `offset` on, up to the high watermark or the last stable offset; None when there are none yet.
        `from_followers`: also if another broker leads, and this one follows.

        Raises ColdRead when that would wait for the disk and `wait` is False; with `wait` it runs in a file thread.
        """
        if self.refusal is not None:
            if not from_followers or self.follower is None or self.offline is not None:
                raise self.refusal.anew()
            self.follower.check_readable(offset)
        if not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset}, log {self.log.log_start_offset}..{self.log.log_end_offset}",
            )
        upper = self.last_stable_position(wait=wait) if stable_only else self.high_watermark
        if offset >= upper.offset:
            if self.is_forsaken:
                raise not_leading(self.topic_partition)  # what there is it may have, but not wait for more
            return None
        return self.log.read(offset, max_bytes, upper, at_least_one=at_least_one, wait=wait)

    def read_waiting(
        self, offset: int, max_bytes: int, at_least_one: bool, stable_only: bool, from_followers: bool
    ) -> FileSpan | None:
        """`read` for a file thread."""
        return self.read(
            offset,
            max_bytes,
            at_least_one=at_least_one,
            stable_only=stable_only,
            from_followers=from_followers,
            wait=True,
        )

    def count_records(self, offset: int, span: FileSpan) -> int:
        """How many records a span from `offset` holds: exact when it ends at the high watermark, else by their size."""
        committed = self.high_watermark
        if span.position + span.length == committed.position and self.log.end_position.position >= committed.position:
            return committed.offset - offset
        held = self.log.log_end_offset - self.log.log_start_offset
        return min(committed.offset - offset, span.length * held // max(1, self.log.size_bytes))

    def aborted_in(self, span: FileSpan, offset: int, *, wait: bool = True) -> list[AbortedTransaction]:
        """What a reader of the span from `offset` has to leave out. Raises ColdRead as `read` does."""
        upper_offset = self.log.upper_offset_of(span, offset, self.last_stable_position(wait=wait), wait=wait)
        return self.log.aborted_transactions(offset, upper_offset, wait=wait)

    # Waiting

    def _wake(self, before: LogPosition, now: LogPosition) -> None:
        stable_before, self._stable_seen = self._stable_seen, self.last_stable_offset
        has_unstable = self._stable_seen < now.offset or stable_before < before.offset
        has_rolled = before.segment_base_offset != now.segment_base_offset
        for waiter in list(self.waiters):
            if waiter.stable_only and has_unstable:
                if self._stable_seen > stable_before:
                    waiter.wake()
            elif has_rolled:  # as in Kafka: a fetch does not wait across a roll
                waiter.wake()
            else:
                waiter.arrived(now.position - before.position)

    def wake_waiters(self) -> None:
        for waiter in list(self.waiters):
            waiter.wake()
        for replica in list(self.replica_waiters):
            replica.wake()
