"""Produce: append batches to partitions, answer when they are as durable as `acks` asks.

v0-2: advertised because librdkafka before 2.11.1 looks for v0 to learn whether it may compress; refused when used
v7: zstd    v8: error messages    v9: flexible    v10: new leader in the answer    v11: TRANSACTION_ABORTABLE
v12: transactions need not be told of their partitions before (KIP-890)    v13: topic ids

Every partition succeeds or fails on its own. acks=0 has no answer: the only way to report a failure is to close the
connection, as Kafka does.
"""

from __future__ import annotations

import time

from penstock.coordinators.decision import Producer
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metrics import ApiMetrics
from penstock.handlers.context import Broker
from penstock.handlers.transaction_coordinator import verify
from penstock.net.connection import Answer, Connection
from penstock.protocol.batch import HEADER_BYTES, TRANSACTIONAL_BIT, BatchHeader, read_header
from penstock.protocol.frames import RequestHeader
from penstock.protocol.produce import (
    TOPIC_ID_SINCE,
    Produce,
    ProducedRecords,
    ProduceResult,
    encode_produce_response,
    parse_produce,
    usual_produce,
    usual_response,
)
from penstock.protocol.validation import BatchRefused, check_batch, deep_check, needs_deep_check
from penstock.replication.appends import ACKS_ALL
from penstock.replication.manager import ReplicaManager, pick
from penstock.replication.partition import Partition

API_KEY = 0
ABORTABLE_SINCE = 11
ADDS_PARTITIONS_SINCE = 12
MAX_TIMEOUT_MS = 15 * 60 * 1000
_ACKS = (ACKS_ALL, 0, 1)


class ProduceCall:
    """One Produce request on its way: collects its partitions' outcomes, then answers."""

    __slots__ = (
        "_answer",
        "_correlation_id",
        "_left",
        "_metrics",
        "_results",
        "_started",
        "acks",
        "requested",
        "transactional_id",
        "version",
    )

    def __init__(
        self, request: Produce, header: RequestHeader, answer: Answer, metrics: ApiMetrics, started: float
    ) -> None:
        self.requested: list[ProducedRecords] = request.partitions
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.version = header.api_version
        self._results: list[ProduceResult] = []
        self._left = len(request.partitions)
        self._correlation_id = header.correlation_id
        self._answer = answer
        self._metrics = metrics
        self._started = started

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        topic, index, _ = self.requested[slot]
        self._finish(ProduceResult(topic, index, 0, base_offset, log_append_time_ms, log_start_offset))

    def failed(self, slot: int, error: BrokerError) -> None:
        topic, index, _ = self.requested[slot]
        self._metrics.errors[error.code] += 1
        if self.acks == 0:
            self._answer.abandon(f"produce with acks=0 failed: {error.message}")
        at_fault = error.record_index if isinstance(error, BatchRefused) else -1
        self._finish(ProduceResult(topic, index, error.code, -1, -1, -1, error.message, at_fault))

    def _finish(self, result: ProduceResult) -> None:
        self._results.append(result)
        self._left -= 1
        if not self._left:
            self.complete()

    def complete(self) -> None:
        self._metrics.latency.observe(time.perf_counter() - self._started)
        if self.acks == 0:
            self._answer.complete(())
            return
        results = self._results
        if len(results) > 1:
            results.sort(key=lambda result: result.topic)
        self._answer.complete((encode_produce_response(self._correlation_id, self.version, results),))


class UsualCall:
    """ProduceCall for one partition, found by `usual_produce`: nothing to collect, the answer is one call away."""

    __slots__ = ("_acks", "_answer", "_correlation_id", "_metrics", "_partition", "_started", "_topic", "_version")

    def __init__(
        self,
        correlation_id: int,
        version: int,
        acks: int,
        topic: bytes,
        partition: int,
        answer: Answer,
        metrics: ApiMetrics,
        started: float,
    ) -> None:
        self._correlation_id = correlation_id
        self._version = version
        self._acks = acks
        self._topic = topic
        self._partition = partition
        self._answer = answer
        self._metrics = metrics
        self._started = started

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self._metrics.latency.observe(time.perf_counter() - self._started)
        if self._acks == 0:
            self._answer.complete(())
            return
        response = usual_response(
            self._correlation_id, self._topic, self._partition, base_offset, log_append_time_ms, log_start_offset
        )
        self._answer.complete((response,))

    def failed(self, slot: int, error: BrokerError) -> None:
        requested = [ProducedRecords(self._topic, self._partition, None)]
        request = Produce(None, self._acks, 0, requested, 0)
        header = RequestHeader(API_KEY, self._version, self._correlation_id, None, 0)
        ProduceCall(request, header, self._answer, self._metrics, self._started).failed(slot, error)


def produce_usual(connection: Connection, frame: memoryview, broker: Broker) -> bool:
    """Serves the request if it is a Produce of the usual shape and its topic takes the batch as it is.

    False: nothing has happened, and the general way serves it, or finds out what is wrong with it.
    """
    usual = usual_produce(frame)
    if usual is None:
        return False
    correlation_id, acks, timeout_ms, topic, index, records, batch = usual
    partitions = broker.partitions.by_name.get(topic)
    if partitions is None or not 0 <= index < len(partitions) or acks not in _ACKS:
        return False
    partition = partitions[index]
    now_ms = broker.clock.now_ms()
    if partition is None or not partition.takes_as_it_is(batch, now_ms):
        return False
    started = time.perf_counter()
    metrics = broker.api_metrics[API_KEY]
    metrics.requests += 1
    call = UsualCall(correlation_id, frame[3], acks, topic, index, connection.expect_answer(), metrics, started)
    deadline_ms = started * 1000 + min(max(timeout_ms, 0), MAX_TIMEOUT_MS)
    try:
        partition.append(records, batch, acks, now_ms, deadline_ms, call, 0)
    except BrokerError as error:
        call.failed(0, error)
    return True


def produce(connection: Connection, frame: memoryview, header: RequestHeader, broker: Broker) -> None:
    started = time.perf_counter()
    version = header.api_version
    request = parse_produce(frame, header.body_start, version)
    metrics = broker.api_metrics[API_KEY]
    metrics.requests += 1
    metrics.requests_with_trailing_bytes += request.end < len(frame)
    call = ProduceCall(request, header, connection.expect_answer(), metrics, started)
    if not request.partitions:
        call.complete()
        return
    acks = request.acks
    refusal = _refusal(request) if acks not in _ACKS else None
    now_ms = broker.clock.now_ms()
    deadline_ms = started * 1000 + min(max(request.timeout_ms, 0), MAX_TIMEOUT_MS)
    for slot, (topic, index, records) in enumerate(request.partitions):
        try:
            if refusal is not None:
                raise refusal
            partition = _find(broker.partitions, version, topic, index, records)
            if records is None:
                raise BrokerError(ErrorCode.INVALID_RECORD, "no records")
            limits = partition.limits
            batch = check_batch(records, limits, version, now_ms)
            if batch.attributes & TRANSACTIONAL_BIT and request.transactional_id is None:
                raise _without_transactional_id()
            if batch.producer_id in partition.admission.waiting or _has_to_wait(batch, partition):
                append = _admitted_append(broker, partition, records, batch, call, slot, deadline_ms)
                if partition.admission.submit(batch.producer_id, append):
                    connection.lend()
            else:
                partition.append(records, batch, acks, now_ms, deadline_ms, call, slot)
        except BrokerError as error:
            call.failed(slot, error)


def _find(replicas: ReplicaManager, version: int, topic: bytes, index: int, records: memoryview | None) -> Partition:
    if version >= TOPIC_ID_SINCE:
        partitions, unknown = replicas.by_id.get(topic), ErrorCode.UNKNOWN_TOPIC_ID
    else:
        partitions, unknown = replicas.by_name.get(topic), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        if partitions is None:
            raise BrokerError(unknown, "no such topic here")
        partition = pick(partitions, index)
    except BrokerError:
        if records is not None and len(records) >= HEADER_BYTES:
            replicas.missed(topic, index, read_header(records))
        raise
    if partition.is_internal:
        raise BrokerError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic_partition.topic} is written by its coordinator only"
        )
    return partition


def _refusal(request: Produce) -> BrokerError:
    """Why no partition of this request can be served."""
    return BrokerError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}: must be 0, 1 or -1 (all)")


def _without_transactional_id() -> BrokerError:
    return BrokerError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch in a request without transactional id"
    )


def _has_to_wait(batch: BatchHeader, partition: Partition) -> bool:
    return needs_deep_check(batch, partition.limits) or (
        batch.is_transactional and partition.verification.is_needed(batch)
    )


async def _admitted_append(
    broker: Broker,
    partition: Partition,
    records: memoryview,
    batch: BatchHeader,
    call: ProduceCall,
    slot: int,
    deadline_ms: float,
) -> None:
    """In a slow lane: a transaction's first batch waits for its coordinator; opening a compressed batch, as the topic's
    configuration asks, costs CPU and runs in a thread.
    """
    try:
        if needs_deep_check(batch, partition.limits):
            now_ms = broker.clock.now_ms()
            records, batch = await broker.files.run(deep_check, records, batch, partition.limits, now_ms)
        # Nothing may be waited for between this and the append: the transaction could end meanwhile.
        if batch.is_transactional and partition.verification.is_needed(batch):
            await _verify(broker, partition, batch, call)
        partition.append(records, batch, call.acks, broker.clock.now_ms(), deadline_ms, call, slot)
    except BrokerError as error:
        call.failed(slot, error)


async def _verify(broker: Broker, partition: Partition, batch: BatchHeader, call: ProduceCall) -> None:
    assert call.transactional_id is not None
    adds = call.version >= ADDS_PARTITIONS_SINCE
    try:
        is_current = await verify(
            call.transactional_id,
            Producer(batch.producer_id, batch.producer_epoch),
            partition,
            broker,
            adds=adds,
            knows_abortable=call.version >= ABORTABLE_SINCE,
        )
    except BrokerError as unverified:
        raise partition.turned_away.told(batch, unverified) from None
    if not is_current and partition.verification.is_needed(batch):
        raise BrokerError(ErrorCode.INVALID_TXN_STATE, f"{partition.topic_partition}: the transaction has ended")
    if adds and batch.base_sequence != 0 and batch.producer_id not in partition.log.producers.entries:
        # Every transaction begins an epoch, and every epoch with 0: what came before this batch is not here yet.
        error = BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"{partition.topic_partition}: the first batch of producer {batch.producer_id} has sequence number"
            f" {batch.base_sequence}",
        )
        raise partition.turned_away.instead_of(batch, error)
