"""What a power cut leaves: what was flushed, and of the rest a part that luck decides.

Files are real, on a file system in memory. `fsync` and `fdatasync` remember what a file held, or a directory named, at
that moment. After a cut, a directory names what it named when it was last flushed, or what it names now; a file holds
what was flushed, followed by as much of what was appended since as had been written in that order.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.simulation.loop import current_process

_ENTROPY = random.Random(0)


@dataclass
class _Directory:
    files: dict[str, bytes] = field(default_factory=dict)
    directories: dict[str, _Directory] = field(default_factory=dict)


class Disk:
    def __init__(self) -> None:
        # By inode: a file keeps what was flushed of it when it is renamed.
        self._flushed: dict[int, bytes] = {}
        self._named: dict[int, dict[str, int]] = {}

    def sync(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._named[status.st_ino] = _names(fd)
        else:
            self._flushed[status.st_ino] = _content(fd, status.st_size)

    def power_cut(self, path: str, luck: random.Random) -> None:
        left = self._left_of(path, luck)
        shutil.rmtree(path)
        self._write(path, left)

    def _left_of(self, path: str, luck: random.Random) -> _Directory:
        left = _Directory()
        now = _names(path)
        inodes = {inode: name for name, inode in now.items()}
        flushed = self._named.get(os.stat(path).st_ino)
        names = flushed if flushed is not None and luck.random() < 0.5 else now
        for name, inode in sorted(names.items()):
            present = inodes.get(inode)
            where = None if present is None else f"{path}/{present}"
            if where is not None and os.path.isdir(where):
                left.directories[name] = self._left_of(where, luck)
            elif where is not None or inode in self._flushed:
                left.files[name] = self._left_of_file(where, inode, luck)
        return left

    def _left_of_file(self, where: str | None, inode: int, luck: random.Random) -> bytes:
        flushed = self._flushed.get(inode)
        if where is None:
            assert flushed is not None
            return flushed
        with open(where, "rb") as file:
            content = file.read()
        if flushed is None:
            flushed = b""
        how = luck.randrange(3)
        if how == 0:
            return flushed
        if how == 1:
            return content
        return content[: luck.randint(len(flushed), len(content))] if content.startswith(flushed) else flushed

    def _write(self, path: str, left: _Directory) -> None:
        """All of it is on the disk: it has just been read from there."""
        os.mkdir(path)
        for name, content in left.files.items():
            with open(f"{path}/{name}", "wb") as file:
                file.write(content)
            self._flushed[os.stat(f"{path}/{name}").st_ino] = content
        for name, each in left.directories.items():
            self._write(f"{path}/{name}", each)
        self._named[os.stat(path).st_ino] = _names(path)


def _names(where: str | int) -> dict[str, int]:
    with os.scandir(where) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _content(fd: int, size: int) -> bytes:
    try:
        return os.pread(fd, size, 0)
    except OSError:  # opened for writing only
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(reading, size, 0)
        finally:
            os.close(reading)


@contextmanager
def simulated_system(disk: Disk) -> Iterator[None]:
    """Whoever flushes or asks for random bytes is heard here."""
    real = (os.fsync, os.fdatasync, os.urandom)

    def urandom(count: int) -> bytes:
        process = current_process()
        return (_ENTROPY if process is None else process.luck).randbytes(count)

    os.fsync = os.fdatasync = disk.sync  # type: ignore[assignment]
    os.urandom = urandom
    try:
        yield
    finally:
        os.fsync, os.fdatasync, os.urandom = real
