"""Reads the files of a log for people: batches, records, index entries, checkpoints; and says what is wrong with them.

A reader that trusts nothing: what it finds damaged becomes a Problem, never a traceback, and it goes on where it can.
Index entries are unpacked here and not by penstock.storage, so that a mistake in one is not shared by the other.
"""

from __future__ import annotations

import base64
import mmap
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from penstock.cli.terminal import counted
from penstock.core.errors import BrokerError
from penstock.core.ids import topic_id_to_text
from penstock.protocol.batch import (
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    Codec,
    ReadableBuffer,
    crc_is_valid,
    read_header,
)
from penstock.protocol.records import InvalidRecords, StoredRecord, iterate
from penstock.storage.checkpoints import BadCheckpoint, read_epochs, read_offsets, read_partition_metadata
from penstock.storage.producer_snapshot import BadSnapshot, from_bytes

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_TXN_ENTRY = Struct(">hqqqq")
_CONTROL_KEY = Struct(">hh")
_CONTROL_VALUE = Struct(">hi")
_CODEC_NAMES = {codec.value: codec.name.lower() for codec in Codec}
_CONTROL_TYPES = {0: "abort", 1: "commit"}


@dataclass(frozen=True, slots=True)
class Fact:
    """Something a file holds: printed as a line of text or of JSON."""

    kind: str
    fields: dict[str, object]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a file should not hold."""

    text: str


Finding = Fact | Problem


@dataclass(slots=True)
class BatchTable:
    """Where the batches of a segment are: what its indexes are checked against."""

    last_offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    max_timestamps: list[int] = field(default_factory=list)
    max_timestamps_so_far: list[int] = field(default_factory=list)
    # Offset to producer id.
    control_batches: dict[int, int] = field(default_factory=dict)

    def add(self, position: int, header: BatchHeader) -> None:
        self.last_offsets.append(header.last_offset)
        self.positions.append(position)
        self.max_timestamps.append(header.max_timestamp)
        before = self.max_timestamps_so_far[-1] if self.max_timestamps_so_far else -1
        self.max_timestamps_so_far.append(max(before, header.max_timestamp))
        if header.is_control:
            self.control_batches[header.base_offset] = header.producer_id

    def at_position(self, position: int) -> int | None:
        row = bisect_left(self.positions, position)
        return row if row < len(self.positions) and self.positions[row] == position else None

    def with_offset(self, offset: int) -> int | None:
        row = bisect_left(self.last_offsets, offset)
        return row if row < len(self.last_offsets) else None


def read_any(path: Path, with_records: bool) -> Iterator[Finding]:
    """What a file of a data directory holds, whichever kind it is."""
    if not path.exists():
        return iter([Problem("no such file")])
    if path.suffix == ".log":
        return read_log(path, with_records)
    reader = _READERS.get(path.suffix) or _READERS.get(path.name)
    if reader is None:
        return iter([Problem(f"not a file of a log: expected {', '.join(('.log', *_READERS))}")])
    return reader(path)


def is_readable(path: Path) -> bool:
    return path.suffix == ".log" or path.suffix in _READERS or path.name in _READERS


def read_log(path: Path, with_records: bool) -> Iterator[Finding]:
    """Every batch of a segment, in order, until the first bytes that are no batch."""
    with _mapped(path) as data:
        batches = records = 0
        next_offset = int(path.stem) if path.stem.isdigit() else 0
        first_offset = next_offset
        for position, header in _batches(data):
            if header is None:
                yield Problem(f"bytes {position} to {len(data)} are no whole batch")
                break
            yield Fact("batch", _batch_fields(position, header))
            yield from _check_batch(data, position, header, next_offset)
            if with_records:
                yield from _records(data, position, header)
            batches, records, next_offset = batches + 1, records + header.records_count, header.next_offset
        totals: dict[str, object] = {"batches": batches, "records": records, "bytes": len(data)}
        yield Fact("total", totals | ({"first_offset": first_offset, "next_offset": next_offset} if batches else {}))


@contextmanager
def _mapped(path: Path) -> Iterator[ReadableBuffer]:
    """The file's bytes, without reading what is not looked at."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view


def _batches(data: ReadableBuffer) -> Iterator[tuple[int, BatchHeader | None]]:
    """Batches and where they are; None stands for the rest of the file when it is none."""
    position = 0
    while position < len(data):
        header = read_header(data, position) if len(data) - position >= HEADER_BYTES else None
        if header is not None and not _is_whole(header, len(data) - position):
            header = None
        yield position, header
        if header is None:
            return
        position += header.size


def _is_whole(header: BatchHeader, bytes_left: int) -> bool:
    return header.magic == MAGIC and header.batch_length >= MIN_BATCH_LENGTH and header.size <= bytes_left


def _check_batch(data: ReadableBuffer, position: int, header: BatchHeader, next_offset: int) -> Iterator[Finding]:
    if not crc_is_valid(data, position, header):
        yield Problem(f"the batch at byte {position} fails its CRC")
    if header.base_offset < next_offset:
        yield Problem(f"the batch at byte {position} has offset {header.base_offset}, after {next_offset - 1}")


def _batch_fields(position: int, header: BatchHeader) -> dict[str, object]:
    fields: dict[str, object] = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size": header.size,
        "records": header.records_count,
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "codec": _CODEC_NAMES.get(header.codec, header.codec),
        "leader_epoch": header.partition_leader_epoch,
    }
    if header.producer_id >= 0:
        fields |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "last_sequence": header.last_sequence,
            "transactional": header.is_transactional,
        }
    return fields | ({"control": True} if header.is_control else {})


def _records(data: ReadableBuffer, position: int, header: BatchHeader) -> Iterator[Finding]:
    try:
        for record in iterate(data, position):
            yield Fact("record", _record_fields(record, header.is_control))
    except (BrokerError, InvalidRecords) as error:
        yield Problem(f"the records of the batch at byte {position} cannot be read: {error}")


def _record_fields(record: StoredRecord, is_control: bool) -> dict[str, object]:
    fields: dict[str, object] = {"offset": record.offset, "timestamp": record.timestamp}
    if is_control and record.key is not None and len(record.key) == _CONTROL_KEY.size:
        control_type = _CONTROL_KEY.unpack(record.key)[1]
        fields |= {"control_type": _CONTROL_TYPES.get(control_type, control_type)}
        if control_type in _CONTROL_TYPES and record.value is not None and len(record.value) >= _CONTROL_VALUE.size:
            fields |= {"coordinator_epoch": _CONTROL_VALUE.unpack_from(record.value)[1]}
        return fields
    headers = {"headers": [[name, _text(value)] for name, value in record.headers]} if record.headers else {}
    return fields | {"key": _text(record.key), "value": _text(record.value)} | headers


def _text(data: bytes | None) -> str | dict[str, str] | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data or b"").decode()}


def _batch_table(index_path: Path) -> BatchTable | None:
    """The batches of the segment that an index is of; None when the segment is not there."""
    log_path = index_path.with_suffix(".log")
    if not log_path.exists():
        return None
    table = BatchTable()
    with _mapped(log_path) as data:
        for position, header in _batches(data):
            if header is not None:
                table.add(position, header)
    return table


def _entries(path: Path, entry: Struct) -> Iterator[Finding | tuple[int, int]]:
    """Pairs of an index up to the zeros that an open segment's file ends with."""
    content = path.read_bytes()
    if len(content) % entry.size:
        yield Problem(f"{counted(len(content), 'byte')}: no whole number of entries of {entry.size}")
    for at in range(0, len(content) - entry.size + 1, entry.size):
        first, second = entry.unpack_from(content, at)
        if first == second == 0:
            return
        yield first, second


def _read_offset_index(path: Path) -> Iterator[Finding]:
    table = _batch_table(path)
    if table is None:
        yield Problem("its segment is not there: entries are not checked")
    previous = (-1, -1)
    for found in _entries(path, _OFFSET_ENTRY):
        if not isinstance(found, tuple):
            yield found
            continue
        offset, position = int(path.stem) + found[0], found[1]
        yield Fact("entry", {"offset": offset, "position": position})
        if found[0] <= previous[0] or found[1] <= previous[1]:
            yield Problem(f"the entry (offset {offset}, position {position}) does not rise")
        previous = found
        yield from _check_offset_entry(table, offset, position)


def _check_offset_entry(table: BatchTable | None, offset: int, position: int) -> Iterator[Finding]:
    if table is None:
        return
    row = table.at_position(position)
    if row is None:
        yield Problem(f"the entry for offset {offset} points at byte {position}, where no batch begins")
    elif table.last_offsets[row] != offset:
        yield Problem(
            f"the entry for offset {offset} points at byte {position}, whose batch ends with {table.last_offsets[row]}"
        )


def _read_time_index(path: Path) -> Iterator[Finding]:
    table = _batch_table(path)
    if table is None:
        yield Problem("its segment is not there: entries are not checked")
    previous = (-1, -1)
    for found in _entries(path, _TIME_ENTRY):
        if not isinstance(found, tuple):
            yield found
            continue
        timestamp, offset = found[0], int(path.stem) + found[1]
        yield Fact("entry", {"timestamp": timestamp, "offset": offset})
        if timestamp <= previous[0] or found[1] <= previous[1]:
            yield Problem(f"the entry (timestamp {timestamp}, offset {offset}) does not rise")
        previous = found
        yield from _check_time_entry(table, timestamp, offset)


def _check_time_entry(table: BatchTable | None, timestamp: int, offset: int) -> Iterator[Finding]:
    if table is None:
        return
    row = table.with_offset(offset)
    if row is None:
        yield Problem(f"the entry for timestamp {timestamp} names offset {offset}, which is not in the segment")
    elif table.max_timestamps[row] != timestamp:
        yield Problem(
            f"the entry for timestamp {timestamp} names offset {offset}, "
            f"whose batch has the timestamp {table.max_timestamps[row]}"
        )
    elif table.max_timestamps_so_far[row] > timestamp:
        yield Problem(f"the entry for timestamp {timestamp} comes after a batch with a larger timestamp")


def _read_txn_index(path: Path) -> Iterator[Finding]:
    table = _batch_table(path)
    if table is None:
        yield Problem("its segment is not there: entries are not checked")
    content = path.read_bytes()
    if len(content) % _TXN_ENTRY.size:
        yield Problem(f"{counted(len(content), 'byte')}: no whole number of entries of {_TXN_ENTRY.size}")
    previous = -1
    for at in range(0, len(content) - _TXN_ENTRY.size + 1, _TXN_ENTRY.size):
        version, producer_id, first_offset, last_offset, last_stable_offset = _TXN_ENTRY.unpack_from(content, at)
        yield Fact(
            "aborted",
            {
                "producer_id": producer_id,
                "first_offset": first_offset,
                "last_offset": last_offset,
                "last_stable_offset": last_stable_offset,
            },
        )
        if version != 0:
            yield Problem(f"the entry for the marker at {last_offset} has version {version}")
        if last_offset <= previous:
            yield Problem(f"the entry for the marker at {last_offset} does not rise")
        previous = last_offset
        if table is not None and table.control_batches.get(last_offset) != producer_id:
            yield Problem(f"the entry names offset {last_offset}, which is no marker of producer {producer_id}")


def _read_snapshot(path: Path) -> Iterator[Finding]:
    try:
        producers = from_bytes(path.read_bytes(), now_ms=0)
    except BadSnapshot as error:
        yield Problem(f"the snapshot is damaged: {error}")
        return
    for producer_id, entry in producers.items():
        batches = [
            {
                "base_sequence": batch.base_sequence,
                "last_sequence": batch.last_sequence,
                "last_offset": batch.last_offset,
            }
            for batch in entry.batches
        ]
        fields = {"producer_id": producer_id, "producer_epoch": entry.producer_epoch, "batches": batches}
        if entry.coordinator_epoch >= 0:
            fields |= {"coordinator_epoch": entry.coordinator_epoch}
        if entry.current_txn_first_offset >= 0:
            fields |= {"open_since_offset": entry.current_txn_first_offset}
        yield Fact("producer", fields)


def _read_epochs(path: Path) -> Iterator[Finding]:
    try:
        for entry in read_epochs(str(path)):
            yield Fact("epoch", {"leader_epoch": entry.epoch, "start_offset": entry.start_offset})
    except BadCheckpoint as error:
        yield Problem(str(error))


def _read_offsets(path: Path) -> Iterator[Finding]:
    try:
        for partition, offset in read_offsets(str(path)).items():
            yield Fact("checkpoint", {"partition": str(partition), "offset": offset})
    except BadCheckpoint as error:
        yield Problem(str(error))


def _read_partition_metadata(path: Path) -> Iterator[Finding]:
    try:
        topic_id = read_partition_metadata(str(path.parent))
    except BadCheckpoint as error:
        yield Problem(str(error))
        return
    yield Fact("partition", {"topic_id": None if topic_id is None else topic_id_to_text(topic_id)})


_READERS: dict[str, Callable[[Path], Iterator[Finding]]] = {
    ".index": _read_offset_index,
    ".timeindex": _read_time_index,
    ".txnindex": _read_txn_index,
    ".snapshot": _read_snapshot,
    "leader-epoch-checkpoint": _read_epochs,
    "partition.metadata": _read_partition_metadata,
    "recovery-point-offset-checkpoint": _read_offsets,
    "replication-offset-checkpoint": _read_offsets,
    "log-start-offset-checkpoint": _read_offsets,
}
