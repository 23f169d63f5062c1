"""What is in the page cache, asked of the kernel and not of the code under test."""

import os
from pathlib import Path


def evict(path: Path | str) -> None:
    """To the disk and out of memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def can_be_evicted(path: Path | str) -> bool:
    """False on a file system that lives in memory. Leaves the file evicted where that is possible."""
    evict(path)
    is_possible = _is_cold(path)
    evict(path)  # asking may have begun to bring it in
    return is_possible


def _is_cold(path: Path | str) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], os.fstat(descriptor).st_size - 1, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
