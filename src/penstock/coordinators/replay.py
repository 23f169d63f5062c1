"""The records of a coordinator's partition, in order, to rebuild its machine from.

Of most keys only the last record counts, as in any log that is compacted. So the log is read twice: first the last
offset of each key is noted, then batches that have later records for all their keys are passed over. Both are the
kernel's work; what is left for Python is a record or two for each key, not for each commit of a day.

Records of transactions are applied as pending, and take effect or are dropped where the log has the end of their
transaction. A record that cannot be understood is reported and passed over: one bad record must not take the other
groups of its partition with it (trap E4).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial

from penstock.coordinators.decision import LogRecord
from penstock.coordinators.machine import Machine, TransactionalMachine
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.metrics import CoordinatorMetrics
from penstock.protocol.batch import BatchHeader, CorruptBatch, split
from penstock.protocol.control import read_end_marker
from penstock.protocol.records import InvalidRecords, iterate
from penstock.protocol.records.compaction import OffsetMap, Stop, add_batches, end_offset, pass_over
from penstock.replication.partition import Partition
from penstock.runtime.files import Files

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
# What a batch of one short record takes, so that there are no more keys; 48 MiB for a map of a million.
LEAST_BYTES_A_KEY = 80
MOST_KEYS = 1 << 20
HASH_KEY_BYTES = 16
POLL_COMMITTED_S = 0.01


async def replay(partition: Partition, machine: Machine, files: Files, metrics: CoordinatorMetrics) -> None:
    """In threads: nobody else knows the machine yet. Raises BrokerError or OSError when the log cannot be read."""
    last_offsets = await partition.log.in_thread(files, _note_last_offsets, partition)
    offset = partition.log.log_start_offset
    while offset < partition.log.log_end_offset:
        if offset >= partition.high_watermark.offset:
            # Written before a crash and not yet flushed: it is answered from only when it is committed.
            if partition.refusal is not None:
                raise partition.refusal.anew()
            await asyncio.sleep(POLL_COMMITTED_S)
            continue
        offset = await partition.log.in_thread(files, _replay_chunk, partition, offset, last_offsets, machine, metrics)


def _note_last_offsets(partition: Partition) -> OffsetMap:
    """Blocking. Of what is committed, and of as many keys as there is room for: for others nothing is passed over."""
    most_keys = min(MOST_KEYS, partition.log.size_bytes // LEAST_BYTES_A_KEY) + 1
    last_offsets = OffsetMap(2 * most_keys, most_keys, os.urandom(HASH_KEY_BYTES))
    offset = partition.log.log_start_offset
    while (content := _chunk(partition, offset)) is not None and (behind := end_offset(content)) > offset:
        if not _note_chunk(partition, content, offset, last_offsets):
            break
        offset = behind
    return last_offsets


def _note_chunk(partition: Partition, content: bytes | bytearray, offset: int, last_offsets: OffsetMap) -> bool:
    """False when there is no more room."""
    position = 0
    while True:
        try:
            position, stop = add_batches(last_offsets, content, position, len(content), offset)
        except CorruptBatch as bad:
            position, stop = bad.position, Stop.COMPRESSED
        header = _batch_at(partition, content, position)
        if header is None or stop == Stop.MAP_FULL:
            return header is None
        position += header.size  # compressed, of a transaction, or damaged: it will be looked at


def _chunk(partition: Partition, offset: int) -> bytes | bytearray | None:
    span = partition.read(offset, CHUNK_BYTES, at_least_one=True, wait=True)
    return None if span is None else span.file.read(span.length, span.position)


def _replay_chunk(
    partition: Partition, offset: int, last_offsets: OffsetMap, machine: Machine, metrics: CoordinatorMetrics
) -> int:
    """Blocking. Returns the offset to go on from."""
    content = _chunk(partition, offset)
    if content is None:
        return offset
    position = 0
    while True:
        position = pass_over(last_offsets, content, position, len(content))
        header = _batch_at(partition, content, position)
        if header is None:
            return max(offset, end_offset(content))
        if header.last_offset >= offset:
            _replay_batch(partition, content, position, header, machine, metrics)
        position += header.size


def _batch_at(partition: Partition, content: bytes | bytearray, position: int) -> BatchHeader | None:
    """None when it is not there whole."""
    try:
        return next((header for _, header in split(memoryview(content)[position:])), None)
    except CorruptBatch as error:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition}: {error}") from None


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
