"""Fetch: records from partitions, as spans of their files, waiting for data if the client asks for that.

v4: isolation level    v7: sessions (KIP-227)    v9: leader epoch    v11: rack (KIP-392)    v12: flexible
v13: topic ids    v15: replica id in a tagged field    v16: leaders' endpoints in the answer    v17: directory id
v18: high watermark

`max_bytes` bounds a partition and the whole answer, except that the first batch is always sent whole, so that a
consumer with small limits gets on. Parked fetches are woken by appends; reads that would wait for the disk are done in
a thread.

A consumer that says in which rack it is, is sent to an in-sync replica there, if the leader is in another one. From
v11 on followers are read from, up to the high watermark that they know.
"""

from __future__ import annotations

import contextlib
import time

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId
from penstock.handlers.context import Broker
from penstock.handlers.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPartition,
    FetchSession,
    PartitionKey,
)
from penstock.handlers.nearest import nearest_replica
from penstock.handlers.replica_fetch import ReplicaFetch
from penstock.net.connection import Answer, Connection
from penstock.protocol.fetch import (
    MAX_RECORDS_BYTES,
    NO_REPLICA,
    TOPIC_ID_SINCE,
    FetchedPartition,
    encode_fetch_response,
)
from penstock.protocol.frames import RequestHeader
from penstock.protocol.messages.records import FetchRequest
from penstock.replication.parking import ParkedFetch
from penstock.replication.partition import Partition
from penstock.storage.log_file import ColdRead, FileSpan

API_KEY = 1
RACK_SINCE = 11
READ_COMMITTED = 1
MAX_WAIT_MS = 5 * 60 * 1000

Row = FetchedPartition[FileSpan]


def fetch(connection: Connection, frame: memoryview, header: RequestHeader, broker: Broker) -> None:
    started = time.perf_counter()
    request, consumed = FetchRequest.decode_prefix(frame[header.body_start :], header.api_version)
    metrics = broker.api_metrics[API_KEY]
    metrics.requests += 1
    metrics.requests_with_trailing_bytes += header.body_start + consumed < len(frame)
    if request.replica_state is not None and connection.session.broker_id == request.replica_state.replica_id:
        ReplicaFetch(request, request.replica_state, header, connection.expect_answer(), broker).start()
        return
    call = FetchCall(request, header, connection.expect_answer(), broker, started)
    call.start()


class FetchCall:
    """One Fetch request on its way: read, perhaps park and read again, answer."""

    __slots__ = (
        "_answer",
        "_broker",
        "_by_id",
        "_header",
        "_incremental",
        "_request",
        "_rows",
        "_session",
        "_started",
        "_wanted",
    )

    def __init__(
        self, request: FetchRequest, header: RequestHeader, answer: Answer, broker: Broker, started: float
    ) -> None:
        self._request = request
        self._header = header
        self._answer = answer
        self._broker = broker
        self._started = started
        self._by_id = header.api_version >= TOPIC_ID_SINCE
        self._session: FetchSession | None = None
        self._incremental = False
        self._wanted: list[FetchPartition] = []

    def start(self) -> None:
        request = self._request
        try:
            self._refuse_replicas()
            self._resolve_session()
        except BrokerError as error:
            self._fail(error)
            return
        read = self._read()
        if (
            read.cold
            or read.total_bytes >= request.min_bytes
            or read.cannot_wait
            or request.max_wait_ms <= 0
            or not self._wanted  # nothing could ever come
        ):
            self._finish(read)
        else:
            self._park(read)

    def _refuse_replicas(self) -> None:
        """Only brokers fetch as replicas (replica_fetch.py), and those do not come through a client listener."""
        request = self._request
        state = request.replica_state
        if request.replica_id >= 0 or (state is not None and state.replica_id >= 0):
            raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "replica fetches are not open to clients")

    def _resolve_session(self) -> None:
        request, sessions = self._request, self._broker.fetch_sessions
        wanted = [
            FetchPartition(
                topic.topic_id if self._by_id else topic.topic,
                each.partition,
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
            )
            for topic in request.topics
            for each in topic.partitions
        ]
        epoch, session_id = request.session_epoch, request.session_id
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session_id:
                sessions.close(session_id)
            if epoch == INITIAL_EPOCH:
                self._session = sessions.open(wanted, self._broker.clock.monotonic_ms(), by_id=self._by_id)
            self._wanted = wanted
            return
        forgotten: list[PartitionKey] = [
            (topic.topic_id if self._by_id else topic.topic, index)
            for topic in request.forgotten_topics_data
            for index in topic.partitions
        ]
        now_ms = self._broker.clock.monotonic_ms()
        self._session = sessions.use(session_id, epoch, wanted, forgotten, now_ms, by_id=self._by_id)
        self._incremental = True
        self._wanted = list(self._session.partitions.values())

    def _read(self) -> Reading:
        request = self._request
        return Reading(
            self._wanted,
            self._broker,
            request.max_bytes,
            stable_only=request.isolation_level == READ_COMMITTED,
            from_followers=self._header.api_version >= RACK_SINCE,
            rack=request.rack_id,
        )

    def _park(self, read: Reading) -> None:
        parked = ParkedFetch(
            [partition.waiters for partition in read.partitions],
            self._request.min_bytes - read.total_bytes,
            min(self._request.max_wait_ms, MAX_WAIT_MS),
            self._read_again,
            self._broker.loop,
            stable_only=read.stable_only,
        )
        self._answer.on_connection_closed = parked.cancel

    def _read_again(self) -> None:
        self._answer.on_connection_closed = None
        self._finish(self._read())

    def _finish(self, read: Reading) -> None:
        if read.cold or read.with_aborts:
            self._broker.tasks.spawn(self._complete_later(read), name="cold-read")
        else:
            self._complete(read)

    async def _complete_later(self, read: Reading) -> None:
        await read.warm()
        await read.find_aborts()
        self._complete(read)

    def _fail(self, error: BrokerError) -> None:
        self._broker.api_metrics[API_KEY].errors[error.code] += 1
        self._respond({}, error.code)

    def _complete(self, read: Reading) -> None:
        topics: dict[str | TopicId, list[Row]] = {}
        errors = self._broker.api_metrics[API_KEY].errors
        for wanted, row in read.rows:
            if row.error_code:
                errors[row.error_code] += 1
                self._count_error(wanted)
            if self._session is not None:
                news = wanted.is_news(
                    row.high_watermark,
                    row.log_start_offset,
                    has_records=row.records is not None,
                    is_elsewhere=row.preferred_read_replica != NO_REPLICA,
                    error_code=row.error_code,
                )
                if row.records is not None:
                    self._session.served(wanted)
                if self._incremental and not news:
                    continue
            rows = topics.get(wanted.topic)
            if rows is None:
                rows = topics[wanted.topic] = []
            rows.append(row)
        self._respond(topics)

    def _count_error(self, wanted: FetchPartition) -> None:
        with contextlib.suppress(BrokerError):
            self._broker.partitions.find(wanted.topic, wanted.index).metrics.fetch_errors += 1

    def _respond(self, topics: dict[str | TopicId, list[Row]], error_code: int = 0) -> None:
        header = self._header
        session_id = self._session.session_id if self._session is not None else 0
        self._answer.complete(
            encode_fetch_response(
                header.correlation_id,
                header.api_version,
                topics.items(),
                session_id=session_id,
                error_code=error_code,
            )
        )
        self._broker.api_metrics[API_KEY].latency.observe(time.perf_counter() - self._started)


class Reading:
    """One look at all wanted partitions, within the byte limits."""

    __slots__ = (
        "_broker",
        "_from_followers",
        "_left",
        "_rack",
        "cannot_wait",
        "cold",
        "partitions",
        "rows",
        "stable_only",
        "total_bytes",
        "with_aborts",
    )

    def __init__(
        self,
        wanted: list[FetchPartition],
        broker: Broker,
        max_bytes: int,
        *,
        stable_only: bool,
        from_followers: bool,
        rack: str,
    ) -> None:
        self._broker = broker
        self.stable_only = stable_only
        self._from_followers = from_followers
        self._rack = rack
        self._left = max(0, min(max_bytes, broker.config.int("fetch.max.bytes"), MAX_RECORDS_BYTES))
        self.total_bytes = 0
        # Something is to be said other than records.
        self.cannot_wait = False
        self.partitions: list[Partition] = []
        self.rows: list[tuple[FetchPartition, Row]] = []
        self.cold: list[tuple[int, Partition]] = []
        # Rows with records of which some may have to be left out; which ones stands on disk, out of the loop's reach.
        self.with_aborts: list[tuple[Row, Partition, FileSpan, int]] = []
        for each in wanted:
            self._read(each)

    def _read(self, wanted: FetchPartition) -> None:
        row: Row = FetchedPartition(wanted.index)
        try:
            partition = self._broker.partitions.find(wanted.topic, wanted.index)
            partition.check_epoch(wanted.current_leader_epoch)
            if self._rack and partition.is_led:
                near = nearest_replica(partition, wanted.fetch_offset, self._rack, self._broker.image)
                if near is not None:
                    row.preferred_read_replica = near
                    self.cannot_wait = True
            self.partitions.append(partition)
            span = None
            try:
                if row.preferred_read_replica == NO_REPLICA:
                    span = partition.read(
                        wanted.fetch_offset,
                        min(wanted.max_bytes, self._left),
                        at_least_one=not self.total_bytes,
                        stable_only=self.stable_only,
                        from_followers=self._from_followers,
                    )
            except ColdRead:
                self.cold.append((len(self.rows), partition))
            self._describe(row, partition)
            self._take(row, span, partition, wanted.fetch_offset)
        except BrokerError as error:
            row.error_code = error.code
            self.cannot_wait = True
        self.rows.append((wanted, row))

    def _describe(self, row: Row, partition: Partition) -> None:
        row.high_watermark = partition.high_watermark.offset
        row.last_stable_offset = partition.last_stable_offset
        row.aborted = [] if self.stable_only else None
        row.log_start_offset = partition.log.log_start_offset

    def _take(self, row: Row, span: FileSpan | None, partition: Partition, offset: int) -> None:
        if span is None:
            return
        row.records = span
        self.total_bytes += span.length
        self._left = max(0, self._left - span.length)
        partition.metrics.bytes_out += span.length
        partition.metrics.records_out += partition.count_records(offset, span)
        if self.stable_only and partition.log.may_have_aborted(offset):
            try:
                row.aborted = partition.aborted_in(span, offset, wait=False)
            except (ColdRead, BrokerError):  # a thread waits for the disk, or finds out what is wrong
                self.with_aborts.append((row, partition, span, offset))

    async def warm(self) -> None:
        """Read the cold ones again in threads, where they may wait for the disk."""
        for position, partition in self.cold:
            wanted, row = self.rows[position]
            try:
                span = await partition.log.in_thread(
                    self._broker.files,
                    partition.read_waiting,
                    wanted.fetch_offset,
                    min(wanted.max_bytes, self._left),
                    not self.total_bytes,
                    self.stable_only,
                    self._from_followers,
                )
                self._describe(row, partition)
                self._take(row, span, partition, wanted.fetch_offset)
            except BrokerError as error:
                row.error_code = error.code

    async def find_aborts(self) -> None:
        for row, partition, span, offset in self.with_aborts:
            try:
                row.aborted = await partition.log.in_thread(self._broker.files, partition.aborted_in, span, offset)
            except BrokerError as error:
                row.error_code, row.records = error.code, None
