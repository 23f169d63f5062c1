"""Builders for logs on real files: small settings, batches with known bytes, and what a log must hold afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from penstock.protocol.batch import BatchHeader, Codec, read_header, split
from penstock.protocol.records import Record, StoredRecord, build_batch, iterate
from penstock.storage.log import FileSpan, Log, LogConfig

NOW_MS = 1_700_000_000_000

SMALL = LogConfig(
    segment_bytes=1 << 20,
    segment_ms=7 * 24 * 3_600_000,
    segment_index_bytes=10 << 20,
    index_interval_bytes=4096,
    retention_ms=-1,
    retention_bytes=-1,
    file_delete_delay_ms=60_000,
)


def config(**changes: object) -> LogConfig:
    return dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]


def a_batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamp: int = NOW_MS,
    timestamps: Iterable[int] | None = None,
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """`producer` is (producer_id, producer_epoch, base_sequence)."""
    times = list(timestamps) if timestamps is not None else [timestamp] * count
    records = [Record(None, value, timestamp=each) for each in times]
    producer_id, producer_epoch, base_sequence = producer
    return build_batch(
        records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


def stage(log: Log, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW_MS) -> int:
    return log.stage(memoryview(batch), read_header(batch), epoch, now_ms)


def append(log: Log, batch: bytearray, *, epoch: int = 0, now_ms: int = NOW_MS) -> int:
    base_offset = stage(log, batch, epoch=epoch, now_ms=now_ms)
    log.write_staged()
    return base_offset


def flush(log: Log) -> None:
    ticket = log.begin_flush()
    ticket.run()
    log.finish_flush(ticket)


def bytes_of(span: FileSpan) -> bytes:
    return os.pread(span.file.fd, span.length, span.position)


def headers(log: Log) -> list[BatchHeader]:
    """All batches, read from the files from first to last, whatever any index says."""
    found = []
    for segment in log.segments:
        with open(segment.path, "rb") as file:
            found += [header for _, header in split(file.read())]
    return found


def records(log: Log) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    for segment in log.segments:
        with open(segment.path, "rb") as file:
            content = file.read()
        for position, _ in split(content):
            found += iterate(content, position)
    return found


def files(directory: str) -> dict[str, bytes]:
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(f"{directory}/{name}", "rb") as file:
            found[name] = file.read()
    return found


def reopen(log: Log, *, clean: bool = True, recovery_point: int = 0, log_start_offset: int = 0) -> Log:
    """A new log over the same directory, after a clean close or (clean=False) after everything was dropped."""
    if clean:
        log.close()
    return Log.open(
        log.directory,
        log.config,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        clean=clean,
        now_ms=NOW_MS,
    )


@contextlib.contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Writes beyond this size fail for real: the write that crosses it is short, the next one is an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def small_disk(mount_point: Path, size_bytes: int) -> Iterator[str]:
    """A file system of its own that is full soon."""
    mount_point.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mount_point)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("a disk that gets full needs the right to mount a tmpfs")
    try:
        yield str(mount_point)
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


@contextlib.contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every open fails for real, with EMFILE; what is open stays usable.

    The limit is zero, not the lowest free descriptor: threads that clients of other tests left behind in this process
    may close one at any time, and an open would take its number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
