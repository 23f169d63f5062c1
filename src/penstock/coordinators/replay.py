"""Every record of a coordinator's partition, in order, to rebuild its machine from.

Records of transactions are applied as pending, and take effect or are dropped where the log has the end of their
transaction. A record that cannot be understood is reported and passed over: one bad record must not take the other
groups of its partition with it (trap E4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.machine import Machine, TransactionalMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metrics import CoordinatorMetrics
from penstock.protocol.batch import BatchHeader, CorruptBatch, split
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import InvalidRecords, iterate
from penstock.replication.partition import Partition
from penstock.runtime.files import Files

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
POLL_COMMITTED_S = 0.01


async def replay(partition: Partition, machine: Machine, files: Files, metrics: CoordinatorMetrics) -> None:
    """In threads: nobody else knows the machine yet. Raises BrokerError or OSError when the log cannot be read."""
    offset = partition.log.log_start_offset
    while offset < partition.log.log_end_offset:
        if offset >= partition.high_watermark.offset:
            # Written before a crash and not yet flushed: it is answered from only when it is committed.
            if partition.refusal is not None:
                raise partition.refusal
            await asyncio.sleep(POLL_COMMITTED_S)
            continue
        offset = await files.run(_replay_chunk, partition, offset, machine, metrics)


def _replay_chunk(partition: Partition, offset: int, machine: Machine, metrics: CoordinatorMetrics) -> int:
    """Blocking. Returns the offset to go on from."""
    span = partition.read(offset, CHUNK_BYTES, at_least_one=True, wait=True)
    if span is None:
        return offset
    content = span.file.read(span.length, span.position)
    try:
        for position, header in split(content):
            if header.last_offset >= offset:
                _replay_batch(partition, content, position, header, machine, metrics)
            offset = max(offset, header.next_offset)
    except CorruptBatch as error:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition}: {error}") from None
    return offset


def _replay_batch(
    partition: Partition,
    content: bytes | bytearray,
    position: int,
    header: BatchHeader,
    machine: Machine,
    metrics: CoordinatorMetrics,
) -> None:
    try:
        if header.is_control:
            _replay_marker(content, position, machine)
            return
        apply = _apply_of(machine, header)
        for record in iterate(content, position):
            try:
                apply(LogRecord(record.key or b"", record.value, timestamp=record.timestamp))
                metrics.records_loaded += 1
            except ValueError as error:
                _report(partition, record.offset, error, metrics)
    except (BrokerError, InvalidRecords, ValueError) as error:
        _report(partition, header.base_offset, error, metrics)


def _apply_of(machine: Machine, header: BatchHeader) -> Callable[[LogRecord], None]:
    if not header.is_transactional:
        return machine.apply
    return partial(_with_transactions(machine).apply_pending, producer_id=header.producer_id)


def _replay_marker(content: bytes | bytearray, position: int, machine: Machine) -> None:
    marker = read_end_marker(content, position)
    if marker is not None:
        _with_transactions(machine).transaction_ended(marker.producer_id, committed=marker.is_commit)


def _with_transactions(machine: Machine) -> TransactionalMachine:
    if not isinstance(machine, TransactionalMachine):
        raise ValueError("part of a transaction, in the log of a coordinator that has none")
    return machine


def _report(partition: Partition, offset: int, error: Exception, metrics: CoordinatorMetrics) -> None:
    metrics.records_skipped += 1
    extra = {"partition": str(partition.topic_partition), "offset": offset, "reason": str(error)}
    log.error("coordinator record not understood, passed over", extra=extra)
