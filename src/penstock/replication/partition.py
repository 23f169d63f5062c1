"""One partition on this broker: its log, and while this broker leads it, its in-sync replicas and who waits for what.

What must stay true:

- Appends of one tick are staged in arrival order and written together; nothing is acknowledged before that write.
- acks=all is acknowledged when the high watermark passes the records. On topics that flush (flush.messages=1) that
  means fdatasync; on others the write itself.
- Consumers see records below the high watermark only; those that read committed data, below the last stable offset.
- A transactional batch enters only while its transaction is open, so none is left behind without an end (KIP-890).
- A duplicate of a batch is acknowledged no earlier than the batch itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.core.metrics import TopicMetrics
from penstock.core.topic_config import TopicConfig
from penstock.metadata.image import PartitionImage
from penstock.protocol.batch import LENGTH_END, BatchHeader, read_header
from penstock.protocol.control import EndMarker, build_end_marker
from penstock.protocol.validation import ProduceLimits
from penstock.replication.admission import AdmissionLanes
from penstock.replication.follower import Follower, FollowerState
from penstock.replication.isr import UNKNOWN_BROKER_EPOCH, UNKNOWN_OFFSET, Isr, Proposal
from penstock.replication.parking import ParkedFetch
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import FileSpan, LogPosition
from penstock.storage.producers import NO_OFFSET, DuplicateBatch
from penstock.storage.txn_index import AbortedTransaction

ACKS_ALL = -1
WRITES_REMEMBERED = 64


class Appender(Protocol):
    """Whoever waits for appends, each known by its slot: told once about each."""

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None: ...
    def failed(self, slot: int, error: BrokerError) -> None: ...


class _Append(NamedTuple):
    appender: Appender
    slot: int
    base_offset: int
    next_offset: int
    log_append_time_ms: int
    acks: int
    deadline_ms: float


class Replication(Protocol):
    """Who speaks with other brokers on behalf of partitions."""

    def proposed(self, partition: Partition, leader_epoch: int, proposal: Proposal) -> None:
        """As a leader it wants another in-sync set; `decided` or `undecided` is to tell it what became of that."""

    def flushed(self, partition: Partition) -> None:
        """As a follower it has more on disk than its leader knows."""

    @property
    def is_overdue(self) -> bool:
        """This broker's session was not renewed in time: another may lead what it believes to lead."""


def _not_leading(topic_partition: TopicPartition) -> BrokerError:
    return BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {topic_partition}")


class Partition:
    __slots__ = (
        "_agreed",
        "_broker_id",
        "_dirty_since_ms",
        "_flushed_by",
        "_flusher",
        "_has_replicas",
        "_is_plain",
        "_isr",
        "_replication",
        "_stable_position",
        "_stable_seen",
        "_staged",
        "_staged_bytes",
        "_staged_records",
        "_stamps",
        "_tick",
        "_unacknowledged",
        "_verifying",
        "_written",
        "admission",
        "config",
        "follower",
        "high_watermark",
        "is_internal",
        "leader_epoch",
        "limits",
        "log",
        "metrics",
        "offline",
        "refusal",
        "replica_waiters",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        log: Log,
        config: TopicConfig,
        *,
        broker_id: BrokerId,
        tick: Tick,
        flusher: Flusher,
        tasks: TaskGroup,
        metrics: TopicMetrics,
        replication: Replication | None = None,
        committed_offset: int | None = None,
    ) -> None:
        """`committed_offset` is what is known to be committed; None for a sole replica, which decides that itself."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.log = log
        self.leader_epoch = -1
        self.metrics = metrics
        # Why the log cannot be used any more.
        self.offline: BrokerError | None = None
        # What whoever wants to read or write is told; None while this broker leads.
        self.refusal: BrokerError | None = _not_leading(topic_partition)
        self.waiters: set[ParkedFetch] = set()
        # Replicas wait for what is written, consumers for what is committed.
        self.replica_waiters: set[ParkedFetch] = set()
        # While another broker leads.
        self.follower: Follower | None = None
        self.admission = AdmissionLanes(tasks, str(topic_partition))
        # A sole replica is its own quorum: whatever recovery kept of its log is committed, once it is as durable as the
        # topic asks for.
        self.high_watermark: LogPosition = log.flushed_position if config.flush_messages == 1 else log.end_position
        if committed_offset is not None and committed_offset < log.log_end_offset:
            self.high_watermark = log.position_of(max(committed_offset, log.log_start_offset))
        self._isr = Isr((broker_id,), self.high_watermark.offset, leader=broker_id)
        self._replication = replication
        self._has_replicas = False
        # What each replica has said to have on disk, in this leader epoch.
        self._flushed_by: dict[BrokerId, int] = {}
        # The processes of replicas whose logs agree with this one, by broker epoch: what others have is not to count.
        self._agreed: dict[BrokerId, int] = {}
        # Where recent writes ended, while there are replicas: the high watermark will come to most of these places.
        self._written: deque[LogPosition] = deque(maxlen=WRITES_REMEMBERED)
        self._broker_id = broker_id
        self._tick = tick
        self._flusher = flusher
        self._dirty_since_ms: int | None = None
        self._staged: list[_Append] = []
        self._staged_bytes = 0
        self._staged_records = 0
        self._unacknowledged: deque[_Append] = deque()
        # Where the last stable offset lies, when that is not the high watermark; and what it was at the last wake-up.
        self._stable_position = self.high_watermark
        self._stable_seen = self.last_stable_offset
        # Producers whose coordinator is being asked about their transaction; a marker ends that.
        self._verifying: dict[int, object] = {}
        self.configure(config)
        if log.is_dirty:
            self.flush()

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.limits = ProduceLimits.of(config)
        self.log.config = LogConfig.of(config)
        self._is_plain = self.limits.is_plain and not self.is_internal
        self._stamps = config.is_log_append_time
        self._isr.min_isr = config.min_insync_replicas

    # Leading

    @property
    def is_led(self) -> bool:
        return self.refusal is None

    def lead(self, state: PartitionImage, serving: Mapping[BrokerId, int], lag_max_ms: int, now_ms: int) -> None:
        """This broker leads from now on, or goes on to lead in a later epoch or with other in-sync replicas."""
        if self.is_led and state.leader_epoch == self.leader_epoch:
            self._isr.serving = serving
            rose = self._isr.committed(state.isr, state.partition_epoch, self.log.end_position.offset, now_ms)
            self._recounted(rose)
            self._fail_what_has_too_few()
            return
        self.follower = None
        self.leader_epoch = state.leader_epoch
        self._flushed_by.clear()
        self._agreed.clear()
        self._written.clear()
        self._has_replicas = len(state.replicas) > 1
        if not self._has_replicas:
            self.high_watermark = self._held_position()
        self._isr = Isr(
            state.isr,
            self.high_watermark.offset,
            leader=self._broker_id,
            replicas=state.replicas,
            partition_epoch=state.partition_epoch,
            start_offset=self.log.log_end_offset,
            min_isr=self.config.min_insync_replicas,
            lag_max_ms=lag_max_ms,
            serving=serving,
            now_ms=now_ms,
        )
        self.refusal = self.offline
        if self.refusal is None:
            self._held_here(self._held_position())

    def stop_leading(self, leader_epoch: int) -> None:
        """Somebody else leads, or nobody. What is not committed yet may or may not be, in the end."""
        self.leader_epoch = leader_epoch
        if self._staged:
            self._write()
        # What is cut off as a follower, and written anew, ends elsewhere.
        self._written.clear()
        self._refuse(self.offline or _not_leading(self.topic_partition))

    def follow(self, leader_epoch: int) -> Follower:
        """Another broker leads: what this one has to do for that stands in the follower."""
        if self.follower is None:
            self.follower = Follower(self.log, leader_epoch, self.high_watermark.offset)
        else:
            self.follower.leader_changed(leader_epoch)
        return self.follower

    def followed(self) -> None:
        """The follower's log has grown or was cut: what is committed here is what the follower says."""
        assert self.follower is not None
        before, self.high_watermark = self.high_watermark, self._position_at(self.follower.high_watermark)
        if self.high_watermark.offset < before.offset:
            self._stable_position = self.high_watermark
            self._stable_seen = self.last_stable_offset
        if self.flushes and self.log.is_dirty:
            self.flush()

    def _fail_what_has_too_few(self) -> None:
        """Appended, and not to be committed before more replicas are in sync: better told now than at the timeout."""
        if len(self._isr.members) >= self.config.min_insync_replicas:
            return
        unacknowledged, self._unacknowledged = self._unacknowledged, deque()
        error = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{self.topic_partition}: {self._too_few()}")
        for append in unacknowledged:
            append.appender.failed(append.slot, error)

    def _too_few(self) -> str:
        return f"{len(self._isr.members)} in sync, min.insync.replicas={self.config.min_insync_replicas}"

    @property
    def is_shortening(self) -> bool:
        """Its log is being cut: nothing else may go on in it."""
        return self.follower is not None and self.follower.state is FollowerState.SHORTENING

    def _held_position(self) -> LogPosition:
        """Up to where this replica holds its log, as durably as the topic asks."""
        return self.log.flushed_position if self.flushes else self.log.end_position

    # Replicas

    def fetched_by(self, replica: BrokerId, broker_epoch: int, offset: int, now_ms: int) -> None:
        """A replica has all below `offset`, which agrees with this log. Raises BrokerError when it is not one."""
        known_epoch = self._agreed.get(replica, UNKNOWN_BROKER_EPOCH)
        if broker_epoch > known_epoch:
            self._agreed[replica] = broker_epoch
            self._flushed_by.pop(replica, None)
        elif broker_epoch < known_epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} is in epoch {known_epoch}")
        held = self._flushed_by.get(replica, UNKNOWN_OFFSET) if self.flushes else offset
        self._reported(replica, broker_epoch, offset, held, now_ms)

    def flushed_by(self, replica: BrokerId, broker_epoch: int, offset: int, flushed: int, now_ms: int) -> None:
        """The same of a replica that has fetched before, and how much of it is on its disk."""
        if self._agreed.get(replica) != broker_epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} has not fetched in this epoch")
        self._flushed_by[replica] = flushed
        self._reported(replica, broker_epoch, offset, flushed if self.flushes else offset, now_ms)

    def _reported(self, replica: BrokerId, broker_epoch: int, offset: int, held: int, now_ms: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        end_offset = self.log.end_position.offset
        if offset > end_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.topic_partition} ends at {end_offset}")
        self._recounted(self._isr.fetched(replica, broker_epoch, offset, held, end_offset, now_ms))
        if not self._isr.is_full:
            self.look_at_replicas(now_ms)

    def look_at_replicas(self, now_ms: int) -> None:
        """Who has fallen behind, and who could join: to be asked from time to time."""
        if not self.is_led or not self._has_replicas:
            return
        self._recounted(self._isr.tick(self.log.end_position.offset, now_ms))
        proposal = self._isr.propose(self.log.end_position.offset, now_ms)
        if proposal is not None and self._replication is not None:
            self._replication.proposed(self, self.leader_epoch, proposal)

    def decided(self, leader_epoch: int, proposal: Proposal, partition_epoch: int, now_ms: int) -> None:
        """The controller has accepted what was proposed."""
        if self.is_led and leader_epoch == self.leader_epoch:
            members = [member.broker_id for member in proposal.members]
            self._recounted(self._isr.committed(members, partition_epoch, self.log.end_position.offset, now_ms))

    def undecided(self, leader_epoch: int, proposal: Proposal, code: ErrorCode, now_ms: int) -> None:
        """It has refused, or nobody knows."""
        if self.is_led and leader_epoch == self.leader_epoch:
            self._recounted(self._isr.refused(proposal, code, self.log.end_position.offset, now_ms))

    def _recounted(self, rose: bool) -> None:
        if rose:
            self._committed_up_to(self._position_at(self._isr.high_watermark))
            self._acknowledge_committed()

    def _position_at(self, offset: int) -> LogPosition:
        for known in (self.log.end_position, self.log.flushed_position, self.high_watermark):
            if known.offset == offset:
                return known
        while self._written and self._written[0].offset <= offset:
            known = self._written.popleft()
            if known.offset == offset:
                return known
        return self.log.position_of(offset)

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        return self._isr.members

    @property
    def is_end_known(self) -> bool:
        """Whether what was committed before this leader is below its high watermark already (trap A11)."""
        return self._isr.is_settled

    def _refuse(self, error: BrokerError) -> None:
        self.refusal = error
        unacknowledged, self._unacknowledged = self._unacknowledged, deque()
        for append in unacknowledged:
            append.appender.failed(append.slot, error)
        self.wake_waiters()

    def takes_as_it_is(self, batch: BatchHeader, now_ms: int) -> bool:
        """Whether a sound batch may be appended unchanged and unopened, now."""
        limits = self.limits
        return (
            self._is_plain
            and not self.admission.waiting
            and batch.batch_length <= limits.max_message_bytes - LENGTH_END
            and batch.max_timestamp - now_ms <= limits.timestamp_after_max_ms
        )

    @property
    def max_batch_bytes(self) -> int:
        """What the log takes as one batch: a segment has to hold it, whatever max.message.bytes says."""
        return min(self.limits.max_message_bytes, self.log.config.segment_bytes)

    @property
    def flushes(self) -> bool:
        return self.config.flush_messages == 1

    # Appending

    def append(
        self,
        batch: memoryview,
        header: BatchHeader,
        acks: int,
        now_ms: int,
        deadline_ms: float,
        appender: Appender,
        slot: int,
        transaction_version: int = 0,
    ) -> None:
        """Stage one checked batch; `appender` hears the outcome. Raises BrokerError when it cannot even be staged."""
        if self.refusal is not None:
            raise self.refusal
        if acks == ACKS_ALL:
            if len(self._isr.members) < self.config.min_insync_replicas:
                raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.topic_partition}: {self._too_few()}")
        elif self._has_replicas and self._replication is not None and self._replication.is_overdue:
            # acks=all needs no such rule: what the other replicas do not fetch in this epoch is not committed.
            raise _not_leading(self.topic_partition)
        if not self._staged:
            self._tick.write(self._write)
        log_append_time_ms = header.max_timestamp if self._stamps else -1
        try:
            base_offset = self.log.stage(batch, header, self.leader_epoch, now_ms, transaction_version)
            next_offset = base_offset + header.last_offset_delta + 1
            self._staged_bytes += len(batch)
            self._staged_records += header.records_count
        except DuplicateBatch as original:
            base_offset, next_offset = original.base_offset, original.last_offset + 1
            if self._stamps:
                log_append_time_ms = original.timestamp
        self._staged.append(_Append(appender, slot, base_offset, next_offset, log_append_time_ms, acks, deadline_ms))

    # Transactions

    def needs_verification(self, batch: BatchHeader) -> bool:
        """Whether only its coordinator knows that a transactional batch belongs here: it is the first of its
        transaction, and not a repetition of one that has ended.
        """
        if self.is_in_transaction(batch.producer_id, batch.producer_epoch):
            return False
        entry = self.log.producers.entries.get(batch.producer_id)
        if entry is None or entry.producer_epoch != batch.producer_epoch:
            return True
        return all(
            each.base_sequence != batch.base_sequence or each.last_sequence != batch.last_sequence
            for each in entry.batches
        )

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here."""
        entry = self.log.producers.entries.get(producer_id)
        return (
            entry is not None and entry.producer_epoch == producer_epoch and entry.current_txn_first_offset != NO_OFFSET
        )

    def begin_verification(self, producer_id: int) -> object:
        """Before the coordinator is asked. What it answers is worth nothing once a marker has come here meanwhile."""
        return self._verifying.setdefault(producer_id, object())

    def end_verification(self, producer_id: int, guard: object) -> bool:
        """Whether the answer is still worth something. Two questions of one producer at a time are one."""
        is_current = self._verifying.get(producer_id) is guard
        if is_current:
            del self._verifying[producer_id]
        return is_current

    def append_marker(
        self, marker: EndMarker, transaction_version: int, now_ms: int, appender: Appender, slot: int
    ) -> None:
        """Ends a transaction here, committed or aborted. Raises BrokerError as `append` does."""
        self._verifying.pop(marker.producer_id, None)
        batch = memoryview(build_end_marker(marker, now_ms))
        self.append(batch, read_header(batch), ACKS_ALL, now_ms, math.inf, appender, slot, transaction_version)

    def aborted_in(self, span: FileSpan, offset: int, *, wait: bool = True) -> list[AbortedTransaction]:
        """What a reader of the span from `offset` has to leave out. Raises ColdRead as `read` does."""
        upper_offset = self.log.upper_offset_of(span, offset, self.last_stable_position(wait=wait), wait=wait)
        return self.log.aborted_transactions(offset, upper_offset, wait=wait)

    def _write(self) -> None:
        staged, self._staged = self._staged, []
        if not staged:
            return  # written when this broker stopped leading
        size, self._staged_bytes = self._staged_bytes, 0
        records, self._staged_records = self._staged_records, 0
        try:
            if self.offline is not None:
                raise self.offline
            end = self.log.write_staged()
        except BrokerError as error:
            self.metrics.produce_errors += 1
            for append in staged:
                append.appender.failed(append.slot, error)
            return
        self.metrics.bytes_in += size
        self.metrics.records_in += records
        if self.replica_waiters:
            for waiter in list(self.replica_waiters):
                waiter.arrived(size)
        if self._has_replicas:
            self._written.append(end)
        if self.flushes:
            self._acknowledge_written(staged)
            if self._unacknowledged or size:
                self.flush()
        else:
            if self._has_replicas:
                self._acknowledge_written(staged)
            else:
                self._unacknowledged.extend(staged)
            self._held_here(end)
            if self.log.has_rolled or end.offset - self.log.flushed_offset >= self.config.flush_messages:
                self.flush()

    def _acknowledge_written(self, staged: list[_Append]) -> None:
        for append in staged:
            if append.acks == ACKS_ALL and append.next_offset > self.high_watermark.offset:
                self._unacknowledged.append(append)
            else:
                self._acknowledge(append)

    def _acknowledge(self, append: _Append) -> None:
        append.appender.appended(append.slot, append.base_offset, append.log_append_time_ms, self.log.log_start_offset)

    def flush(self) -> None:
        if self.is_shortening:
            return
        self._flusher.request(self.log, self._flushed)

    def flush_if_due(self, now_ms: int) -> None:
        """flush.ms: nothing written stays off the disk for longer than that, whoever waits for it or not."""
        if not self.log.is_dirty:
            self._dirty_since_ms = None
        elif self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        elif now_ms - self._dirty_since_ms >= self.config.flush_ms:
            self._dirty_since_ms = None
            self.flush()

    def _flushed(self) -> None:
        if self.offline is not None:
            return
        if self.log.is_failed:
            self.fail(BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: a flush failed"))
        elif self.follower is None:
            self._held_here(self._held_position())
        elif self._replication is not None:
            self._replication.flushed(self)

    def _held_here(self, position: LogPosition) -> None:
        """This replica holds, as durably as the topic asks, everything up to `position`."""
        if self.refusal is not None:
            return
        isr = self._isr
        if isr.held(self._broker_id, position.offset):
            # With one replica the offset that became committed is always the one just reported.
            is_here = isr.high_watermark == position.offset
            self._committed_up_to(position if is_here else self._position_at(isr.high_watermark))
        self._acknowledge_committed()

    def _committed_up_to(self, position: LogPosition) -> None:
        before, self.high_watermark = self.high_watermark, position
        if self.waiters:
            self._wake(before, position)

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

    def _acknowledge_committed(self) -> None:
        unacknowledged, committed = self._unacknowledged, self.high_watermark.offset
        # A duplicate may stand behind records newer than itself; waiting for those too costs it nothing but a moment.
        while unacknowledged and unacknowledged[0].next_offset <= committed:
            append = unacknowledged.popleft()
            self._acknowledge(append)

    def expire(self, now_ms: int) -> None:
        """Tell whoever waited past their deadline that it is unknown whether the records will be committed."""
        if not any(append.deadline_ms <= now_ms for append in self._unacknowledged):
            return
        still_waiting: deque[_Append] = deque()
        error = BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"{self.topic_partition}: not committed within the timeout")
        for append in self._unacknowledged:
            if append.deadline_ms <= now_ms:
                append.appender.failed(append.slot, error)
            else:
                still_waiting.append(append)
        self._unacknowledged = still_waiting

    def fail(self, error: BrokerError) -> None:
        """The log can no longer be trusted to keep what it is given: nothing that waits is acknowledged any more."""
        self.offline = error
        self._refuse(error)

    def wake_waiters(self) -> None:
        for waiter in (*self.waiters, *self.replica_waiters):
            waiter.wake()

    @property
    def is_quiet(self) -> bool:
        return not self._staged and not self._unacknowledged

    # Reading

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
        self, offset: int, max_bytes: int, *, at_least_one: bool, stable_only: bool = False, wait: bool = False
    ) -> FileSpan | None:
        """Records from `offset` on, up to the high watermark or the last stable offset; None when there are none yet.

        Raises ColdRead when that would wait for the disk and `wait` is False; with `wait` it runs in a file thread.
        """
        if self.refusal is not None:
            raise self.refusal
        if not self.log.log_start_offset <= offset <= self.log.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset}, log {self.log.log_start_offset}..{self.log.log_end_offset}",
            )
        upper = self.last_stable_position(wait=wait) if stable_only else self.high_watermark
        if offset >= upper.offset:
            return None
        return self.log.read(offset, max_bytes, upper, at_least_one=at_least_one, wait=wait)

    def read_waiting(self, offset: int, max_bytes: int, at_least_one: bool, stable_only: bool) -> FileSpan | None:
        """`read` for a file thread."""
        return self.read(offset, max_bytes, at_least_one=at_least_one, stable_only=stable_only, wait=True)

    def count_records(self, offset: int, span: FileSpan) -> int:
        """How many records a span from `offset` holds: exact when it ends at the high watermark, else by their size."""
        committed = self.high_watermark
        if span.position + span.length == committed.position and self.log.end_position.position >= committed.position:
            return committed.offset - offset
        held = self.log.log_end_offset - self.log.log_start_offset
        return min(committed.offset - offset, span.length * held // max(1, self.log.size_bytes))

    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: -1 means everything committed. Returns the new log start offset."""
        target = self.high_watermark.offset if offset == -1 else offset
        if not 0 <= target <= self.high_watermark.offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: offset {offset}, high watermark {self.high_watermark.offset}",
            )
        self.log.move_log_start(target)
        return self.log.log_start_offset
