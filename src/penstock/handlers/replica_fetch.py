"""Fetch, as a replica asks its leader: everything that is written, committed or not, from where the two logs agree.

The offset that it asks for says how much it has. What it has not on disk yet it says by ReplicaProgress.
"""

from __future__ import annotations

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.handlers.context import Broker
from penstock.handlers.responses import response_frame
from penstock.net.connection import Answer
from penstock.protocol.frames import RequestHeader
from penstock.protocol.messages.records import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from penstock.replication.parking import ParkedFetch
from penstock.replication.partition import Partition
from penstock.replication.truncation import diverging_epoch
from penstock.storage.log_file import ColdRead, FileSpan


class ReplicaFetch:
    """One request on its way: read, perhaps park and read again, answer."""

    __slots__ = ("_answer", "_broker", "_header", "_left", "_partitions", "_replica", "_request", "_rows", "_total")

    def __init__(
        self, request: FetchRequest, replica: ReplicaState, header: RequestHeader, answer: Answer, broker: Broker
    ) -> None:
        self._request = request
        self._replica = replica
        self._header = header
        self._answer = answer
        self._broker = broker

    def start(self) -> None:
        if self._read() or self._total >= self._request.min_bytes or self._request.max_wait_ms <= 0:
            self._finish()
            return
        parked = ParkedFetch(
            [partition.replica_waiters for partition in self._partitions],
            self._request.min_bytes - self._total,
            self._request.max_wait_ms,
            self._read_again,
            self._broker.loop,
        )
        self._answer.on_connection_closed = parked.cancel

    def _read_again(self) -> None:
        self._answer.on_connection_closed = None
        self._read()
        self._finish()

    def _read(self) -> bool:
        """Whether the answer cannot wait: something is to be said other than records."""
        self._left = self._request.max_bytes
        self._total = 0
        self._partitions: list[Partition] = []
        self._rows: list[tuple[FetchTopic, PartitionData]] = []
        has_news = False
        for topic in self._request.topics:
            for wanted in topic.partitions:
                row = PartitionData(partition_index=wanted.partition, high_watermark=-1, records=b"")
                try:
                    has_news |= self._read_one(topic, wanted, row)
                except BrokerError as error:
                    row.error_code = error.code
                    has_news = True
                self._rows.append((topic, row))
        return has_news

    def _read_one(self, topic: FetchTopic, wanted: FetchPartition, row: PartitionData) -> bool:
        partition = self._broker.partitions.find(topic.topic_id, wanted.partition)
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.refusal is not None:
            raise partition.refusal
        log = partition.log
        row.log_start_offset = log.log_start_offset
        offset = wanted.fetch_offset
        if offset < log.log_start_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.topic_partition} has no offset {offset}")
        end_offset = log.end_position.offset
        diverging = diverging_epoch(
            log.leader_epochs, end_offset, last_fetched_epoch=wanted.last_fetched_epoch, fetch_offset=offset
        )
        if diverging is not None:
            row.diverging_epoch = DivergingEpoch(epoch=diverging[0], end_offset=diverging[1])
            return True
        now_ms = self._broker.clock.monotonic_ms()
        partition.fetched_by(
            BrokerId(self._replica.replica_id),
            self._replica.replica_epoch,
            offset,
            now_ms,
            log_start_offset=wanted.log_start_offset,
        )
        self._partitions.append(partition)
        row.high_watermark = partition.high_watermark.offset
        if self._broker.partitions.holds_up(partition, BrokerId(self._replica.replica_id)):
            return False
        span = self._span(partition, offset, wanted.partition_max_bytes)
        if span is not None:
            row.records = span
            self._broker.partitions.sent(partition, span.length)
            self._total += span.length
            self._left = max(0, self._left - span.length)
        return False

    def _span(self, partition: Partition, offset: int, max_bytes: int) -> FileSpan | None:
        upper = partition.log.end_position
        if offset >= upper.offset:
            return None
        wanted_bytes = min(max_bytes, self._left)
        try:
            return partition.log.read(offset, wanted_bytes, upper, at_least_one=not self._total)
        except ColdRead:
            # A replica far behind waits for the disk as it would anyway; its leader must not, so a thread does.
            self._broker.tasks.spawn(self._warm(partition, offset, wanted_bytes), name="warm-for-replica")
            return None

    async def _warm(self, partition: Partition, offset: int, max_bytes: int) -> None:
        """Into the page cache, from where the next reading has it; and that is now."""
        await self._broker.files.run(_read_in, partition, offset, max_bytes)
        for waiter in list(partition.replica_waiters):
            waiter.wake()

    def _finish(self) -> None:
        topics: dict[bytes, FetchableTopicResponse] = {}
        for topic, row in self._rows:
            answered = topics.get(topic.topic_id)
            if answered is None:
                answered = topics[topic.topic_id] = FetchableTopicResponse(topic_id=topic.topic_id, partitions=[])
            answered.partitions.append(row)
        self._answer.complete(response_frame(self._header, FetchResponse(responses=list(topics.values()))))


def _read_in(partition: Partition, offset: int, max_bytes: int) -> None:
    try:
        partition.log.read(offset, max_bytes, partition.log.end_position, at_least_one=True, wait=True)
    except BrokerError:
        return  # whoever reads next is told
