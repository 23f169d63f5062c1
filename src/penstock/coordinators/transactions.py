"""The coordinators of transactions, and what follows from their decisions: a marker in every partition that took part.

Markers are written until each partition has its own, or will never have one because it is gone. Then the machine is
told, and the transaction is complete. Whatever dies on the way, the prepared outcome is in the log: the machine hands
the markers out again when it has been loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.coordinators.coordinators import Coordinators
from penstock.coordinators.groups import BATCH_OVERHEAD_BYTES, GroupCoordinators
from penstock.coordinators.shard import Shard
from penstock.coordinators.transaction.commands import WriteMarkers
from penstock.coordinators.transaction.machine import TransactionMachine
from penstock.coordinators.transaction.state import TransactionConfig
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicPartition
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
        image: Callable[[], ClusterImage],
        partitions: ReplicaManager,
        groups: GroupCoordinators,
        clock: Clock,
        files: Files,
        tasks: TaskGroup,
    ) -> None:
        super().__init__(config, clock=clock, files=files, tasks=tasks)
        self._image = image
        self._partitions = partitions
        self._groups = groups
        self.transaction_metrics = TransactionMetrics()
        # By transactional id: those that write the markers of its transaction.
        self._completing: dict[str, asyncio.Task[None]] = {}

    def _new_shard(self, partition: Partition) -> Shard[TransactionMachine]:
        def write_markers(effect: WriteMarkers) -> None:
            completing = self._tasks.spawn(self._complete(shard, effect), name="write-markers")
            self._completing[effect.transactional_id] = completing
            completing.add_done_callback(lambda task: self._forget(effect.transactional_id, task))

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

    async def completed(self, transactional_id: str) -> None:
        """Waits for the transaction whose markers are being written, if there is one; but only a moment.

        A producer that hears of an end may begin the next transaction while the markers of the last are under way.
        Refused, it would come again after twenty milliseconds or more, when they take one.
        """
        completing = self._completing.get(transactional_id)
        if completing is not None:
            await asyncio.wait((completing,), timeout=COMPLETED_WITHIN_S)

    def _forget(self, transactional_id: str, completing: asyncio.Task[None]) -> None:
        if self._completing.get(transactional_id) is completing:
            del self._completing[transactional_id]

    async def _complete(self, shard: Shard[TransactionMachine], effect: WriteMarkers) -> None:
        marker = EndMarker(effect.producer_id, effect.producer_epoch, effect.is_commit, effect.coordinator_epoch)
        left = list(effect.partitions)
        # If the machine is lost or moves meanwhile, whoever loads it finds the transaction prepared, and begins again.
        # This must stop then: if the producer keeps its epoch, a marker that comes late ends the next transaction.
        while shard.machine is not None and shard.machine.waits_for(effect):
            written = await asyncio.gather(
                *(self.write_marker(each, marker, effect.transaction_version) for each in left)
            )
            failed = [(each, error) for each, error in zip(left, written, strict=True) if error is not None]
            for each, error in failed:
                if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    # Whoever has a later epoch ends it, and says so: here it stays prepared.
                    log.error(
                        "markers given up: a coordinator with a later epoch was there",
                        extra={"transactional_id": effect.transactional_id, "partition": str(each)},
                    )
                    return
            left = [each for each, error in failed if error.code not in _NOTHING_THERE and not self._is_gone(each)]
            if not left:
                shard.tell(lambda machine, now, decision: machine.markers_written(effect, now, decision))
                return
            await asyncio.sleep(RETRY_S)

    def _is_gone(self, topic_partition: TopicPartition) -> bool:
        """The image knows. A log that is not open yet, or could not be opened, is there and waits for its marker."""
        topic = self._image().topics.get(topic_partition.topic)
        return topic is None or not 0 <= topic_partition.partition < len(topic.partitions)

    def write_marker(
        self, topic_partition: TopicPartition, marker: EndMarker, transaction_version: int
    ) -> asyncio.Future[BrokerError | None]:
        """Done when the marker is committed, or with what kept it from that."""
        waiting = _Waiting()
        try:
            partition = self._partitions.find(*topic_partition)
            if topic_partition.topic == GROUP_OFFSETS_TOPIC:
                self._groups.shard_at(topic_partition.partition).write_marker(
                    marker, transaction_version, waiting.ended
                )
            elif topic_partition.topic == TRANSACTIONS_TOPIC:
                raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"there are no transactions in {topic_partition}")
            else:
                partition.append_marker(marker, transaction_version, self._clock.now_ms(), waiting, 0)
        except BrokerError as error:
            waiting.ended(error)
        return waiting.outcome

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


class _Waiting:
    """For one append."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self.ended(None)

    def failed(self, slot: int, error: BrokerError) -> None:
        self.ended(error)

    def ended(self, error: BrokerError | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)
