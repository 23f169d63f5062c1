"""Logs with transactions: batches and markers of producers, and what a reader of committed records makes of them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.storage.kit import NOW_MS, append, stage

from penstock.protocol.batch import BatchHeader, Codec, split
from penstock.protocol.control import EndMarker, build_end_marker, read_end_marker
from penstock.protocol.records import Record, build_batch
from penstock.storage.log import AbortedTransaction, Log


def txn_batch(
    producer: tuple[int, int, int],
    count: int = 1,
    *,
    value: bytes = b"value",
    keys: Iterable[bytes] | None = None,
    codec: Codec = Codec.NONE,
    timestamp: int = NOW_MS,
) -> bytearray:
    """A batch of a transaction; `producer` is (producer_id, producer_epoch, base_sequence)."""
    producer_id, producer_epoch, base_sequence = producer
    names: list[bytes | None] = [None] * count if keys is None else [*keys]
    return build_batch(
        [Record(key, value, timestamp=timestamp) for key in names],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=True,
    )


def a_marker(
    producer_id: int, producer_epoch: int = 0, *, commit: bool, coordinator_epoch: int = 0, timestamp: int = NOW_MS
) -> bytearray:
    return build_end_marker(EndMarker(producer_id, producer_epoch, commit, coordinator_epoch), timestamp)


def abort(log: Log, producer_id: int, producer_epoch: int = 0) -> int:
    return append(log, a_marker(producer_id, producer_epoch, commit=False))


def commit(log: Log, producer_id: int, producer_epoch: int = 0) -> int:
    return append(log, a_marker(producer_id, producer_epoch, commit=True))


def stage_all(log: Log, batches: Iterable[bytearray]) -> None:
    for batch in batches:
        stage(log, batch)


def batches_of(log: Log) -> list[tuple[BatchHeader, bytes]]:
    """All of them, read from the files whatever any index says."""
    found = []
    for segment in log.segments:
        with open(segment.path, "rb") as file:
            content = file.read()
        found += [(header, content[at : at + header.size]) for at, header in split(content)]
    return found


def committed(
    batches: list[tuple[BatchHeader, bytes]], aborted: list[AbortedTransaction], from_offset: int, upper_offset: int
) -> list[int]:
    """The base offsets of the batches that a client at read_committed hands out, by Kafka's rule for clients."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    passing_over: set[int] = set()
    visible = []
    for header, batch in batches:
        if header.last_offset < from_offset or header.base_offset >= upper_offset:
            continue
        while waiting and waiting[0].first_offset <= header.last_offset:
            passing_over.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = read_end_marker(batch)
            if marker is not None and not marker.is_commit:
                passing_over.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in passing_over):
            visible.append(header.base_offset)
    return visible
