"""One partition on this broker: its log, and while this broker leads it, its in-sync replicas and who waits for what.

What must stay true:

- Appends of one tick are staged in arrival order and written together; nothing is acknowledged before that write.
- acks=all is acknowledged when the high watermark passes the records. On topics that flush (flush.messages=1) that
  means fdatasync; on others the write itself.
- A duplicate of a batch is acknowledged no earlier than the batch itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from penstock.core.config_values import LONG_MAX
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
from penstock.replication.appends import ACKS_ALL, Append, Appender, Repetition, Unacknowledged
from penstock.replication.follower import Follower, FollowerState
from penstock.replication.isr import Isr, Proposal
from penstock.replication.positions import KnownPositions, position_or
from penstock.replication.readable_partition import ReadablePartition, not_leading
from penstock.replication.throttle import is_listed
from penstock.replication.turned_away import TurnedAway
from penstock.replication.verification import Verification
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.cleaning_state import EVERYWHERE
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.storage.log_config import LogConfig
from penstock.storage.log_file import LogPosition
from penstock.storage.producers import NO_OFFSET, DuplicateBatch, RepeatedBatch

# Followers ask again twice a second (replica.fetch.wait.max.ms).
SILENT_MS = 2_000


class Replication(Protocol):
    """Who speaks with other brokers on behalf of partitions."""

    def proposed(self, partition: Partition, leader_epoch: int, proposal: Proposal) -> None:
        """As a leader it wants another in-sync set; `decided` or `undecided` is to tell it what became of that."""

    def progressed(self, partition: Partition) -> None:
        """As a follower it has more on disk, or compacted, than its leader knows."""

    @property
    def is_overdue(self) -> bool:
        """This broker's session was not renewed in time: another may lead what it believes to lead."""


class Partition(ReadablePartition):
    __slots__ = (
        "_dirty_since_ms",
        "_flusher",
        "_flushes_in_time",
        "_has_replicas",
        "_is_plain",
        "_isr",
        "_positions",
        "_replication",
        "_replication_factor",
        "_staged",
        "_staged_bytes",
        "_staged_records",
        "_stamps",
        "_tick",
        "_told_removable_end",
        "_unacknowledged",
        "admission",
        "broker_id",
        "config",
        "is_internal",
        "is_throttled_as_follower",
        "is_throttled_as_leader",
        "limits",
        "metrics",
        "min_isr",
        "topic_id",
        "turned_away",
        "verification",
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
        # A sole replica is its own quorum: whatever recovery kept of its log is committed, once it is as durable as the
        # topic asks for.
        high_watermark = log.flushed_position if config.flush_messages == 1 else log.end_position
        if committed_offset is not None and committed_offset < log.log_end_offset:
            # A log that is damaged there must not keep the broker from starting: others may be sound.
            first = log.segments[0].base_offset
            committed_offset = max(committed_offset, log.log_start_offset)
            high_watermark = position_or(log, committed_offset, LogPosition(first, first, 0))
        super().__init__(topic_partition, log, high_watermark)
        self.topic_id = topic_id
        self.is_internal = topic_partition.topic in INTERNAL_TOPICS
        self.metrics = metrics
        self.admission = AdmissionLanes(tasks, str(topic_partition))
        self._isr = Isr((broker_id,), self.high_watermark.offset, leader=broker_id)
        self._replication = replication
        self._has_replicas = False
        self._replication_factor = 1
        self._positions = KnownPositions(log)
        # As the leader last said.
        self._told_removable_end = 0
        self.broker_id = broker_id
        self._tick = tick
        self._flusher = flusher
        self._dirty_since_ms: int | None = None
        self._staged: list[Append] = []
        self._staged_bytes = 0
        self._staged_records = 0
        self.turned_away = TurnedAway()
        self._unacknowledged = Unacknowledged()
        self.verification = Verification(log)
        self.configure(config)
        if log.is_dirty and log.flushed_offset == log.log_end_offset:
            self.flush()  # files that are new; records of a topic left to the page cache wait for housekeeping

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.limits = ProduceLimits.of(config)
        self.log.config = LogConfig.of(config)
        self._is_plain = self.limits.is_plain and not self.is_internal
        self._stamps = config.is_log_append_time
        self._flushes_in_time = config.flush_ms < LONG_MAX
        self._count_needed()
        self._isr.min_isr = self.min_isr
        partition = self.topic_partition.partition
        self.is_throttled_as_leader = is_listed(config.leader_replication_throttled_replicas, partition, self.broker_id)
        self.is_throttled_as_follower = is_listed(
            config.follower_replication_throttled_replicas, partition, self.broker_id
        )
        if self.flushes and self.log.is_dirty:
            self.flush()  # what a crash left, or what was written while the topic did not ask for it

    def _count_needed(self) -> None:
        """How many must be in sync to commit: never more than there are to be replicas. The controller counts alike."""
        self.min_isr = min(self.config.min_insync_replicas, self._replication_factor)

    # Leading

    def lead(self, state: PartitionImage, serving: Mapping[BrokerId, int], lag_max_ms: int, now_ms: int) -> None:
        """This broker leads from now on, or goes on to lead in a later epoch or with other in-sync replicas."""
        self._replication_factor = state.replication_factor
        self._count_needed()
        self._has_replicas = len(state.replicas) > 1
        if self.is_led and state.leader_epoch == self.leader_epoch:
            self._lead_on(state, serving, now_ms)
            return
        # In the first epoch of all, nobody has led before.
        is_from_another = state.leader_epoch > 0 and (self._has_replicas or self.follower is not None)
        self.turned_away.led_anew(not_leading(self.topic_partition) if is_from_another else None)
        self.follower = None
        self.is_forsaken = False
        self.leader_epoch = state.leader_epoch
        self._positions.forget()
        held = self._held_position()
        if not self._has_replicas and held.offset > self.high_watermark.offset:
            self.high_watermark = held  # what was committed before stays so, even if the topic asks for more now
        self._isr = Isr(
            state.isr,
            self.high_watermark.offset,
            leader=self.broker_id,
            replicas=state.replicas,
            partition_epoch=state.partition_epoch,
            start_offset=self.log.log_end_offset,
            min_isr=self.min_isr,
            lag_max_ms=lag_max_ms,
            serving=serving,
            now_ms=now_ms,
        )
        self._isr.spoilt = frozenset(state.spoilt)
        self.refusal = self.offline
        if self.refusal is None:
            self._held_here(self._held_position())

    def _lead_on(self, state: PartitionImage, serving: Mapping[BrokerId, int], now_ms: int) -> None:
        """In the same epoch. Replicas may have been added; with one that goes, another epoch begins."""
        isr, end_offset = self._isr, self.log.end_position.offset
        isr.serving = serving
        isr.spoilt = frozenset(state.spoilt)
        isr.min_isr = self.min_isr
        # First who is in sync: whoever is that has been a replica before.
        rose = isr.committed(state.isr, state.partition_epoch, end_offset, now_ms)
        if isr.replicas != frozenset(state.replicas):
            rose |= isr.replicas_changed(state.replicas, end_offset, now_ms)
        self._recounted(rose)
        self._fail_what_has_too_few()

    def stop_leading(self, leader_epoch: int) -> None:
        """Somebody else leads, or nobody. What is not committed yet may or may not be, in the end."""
        self.leader_epoch = leader_epoch
        self.is_forsaken = False
        if self._staged:
            self._write()
        self._positions.forget()
        self._refuse(self.offline or not_leading(self.topic_partition))

    def follow(self, leader_epoch: int) -> Follower:
        """Another broker leads: what this one has to do for that stands in the follower."""
        if self.follower is None:
            self.follower = Follower(self.log, leader_epoch, self.high_watermark.offset)
        else:
            self.follower.leader_changed(leader_epoch)
            self.wake_waiters()
        return self.follower

    def followed(self) -> None:
        """The follower's log has grown or was cut: what is committed here is what the follower says."""
        assert self.follower is not None
        self._positions.written(self.log.end_position)
        before = self.high_watermark
        self.high_watermark = self._positions.at(self.follower.high_watermark, before)
        if self.high_watermark.offset < before.offset:
            self._stable_position = self.high_watermark
            self._stable_seen = self.last_stable_offset
        elif self.waiters and self.high_watermark.offset > before.offset:
            self._wake(before, self.high_watermark)
        if self.flushes and self.log.is_dirty:
            self.flush()

    def _fail_what_has_too_few(self) -> None:
        """Appended, and not to be committed before more replicas are in sync: better told now than at the timeout."""
        if len(self._isr.members) >= self.min_isr:
            return
        self._unacknowledged.fail(
            BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"{self.topic_partition}: {self._too_few()}")
        )

    def _too_few(self) -> str:
        return f"{len(self._isr.members)} in sync, min.insync.replicas={self.min_isr}"

    @property
    def is_shortening(self) -> bool:
        """Its log is being cut: nothing else may go on in it."""
        return self.follower is not None and self.follower.state is FollowerState.SHORTENING

    def _held_position(self) -> LogPosition:
        """Up to where this replica holds its log, as durably as the topic asks."""
        return self.log.flushed_position if self.flushes else self.log.end_position

    # Replicas

    def fetched_by(
        self, replica: BrokerId, broker_epoch: int, offset: int, now_ms: int, *, log_start_offset: int = 0
    ) -> None:
        """A replica has all below `offset`, which agrees with this log. Raises BrokerError when it is not one."""
        end_offset = self._checked_end(offset)
        held_offset = None if self.flushes else offset
        rose = self._isr.fetched(replica, broker_epoch, offset, held_offset, end_offset, now_ms)
        self._isr.starts_at(replica, log_start_offset)
        self._heard_of(rose, now_ms)

    def flushed_by(
        self, replica: BrokerId, broker_epoch: int, offset: int, flushed: int, now_ms: int, cleaned: int = 0
    ) -> None:
        """The same of a replica that has fetched before, and how much of it is on its disk, and compacted."""
        end_offset = self._checked_end(offset)
        rose = self._isr.flushed(
            replica,
            broker_epoch,
            offset,
            flushed,
            end_offset,
            now_ms,
            is_needed=self.flushes,
            cleaned_offset=cleaned,
        )
        self._heard_of(rose, now_ms)

    def _checked_end(self, offset: int) -> int:
        """Where this log ends; beyond that nobody can have anything of it."""
        if self.refusal is not None:
            raise self.refusal.anew()
        end_offset = self.log.end_position.offset
        if offset > end_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.topic_partition} ends at {end_offset}")
        return end_offset

    def _heard_of(self, rose: bool, now_ms: int) -> None:
        self._recounted(rose)
        if not self._isr.is_full:
            self.look_at_replicas(now_ms)

    def followers_with(self, offset: int) -> Mapping[BrokerId, int]:
        """In-sync followers that a consumer can read from `offset` on from, and where their logs end."""
        return self._isr.followers_with(offset) if self._has_replicas else {}

    def look_around(self, now_ms: int, *, is_overdue: bool) -> None:
        """What only time brings about. Called twice a second for thousands of partitions, most of which are idle.

        `is_overdue`: this broker's session was not renewed in time.
        """
        if is_overdue or self.is_forsaken:
            self._look_for_contact(is_overdue, now_ms)
        if self._unacknowledged.waiting:
            self.expire(now_ms)
        if self.turned_away.is_of_use:
            self.turned_away.forget_old(now_ms)
        if self._flushes_in_time:
            self.flush_if_due(now_ms)
        if self._has_replicas and self.refusal is None:
            self.look_at_replicas(now_ms)

    @property
    def removable_end(self) -> int:
        """Below it compaction may drop tombstones and markers: no replica has anything that they delete (trap D4)."""
        if self.is_led:
            return self._isr.cleaned_everywhere(self.log.cleaned_offset) if self._has_replicas else EVERYWHERE
        return self._told_removable_end

    def ask_for_removable_end(self) -> None:
        """Of the leader, as a follower that has compacted more than it knows all others to have."""
        if (
            self.follower is not None
            and self._replication is not None
            and self._told_removable_end < self.log.cleaned_offset
        ):
            self._replication.progressed(self)

    def removable_up_to(self, offset: int) -> None:
        """The leader says so. It stays true: what is below is cleaned wherever it is, and whoever copies it later
        copies it so.
        """
        self._told_removable_end = max(self._told_removable_end, offset)

    def replicas_away(self, limit_ms: int, now_ms: int) -> list[BrokerId]:
        """Those out of sync that have not been heard of for so long."""
        return self._isr.away(limit_ms, now_ms) if self.is_led else []

    def look_at_replicas(self, now_ms: int) -> None:
        """Who has fallen behind, and who could join: to be asked from time to time."""
        if not self.is_led or not self._has_replicas:
            return
        for waiter in self.replica_waiters:
            waiter.log_starts_at(self.log.log_start_offset)
        if self._isr.is_at_rest(self.log.end_position.offset, now_ms):
            return
        self._recounted(self._isr.tick(self.log.end_position.offset, now_ms))
        proposal = self._isr.propose(self.log.end_position.offset, now_ms)
        if proposal is not None and self._replication is not None:
            self._replication.proposed(self, self.leader_epoch, proposal)

    def _look_for_contact(self, is_overdue: bool, now_ms: int) -> None:
        """Clients believe who says to lead. One that is cut off must say so, or they stay with it for good."""
        if not self.is_led_for_others:
            return
        asked_ms = {each.session.replica: each.session.asked_ms for each in self.replica_waiters}
        is_forsaken = is_overdue and self._isr.is_silent(SILENT_MS, now_ms, asked_ms)
        was_forsaken, self.is_forsaken = self.is_forsaken, is_forsaken
        if self.is_forsaken and not was_forsaken:
            self._unacknowledged.fail(not_leading(self.topic_partition))
            self.wake_waiters()

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
            self._committed_up_to(self._positions.at(self._isr.high_watermark, self.high_watermark))
            self._unacknowledged.committed(self.high_watermark.offset, self.log.log_start_offset)

    @property
    def is_led_for_others(self) -> bool:
        """It leads, and there are other replicas."""
        return self.is_led and self._has_replicas

    @property
    def in_sync(self) -> frozenset[BrokerId]:
        return self._isr.members

    @property
    def is_end_known(self) -> bool:
        """Whether what was committed before this leader is below its high watermark already (trap A11)."""
        return self._isr.is_settled

    def _refuse(self, error: BrokerError) -> None:
        self.refusal = error
        self._unacknowledged.fail(error)
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
            raise self.turned_away.told(header, self.refusal.anew())
        if self.is_forsaken:
            raise self.turned_away.told(header, not_leading(self.topic_partition))
        if acks == ACKS_ALL:
            if len(self._isr.members) < self.min_isr:
                too_few = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.topic_partition}: {self._too_few()}")
                raise self.turned_away.told(header, too_few)
        elif self._has_replicas and self._replication is not None and self._replication.is_overdue:
            # acks=all needs no such rule: what the other replicas do not fetch in this epoch is not committed.
            raise self.turned_away.told(header, not_leading(self.topic_partition))
        if self.turned_away.is_of_use:
            self.turned_away.check_first(header, self.log.producers.entries)
        if not self._staged:
            self._tick.write(self._write)
        log_append_time_ms = header.max_timestamp if self._stamps else -1
        try:
            base_offset = self.log.stage(batch, header, self.leader_epoch, now_ms, transaction_version)
            next_offset = base_offset + header.last_offset_delta + 1
            self._staged_bytes += len(batch)
            self._staged_records += header.records_count
            if self.turned_away.is_of_use:
                self.turned_away.came(header)
        except DuplicateBatch as original:
            base_offset, next_offset = original.base_offset, original.last_offset + 1
            if self._stamps:
                log_append_time_ms = original.timestamp
        except RepeatedBatch as repeated:
            if acks != ACKS_ALL or repeated.before_offset <= self.high_watermark.offset:
                raise
            appender = Repetition(appender, repeated)
            base_offset, next_offset = NO_OFFSET, repeated.before_offset
        except BrokerError as error:
            raise self.turned_away.instead_of(header, error) from None
        self._staged.append(Append(appender, slot, base_offset, next_offset, log_append_time_ms, acks, deadline_ms))

    def append_marker(
        self, marker: EndMarker, transaction_version: int, now_ms: int, appender: Appender, slot: int
    ) -> None:
        """Ends a transaction here, committed or aborted. Raises BrokerError as `append` does."""
        self.verification.marked(marker.producer_id)
        batch = memoryview(build_end_marker(marker, now_ms))
        self.append(batch, read_header(batch), ACKS_ALL, now_ms, math.inf, appender, slot, transaction_version)

    def _write(self) -> None:
        staged, self._staged = self._staged, []
        if not staged:
            return  # written when this broker stopped leading
        size, self._staged_bytes = self._staged_bytes, 0
        records, self._staged_records = self._staged_records, 0
        batches = self.log.staged
        try:
            if self.offline is not None:
                raise self.offline.anew()
            end = self.log.write_staged()
        except BrokerError as error:
            self.metrics.produce_errors += 1
            for batch in batches:
                self.turned_away.told(read_header(batch.view), error)
            for append in staged:
                append.appender.failed(append.slot, error)
            return
        self.metrics.bytes_in += size
        self.metrics.records_in += records
        if self.replica_waiters:
            for waiter in list(self.replica_waiters):
                waiter.arrived(size)
        if self._has_replicas:
            self._positions.written(end)
        if self.flushes:
            self._unacknowledged.written(staged, self.high_watermark.offset, self.log.log_start_offset)
            if size or self._unacknowledged.waiting:
                self.flush()
        else:
            if self._has_replicas:
                self._unacknowledged.written(staged, self.high_watermark.offset, self.log.log_start_offset)
            else:
                self._unacknowledged.wait(staged)
            self._held_here(end)
            if self.log.has_rolled or end.offset - self.log.flushed_offset >= self.config.flush_messages:
                self.flush()

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
            self._replication.progressed(self)

    def _held_here(self, position: LogPosition) -> None:
        """This replica holds, as durably as the topic asks, everything up to `position`."""
        if self.refusal is not None:
            return
        isr = self._isr
        if isr.held(self.broker_id, position.offset):
            # With one replica the offset that became committed is always the one just reported.
            is_here = isr.high_watermark == position.offset
            self._committed_up_to(position if is_here else self._positions.at(isr.high_watermark, self.high_watermark))
        self._unacknowledged.committed(self.high_watermark.offset, self.log.log_start_offset)

    def _committed_up_to(self, position: LogPosition) -> None:
        before, self.high_watermark = self.high_watermark, position
        for replica in self.replica_waiters:
            replica.committed()
        if self.waiters:
            self._wake(before, position)

    def expire(self, now_ms: int) -> None:
        """Tell whoever waited past their deadline that it is unknown whether the records will be committed."""
        if self._unacknowledged.waiting:
            self._unacknowledged.expire(
                now_ms,
                BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"{self.topic_partition}: not committed within the timeout"),
            )

    def fail(self, error: BrokerError) -> None:
        """The log can no longer be trusted to keep what it is given: nothing that waits is acknowledged any more."""
        self.offline = error
        self._refuse(error)

    @property
    def is_quiet(self) -> bool:
        return not self._staged and not self._unacknowledged.waiting

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
