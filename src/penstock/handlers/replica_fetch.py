"""Fetch, as a replica asks its leader: everything that is written, committed or not, from where the two logs agree.

The offset that it asks for says how much it has. What it has not on disk yet it says by ReplicaProgress. A request
names what has changed since the last one, and the answer has what is new (replication/fetch_session.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.handlers.context import Broker
from penstock.handlers.responses import response_frame
from penstock.net.connection import Answer
from penstock.protocol.fetch import MAX_RECORDS_BYTES
from penstock.protocol.frames import RequestHeader
from penstock.protocol.messages.records import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from penstock.replication.fetch_session import INITIAL_EPOCH, NO_SESSION_EPOCH, Served, Serving
from penstock.replication.partition import Partition
from penstock.replication.truncation import diverging_epoch
from penstock.storage.log_file import ColdRead, FileSpan


class ReplicaFetch:
    """One request on its way: read, perhaps park and read again, answer."""

    __slots__ = (
        "_answer",
        "_broker",
        "_header",
        "_left",
        "_replica",
        "_request",
        "_rows",
        "_session",
        "_timer",
        "_total",
    )

    _timer: asyncio.TimerHandle

    def __init__(
        self, request: FetchRequest, replica: ReplicaState, header: RequestHeader, answer: Answer, broker: Broker
    ) -> None:
        self._request = request
        self._replica = replica
        self._header = header
        self._answer = answer
        self._broker = broker

    def start(self) -> None:
        request = self._request
        try:
            session = self._session = self._continued_session()
        except BrokerError as error:
            self._answer.complete(response_frame(self._header, FetchResponse(error_code=error.code)))
            return
        if self._read() or self._total >= request.min_bytes or request.max_wait_ms <= 0 or session.is_hurried:
            self._finish()
            return
        session.resume = partial(self._answer.after_writes, self._read_again)
        self._timer = self._broker.loop.call_later(request.max_wait_ms / 1000, session.wake)
        self._answer.on_connection_closed = self._abandon

    def _continued_session(self) -> Serving:
        """Brought up to date by the request."""
        request, sessions = self._request, self._broker.replica_sessions
        replica = BrokerId(self._replica.replica_id)
        if request.session_epoch <= INITIAL_EPOCH:
            session = sessions.begin(replica, wakes_on_commit=self._may_be_read_there(replica))
            session.begin_request(INITIAL_EPOCH)
        else:
            session = sessions.find(replica, request.session_id)
            session.wake()
            session.begin_request(request.session_epoch)
        session.asked_ms = self._broker.clock.monotonic_ms()
        for forgotten in request.forgotten_topics_data:
            for partition in forgotten.partitions:
                session.drop((forgotten.topic_id, partition))
        for topic in request.topics:
            for each in topic.partitions:
                session.names((topic.topic_id, each.partition)).asks(
                    each.fetch_offset,
                    each.last_fetched_epoch,
                    each.current_leader_epoch,
                    each.partition_max_bytes,
                    each.log_start_offset,
                )
        return session

    def _may_be_read_there(self, replica: BrokerId) -> bool:
        """Whether consumers may be sent to it, who would have to wait until it knows what is committed."""
        brokers = self._broker.image.brokers
        there, here = brokers.get(replica), brokers.get(self._broker.node_id)
        return there is not None and here is not None and there.rack not in (None, here.rack)

    def _read_again(self) -> None:
        self._timer.cancel()
        self._answer.on_connection_closed = None
        self._read()
        self._finish()

    def _abandon(self) -> None:
        """The replica is gone, or comes again on another connection."""
        self._timer.cancel()
        self._session.resume = None
        self._session.end()

    def _read(self) -> bool:
        """Whether the answer cannot wait: something is to be said other than records."""
        self._left = min(self._request.max_bytes, MAX_RECORDS_BYTES)
        self._total = 0
        self._rows: list[tuple[Served, PartitionData]] = []
        has_news = False
        for served in self._session.new():
            row = PartitionData(partition_index=served.key[1], high_watermark=-1, records=b"")
            try:
                has_news |= self._read_one(served, row)
            except BrokerError as error:
                row.error_code = error.code
                has_news = True
            self._rows.append((served, row))
        return has_news

    def _read_one(self, served: Served, row: PartitionData) -> bool:
        partition = self._broker.partitions.find(*served.key)
        partition.check_epoch(served.leader_epoch)
        if partition.refusal is not None:
            raise partition.refusal.anew()
        log, offset = partition.log, served.fetch_offset
        row.log_start_offset = log.log_start_offset
        if offset < log.log_start_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.topic_partition} has no offset {offset}")
        if served.is_asked and not self._agrees(served, partition, row):
            return True
        row.high_watermark = partition.high_watermark.offset
        if self._broker.partitions.holds_up(partition, BrokerId(self._replica.replica_id)):
            return self._is_awaited(served)
        span = self._span(partition, offset, served.max_bytes)
        if span is not None:
            row.records = span
            self._broker.partitions.sent(partition, span.length)
            self._total += span.length
            self._left = max(0, self._left - span.length)
        return self._is_awaited(served)

    def _is_awaited(self, served: Served) -> bool:
        """Whether the replica waits to hear that its log agrees. One of the last release asks anew every time."""
        return served.is_untold and self._request.session_epoch != NO_SESSION_EPOCH

    def _agrees(self, served: Served, partition: Partition, row: PartitionData) -> bool:
        """What the replica has counts, if its log agrees with this one. While this broker leads it stays so."""
        log = partition.log
        diverging = diverging_epoch(
            log.leader_epochs,
            log.end_position.offset,
            last_fetched_epoch=served.last_fetched_epoch,
            fetch_offset=served.fetch_offset,
        )
        if diverging is not None:
            row.diverging_epoch = DivergingEpoch(epoch=diverging[0], end_offset=diverging[1])
            return False
        replica, now_ms = self._replica, self._broker.clock.monotonic_ms()
        partition.fetched_by(
            BrokerId(replica.replica_id),
            replica.replica_epoch,
            served.fetch_offset,
            now_ms,
            log_start_offset=served.log_start_offset,
        )
        served.is_asked = False
        served.joins(partition.replica_waiters)
        return True

    def _span(self, partition: Partition, offset: int, max_bytes: int) -> FileSpan | None:
        upper = partition.log.end_position
        if offset >= upper.offset or (self._total and not self._left):
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
        with contextlib.suppress(BrokerError):  # whoever reads next is told
            await partition.log.in_thread(self._broker.files, _read_in, partition, offset, max_bytes)
        for waiter in list(partition.replica_waiters):
            waiter.wake()

    def _finish(self) -> None:
        topics: dict[bytes, FetchableTopicResponse] = {}
        for served, row in self._rows:
            if not self._is_told(served, row):
                continue
            topic_id = served.key[0]
            answered = topics.get(topic_id)
            if answered is None:
                answered = topics[topic_id] = FetchableTopicResponse(topic_id=topic_id, partitions=[])
            answered.partitions.append(row)
        response = FetchResponse(session_id=self._session.session_id, responses=list(topics.values()))
        self._answer.complete(response_frame(self._header, response))

    def _is_told(self, served: Served, row: PartitionData) -> bool:
        """Whether the row is worth its place in the answer."""
        session = self._session
        if row.error_code or row.diverging_epoch is not None:
            session.drop(served.key)
            return True
        has_records = isinstance(row.records, FileSpan)
        is_news = served.is_news(row.high_watermark, row.log_start_offset)
        if has_records or self._has_all(served):
            session.told(served)
        return has_records or is_news

    def _has_all(self, served: Served) -> bool:
        """Whether there are no records that the answer had no room for, or that are still being read from disk."""
        return served.fetch_offset >= self._broker.partitions.find(*served.key).log.end_position.offset


def _read_in(partition: Partition, offset: int, max_bytes: int) -> None:
    partition.log.read(offset, max_bytes, partition.log.end_position, at_least_one=True, wait=True)
