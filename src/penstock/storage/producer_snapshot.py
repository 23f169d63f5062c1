"""Producer state in a file, so that a start need not read the whole log: `<offset>.snapshot`, the state below it.

Kafka's layout, version 1: version (2 bytes), CRC-32C of what follows (4), number of entries (4), entries with the last
batch of each producer. Kafka keeps only that batch; a retry of one of the four before would be appended again after a
restart. So ours has a second part behind the entries, where Kafka's reader does not look but which its CRC covers:
the other batches of each window, and when the producer was last seen. A file without it is read all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from struct import Struct
from struct import error as StructError

from crc32c_rs import crc32c

from penstock.protocol.batch import MAX_SEQUENCE
from penstock.storage.checkpoints import replace_file
from penstock.storage.producers import WINDOW_BATCHES, AppendedBatch, ProducerEntry

_VERSION = 1
_HEAD = Struct(">hI")
_COUNT = Struct(">i")
# producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, current_txn_first_offset
_ENTRY = Struct(">qhiqiqiq")

_TRAILER_MAGIC = b"PENSTOCK"
_TRAILER_HEAD = Struct(">8shi")
_TRAILER_VERSION = 1
# producer_id, last_update_ms, known_sequences, number of batches
_WINDOW = Struct(">qqib")
# last_sequence, last_offset, offset_delta, timestamp
_BATCH = Struct(">iqiq")


class BadSnapshot(Exception):
    """A damaged file: it is passed over, and the state is rebuilt from an earlier one and the log."""


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset:020d}.snapshot"


def to_bytes(entries: Mapping[int, ProducerEntry]) -> bytes:
    body = [_COUNT.pack(len(entries))]
    windows = [_TRAILER_HEAD.pack(_TRAILER_MAGIC, _TRAILER_VERSION, len(entries))]
    for producer_id, entry in entries.items():
        body.append(_pack_entry(producer_id, entry))
        windows.append(_WINDOW.pack(producer_id, entry.last_update_ms, entry.known_sequences, len(entry.batches)))
        windows.extend(
            _BATCH.pack(batch.last_sequence, batch.last_offset, batch.last_offset - batch.base_offset, batch.timestamp)
            for batch in entry.batches
        )
    content = b"".join(body + windows)
    return _HEAD.pack(_VERSION, crc32c(content)) + content


def _pack_entry(producer_id: int, entry: ProducerEntry) -> bytes:
    # Kafka forgets a producer by this timestamp, so one that has only markers gets the time of the last.
    last = entry.batches[-1] if entry.batches else AppendedBatch(-1, -1, -1, -1, entry.last_update_ms)
    return _ENTRY.pack(
        producer_id,
        entry.producer_epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.base_offset,
        last.timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def from_bytes(content: bytes, now_ms: int) -> dict[int, ProducerEntry]:
    """Producers of a file without our part count as seen now: forgetting them early would append a retry twice."""
    try:
        version, crc = _HEAD.unpack_from(content)
        if version != _VERSION:
            raise BadSnapshot(f"version {version}")
        if crc32c(content[_HEAD.size :]) != crc:
            raise BadSnapshot("the CRC does not match")
        (count,) = _COUNT.unpack_from(content, _HEAD.size)
        end = _HEAD.size + _COUNT.size + count * _ENTRY.size
        entries = dict(
            _unpack_entry(fields, now_ms) for fields in _ENTRY.iter_unpack(content[_HEAD.size + _COUNT.size : end])
        )
        _add_windows(entries, content, end)
    except StructError as error:
        raise BadSnapshot(str(error)) from None
    return entries


def _unpack_entry(fields: tuple[int, ...], now_ms: int) -> tuple[int, ProducerEntry]:
    producer_id, producer_epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn = fields
    batches = (_batch(last_sequence, last_offset, offset_delta, timestamp),) if last_offset >= 0 else ()
    known_sequences = offset_delta + 1 if batches else 0
    return producer_id, ProducerEntry(producer_epoch, batches, known_sequences, now_ms, coordinator_epoch, txn)


def _batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> AppendedBatch:
    base_sequence = (last_sequence - offset_delta) & MAX_SEQUENCE
    return AppendedBatch(base_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp)


def _add_windows(entries: dict[int, ProducerEntry], content: bytes, position: int) -> None:
    if not content.startswith(_TRAILER_MAGIC, position):
        return
    _, version, count = _TRAILER_HEAD.unpack_from(content, position)
    if version != _TRAILER_VERSION:
        return
    position += _TRAILER_HEAD.size
    for _ in range(count):
        producer_id, last_update_ms, known_sequences, length = _WINDOW.unpack_from(content, position)
        position += _WINDOW.size
        if not (0 <= length <= WINDOW_BATCHES and producer_id in entries):
            raise BadSnapshot(f"{length} batches of producer {producer_id}")
        batches = tuple(_batch(*_BATCH.unpack_from(content, position + at * _BATCH.size)) for at in range(length))
        position += length * _BATCH.size
        entries[producer_id] = entries[producer_id]._replace(
            batches=batches, known_sequences=known_sequences, last_update_ms=last_update_ms
        )


def write(directory: str, offset: int, entries: Mapping[int, ProducerEntry]) -> None:
    """Blocking; durable when the caller has flushed the directory."""
    replace_file(snapshot_path(directory, offset), to_bytes(entries))


def read(directory: str, offset: int, now_ms: int) -> dict[int, ProducerEntry]:
    """Blocking. Raises BadSnapshot."""
    fd = os.open(snapshot_path(directory, offset), os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
    return from_bytes(content, now_ms)
