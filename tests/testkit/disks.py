"""Disks of their own: file systems in image files, which can lose their power, and fill up.

At a power cut the image is copied without a sync or an unmount: the copy is what a disk would hold. What was synced is
there, what was not is gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_BALLAST = "ballast"


def _run(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True, capture_output=True)


def copy_image(image: Path, copy: Path) -> None:
    _run("cp", "--sparse=always", image, copy)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    _mount(image, at)
    try:
        yield at
    finally:
        _unmount(at)


def an_image(path: Path, mebibytes: int) -> Path:
    """An empty file system. Skips the test where images cannot be mounted."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk of one's own needs root and mkfs.ext4 to mount an image")
    _run("truncate", "-s", f"{mebibytes}M", path)
    _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", path)
    try:
        with mounted(path, path.with_name(f"{path.name}-probe")) as probe:
            (probe / "lost+found").rmdir()  # nothing of it belongs into a data directory
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop mounts here: {error.stderr.decode().strip()}")
    return path


class Disk:
    """Use as `with Disk.made(image, at): ...`; whoever uses it has ended when its power is cut."""

    def __init__(self, image: Path, at: Path) -> None:
        self._image = image
        self.at = at

    @classmethod
    def made(cls, image: Path, at: Path, mebibytes: int) -> Self:
        disk = cls(an_image(image, mebibytes), at)
        _mount(disk._image, at)
        return disk

    def lose_power(self) -> None:
        """What nobody had synced is gone."""
        crashed = self._image.with_name(f"{self._image.name}.crashed")
        copy_image(self._image, crashed)
        _unmount(self.at)
        crashed.replace(self._image)
        _mount(self._image, self.at)

    def fill_up(self) -> None:
        with (self.at / _BALLAST).open("wb") as ballast:
            size = 0
            piece = 1 << 22
            while piece >= 1 << 12:
                try:
                    os.posix_fallocate(ballast.fileno(), size, piece)
                    size += piece
                except OSError:
                    piece //= 2

    def make_room(self) -> None:
        (self.at / _BALLAST).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _unmount(self.at)


def _mount(image: Path, at: Path) -> None:
    at.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", image, at)


def _unmount(at: Path) -> None:
    _run("umount", "--lazy", at)
