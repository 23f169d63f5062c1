"""Leases of the embedded store: when each one ends, in small files beside the database.

Renewing a lease happens every second or so and must neither cost an fsync nor wait for a writer, so the deadline is
not in the database; the keys attached to a lease are. A deadline is a time of the clock that counts since boot, suspend
included, and which nobody can set; it comes with the boot's id, because after a reboot every lease has ended.

Who has a lease keeps its file open: a broker that has run out of descriptors must not be taken for dead.

Whoever looks first ends an overdue lease. The lock on its file makes ending and renewing exclude each other: a renewal
either happens before the lease is judged, or finds it gone.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.metadata.sqlite_database import SqliteDatabase
from penstock.metadata.store import LeaseExpired, LeaseId

_DEADLINE = struct.Struct(">36sqq")  # boot id, time to live, deadline


class SqliteLeases:
    """`keep_alive` does not touch the database and may run on any thread; the rest belongs to the store's thread."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._directory = _lease_directory(database.path)
        self._boot_id = _boot_id()
        self._own: dict[LeaseId, int] = {}

    def grant(self, ttl_ms: int) -> LeaseId:
        with self._database.new_lease(ttl_ms) as lease_id:
            self._directory.mkdir(exist_ok=True)
            # The file is there before the lease can be seen, or another process would take it for overdue.
            self._file(lease_id).write_bytes(_DEADLINE.pack(self._boot_id, ttl_ms, _boot_time_ms() + ttl_ms))
            self._own[lease_id] = os.open(self._file(lease_id), os.O_RDWR | os.O_CLOEXEC)
        return lease_id

    def keep_alive(self, lease_id: LeaseId) -> None:
        with self._locked(lease_id, fcntl.LOCK_EX, self._own.get(lease_id)) as descriptor:
            if descriptor is None or self._is_over(descriptor):
                raise LeaseExpired(f"lease {lease_id} has ended")
            _, ttl_ms, _ = _DEADLINE.unpack(os.pread(descriptor, _DEADLINE.size, 0))
            os.pwrite(descriptor, _DEADLINE.pack(self._boot_id, ttl_ms, _boot_time_ms() + ttl_ms), 0)

    def end_overdue(self) -> bool:
        """End every lease whose time is up; whether keys were deleted."""
        deleted_keys = [self._end_if_over(lease_id) for lease_id in self._database.lease_ids()]
        return any(deleted_keys)

    def revoke(self, lease_id: LeaseId) -> bool:
        own = self._own.pop(lease_id, None)
        try:
            with self._locked(lease_id, fcntl.LOCK_EX, own):
                return self._end(lease_id)
        finally:
            if own is not None:
                os.close(own)

    def close(self) -> None:
        """Leases are left to run out."""
        own, self._own = self._own, {}
        for descriptor in own.values():
            os.close(descriptor)

    def _end_if_over(self, lease_id: LeaseId) -> bool:
        try:
            with self._locked(lease_id, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
                return (descriptor is None or self._is_over(descriptor)) and self._end(lease_id)
        except OSError:
            return False  # being renewed or ended this very moment, or there is no descriptor to look with

    def _end(self, lease_id: LeaseId) -> bool:
        deleted_keys = self._database.end_lease(lease_id)
        self._file(lease_id).unlink(missing_ok=True)
        return deleted_keys

    def _is_over(self, descriptor: int) -> bool:
        content = os.pread(descriptor, _DEADLINE.size, 0)
        if len(content) < _DEADLINE.size or os.fstat(descriptor).st_nlink == 0:
            return True
        boot_id, _, deadline_ms = _DEADLINE.unpack(content)
        return bool(boot_id != self._boot_id or deadline_ms <= _boot_time_ms())

    @contextmanager
    def _locked(self, lease_id: LeaseId, operation: int, own: int | None = None) -> Iterator[int | None]:
        """The lease's open and locked file; None when there is none, which means that the lease has ended."""
        if own is not None:
            fcntl.flock(own, operation)
            try:
                yield own
            finally:
                fcntl.flock(own, fcntl.LOCK_UN)
            return
        try:
            descriptor = os.open(self._file(lease_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            fcntl.flock(descriptor, operation)
            yield descriptor
        finally:
            os.close(descriptor)

    def _file(self, lease_id: LeaseId) -> Path:
        return self._directory / str(lease_id)


def is_running(database_path: Path, lease_id: LeaseId) -> bool:
    """For one that only looks on: it takes no lock, because a holder that stands still may have it."""
    try:
        content = (_lease_directory(database_path) / str(lease_id)).read_bytes()
    except FileNotFoundError:
        return False
    if len(content) < _DEADLINE.size:
        return False
    boot_id, _, deadline_ms = _DEADLINE.unpack(content)
    return bool(boot_id == _boot_id() and deadline_ms > _boot_time_ms())


def _lease_directory(database_path: Path) -> Path:
    return Path(f"{database_path}-leases")


def _boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _boot_time_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
