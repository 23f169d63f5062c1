"""The coordinators of transactions, and what follows from their decisions: a marker in every partition that took part.

Markers are written until each partition has its own, or will never have one because it is gone. Then the machine is
told, and the transaction is complete. Whatever dies on the way, the prepared outcome is in the log: the machine hands
the markers out again when it has been loaded. Who leads a partition is looked up anew each time, and asked if that is
another broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.coordinators.coordinators import Coordinators, partition_of
from penstock.coordinators.groups import BATCH_OVERHEAD_BYTES, GroupCoordinators
from penstock.coordinators.shard import Shard
from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.coordinators.transaction.state import TransactionConfig
from penstock.coordinators.transaction_peers import TransactionPeers, WantedMarker
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.core.metrics import TransactionMetrics
from penstock.metadata.image import ClusterImage
from penstock.protocol.control import EndMarker
from penstock.replication.manager import ReplicaManager
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup

log = logging.getLogger(__name__)

RETRY_S = 0.1
COMPLETED_WITHIN_S = 0.1
# There is nothing to end: the producer has a later epoch there, or no transaction can be there.
_NOTHING_THERE = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TOPIC_EXCEPTION)


class TransactionCoordinators(Coordinators[TransactionMachine]):
    topic = TRANSACTIONS_TOPIC

    def __init__(
        self,
        config: BrokerConfig,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        partitions: ReplicaManager,
        groups: GroupCoordinators,
        peers: TransactionPeers,
        clock: Clock,
        files: Files,
        tasks: TaskGroup,
    ) -> None:
        super().__init__(config, clock=clock, files=files, tasks=tasks)
        self.peers = peers
        self._broker_id = broker_id
        self._image = image
        self._partitions = partitions
        self._groups = groups
        self.transaction_metrics = TransactionMetrics()
        self._loop = asyncio.get_running_loop()
        # By transactional id: done when the markers of its transaction are written, or given up.
        self._completing: dict[str, asyncio.Future[None]] = {}

    def coordinator_elsewhere(self, transactional_id: str) -> BrokerId | None:
        """Which other broker coordinates it; None: this one does, or nobody at present."""
        image = self._image()
        topic = image.topics.get(self.topic)
        if topic is None:
            return None
        leader = image.leader_of(topic.partitions[partition_of(transactional_id, len(topic.partitions))])
        return None if leader == self._broker_id else leader

    def _new_shard(self, partition: Partition) -> Shard[TransactionMachine]:
        def write_markers(effect: WriteMarkers) -> None:
            self._completing[effect.transactional_id] = completing = self._loop.create_future()
            self._write_markers(shard, effect, effect.partitions, completing)

        shard: Shard[TransactionMachine] = Shard(
            partition,
            lambda: TransactionMachine(
                self._transaction_config(partition), partition.leader_epoch, self.transaction_metrics
            ),
            clock=self._clock,
            files=self._files,
            tasks=self._tasks,
            metrics=self.metrics,
            effect=write_markers,
        )
        return shard

    # Markers

    def when_completed(self, transactional_id: str, go_on: Callable[[], None]) -> None:
        """Waits for the transaction whose markers are being written, if there is one; but only a moment.

        A producer that hears of an end may begin the next transaction while the markers of the last are under way.
        Refused, it would come again after twenty milliseconds or more, when they take one.
        """
        completing = self._completing.get(transactional_id)
        if completing is None:
            go_on()
            return

        def once(_: object = None) -> None:
            timer.cancel()
            completing.remove_done_callback(once)
            go_on()

        timer = self._loop.call_later(COMPLETED_WITHIN_S, once)
        completing.add_done_callback(once)

    async def completed(self, transactional_id: str) -> None:
        """`when_completed`, for coroutines."""
        completing = self._completing.get(transactional_id)
        if completing is not None:
            await asyncio.wait((completing,), timeout=COMPLETED_WITHIN_S)

    def _write_markers(
        self,
        shard: Shard[TransactionMachine],
        effect: WriteMarkers,
        left: Sequence[TopicPartition],
        completing: asyncio.Future[None],
    ) -> None:
        marker = EndMarker(effect.producer_id, effect.producer_epoch, effect.is_commit, effect.coordinator_epoch)
        outcomes: dict[TopicPartition, BrokerError | None] = {}

        def ended(topic_partition: TopicPartition, error: BrokerError | None) -> None:
            outcomes[topic_partition] = error
            if len(outcomes) == len(left):
                self._look_at(outcomes, shard, effect, completing)

        if not left:
            self._look_at(outcomes, shard, effect, completing)
        for each in left:
            leader = self._leader_elsewhere(each)
            if leader is None:
                self.write_marker(each, marker, effect.transaction_version, partial(ended, each))
            else:
                wanted = WantedMarker(each, marker, effect.transaction_version, partial(_waits_for, shard, effect))
                self.peers.write_marker(leader, wanted, partial(ended, each))

    def _leader_elsewhere(self, topic_partition: TopicPartition) -> BrokerId | None:
        """None: this broker leads the partition, or nobody does and it is to say so."""
        image = self._image()
        partition = image.partition(topic_partition)
        leader = None if partition is None else image.leader_of(partition)
        return None if leader == self._broker_id else leader

    def _look_at(
        self,
        outcomes: Mapping[TopicPartition, BrokerError | None],
        shard: Shard[TransactionMachine],
        effect: WriteMarkers,
        completing: asyncio.Future[None],
    ) -> None:
        failed = [(each, error) for each, error in outcomes.items() if error is not None]
        fenced_at = [each for each, error in failed if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        left = [each for each, error in failed if error.code not in _NOTHING_THERE and not self._is_gone(each)]
        if fenced_at:
            # Whoever has a later epoch ends it: here it stays prepared. So it goes for one that was cut off.
            log.warning(
                "markers given up: a coordinator with a later epoch was there",
                extra={"transactional_id": effect.transactional_id, "partition": str(fenced_at[0])},
            )
        elif left:
            self._loop.call_later(RETRY_S, self._write_again, shard, effect, left, completing)
            return
        else:
            shard.tell(lambda machine, now, decision: machine.markers_written(effect, now, decision))
        self._ended(effect, completing)

    def _write_again(
        self,
        shard: Shard[TransactionMachine],
        effect: WriteMarkers,
        left: Sequence[TopicPartition],
        completing: asyncio.Future[None],
    ) -> None:
        """If the machine was lost or moved meanwhile, whoever loads it finds the transaction prepared and begins again.

        This must stop then: if the producer keeps its epoch, a marker that comes late ends the next transaction.
        """
        if _waits_for(shard, effect):
            self._write_markers(shard, effect, left, completing)
        else:
            self._ended(effect, completing)

    def _ended(self, effect: WriteMarkers, completing: asyncio.Future[None]) -> None:
        if self._completing.get(effect.transactional_id) is completing:
            del self._completing[effect.transactional_id]
        completing.set_result(None)

    def _is_gone(self, topic_partition: TopicPartition) -> bool:
        """The image knows. A log that is not open yet, or could not be opened, is there and waits for its marker."""
        return self._image().partition(topic_partition) is None

    def write_marker(
        self,
        topic_partition: TopicPartition,
        marker: EndMarker,
        transaction_version: int,
        done: Callable[[BrokerError | None], None],
    ) -> None:
        """Into a partition that this broker leads. Calls `done`, now or later, once: with None when the marker is
        committed, or with what kept it from that.
        """
        try:
            partition = self._partitions.find(*topic_partition)
            if topic_partition.topic == GROUP_OFFSETS_TOPIC:
                self._groups.shard_at(topic_partition.partition).write_marker(marker, transaction_version, done)
            elif topic_partition.topic == TRANSACTIONS_TOPIC:
                raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"there are no transactions in {topic_partition}")
            else:
                partition.append_marker(marker, transaction_version, self._clock.now_ms(), _Appender(done), 0)
        except BrokerError as error:
            done(error)

    # Settings

    def _transaction_config(self, partition: Partition) -> TransactionConfig:
        config = self._config
        return TransactionConfig(
            transaction_max_timeout_ms=config.int("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=config.int("transactional.id.expiration.ms"),
            transaction_remove_expired_transaction_cleanup_interval_ms=config.int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            max_record_bytes=partition.max_batch_bytes - BATCH_OVERHEAD_BYTES,
        )


def _waits_for(shard: Shard[TransactionMachine], effect: WriteMarkers) -> bool:
    return shard.machine is not None and shard.machine.waits_for(effect)


class _Appender:
    """Of one batch."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[BrokerError | None], None]) -> None:
        self._done = done

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self._done(None)

    def failed(self, slot: int, error: BrokerError) -> None:
        self._done(error)
