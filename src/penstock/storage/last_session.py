"""Which session was begun by the last process that held the lock of a data directory.

That process is gone when its lock is ours, so its session can be taken over at once. A copy of the directory has a lock
of its own, and so has one that was moved to another machine: there the note proves nothing. It need not outlive the
machine, and is not flushed. Blocks.
"""

from __future__ import annotations

import os

from penstock.storage import checkpoints
from penstock.storage.page_cache import boot_id

_LAST_SESSION = ".penstock_session"


class LastSession:
    __slots__ = ("_lock", "_path", "epoch")

    def __init__(self, directory: str, lock_fd: int) -> None:
        self._path = f"{directory}/{_LAST_SESSION}"
        boot, lock = boot_id(), os.fstat(lock_fd)
        # The same on no other directory and no other machine; None where that cannot be told.
        self._lock = None if boot is None else f"{boot} {lock.st_dev} {lock.st_ino}"
        # None: nobody knows of one.
        self.epoch = self._noted()

    def _noted(self) -> int | None:
        text = checkpoints.read_text(self._path)
        lock, _, epoch = (text or "").rpartition(" ")
        return int(epoch) if lock == self._lock and epoch.isdigit() else None

    def began(self, epoch: int) -> None:
        """OSError: the next start waits until this session has run out."""
        self.epoch = epoch
        if self._lock is not None:
            checkpoints.replace_file(self._path, f"{self._lock} {epoch}".encode(), flush=False)
