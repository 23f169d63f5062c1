"""Whether a start finds the page cache that the last process wrote into.

It outlives a process and goes with the machine: what was written and not flushed is there after a kill and lost after a
power cut. Both leave the same files; what tells them apart is the boot id, and which file system is mounted where.
Blocks.
"""

from __future__ import annotations

import os

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOUNTS = "/proc/self/mountinfo"


def page_cache_id(directory: str) -> str | None:
    """Another after every boot and every mount; None where that cannot be told."""
    try:
        found = os.stat(directory)
        return f"{_boot_id()} {found.st_dev} {found.st_ino} {_mount_id(os.path.realpath(directory))}"
    except OSError:
        return None


def boot_id() -> str | None:
    try:
        return _boot_id()
    except OSError:
        return None


def _boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def _mount_id(path: str) -> str:
    """Of the mount that holds the path: the one with the longest mount point above it, the last of equals."""
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split(" ", 5) for line in file]
    above = [
        (len(row[4]), at, row[0])
        for at, row in enumerate(rows)
        if row[4] == "/" or path == row[4] or path.startswith(f"{row[4]}/")
    ]
    return max(above)[2]
