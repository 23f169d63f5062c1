"""How processes that share a metadata file tell each other that they wrote to it: a datagram to each, saying nothing.

A nudge only saves waiting for the next poll. One that is lost, or comes twice, changes nothing: whoever is nudged looks
into the file, and looks from time to time anyway. Each process has a socket in a directory beside the file; that of a
process which died is removed by the first that finds nobody behind it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class Nudges:
    def __init__(self, database_path: Path, nudged: Callable[[], None]) -> None:
        self._nudged = nudged
        directory = Path(f"{database_path}-watchers")
        directory.mkdir(exist_ok=True)
        # A socket's path has at most 108 bytes; through the directory's descriptor it is short, wherever that is.
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(self._path(self._name))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._directory}/{name}"

    def _receive(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(1)
        self._nudged()

    def send(self) -> None:
        """On any thread. To everybody else; who has more nudges waiting than fit will look anyway."""
        with suppress(OSError):  # no descriptor left, say: then they find out at their next poll
            self._send_to(os.listdir(self._directory))  # noqa: PTH208 - by its descriptor

    def _send_to(self, names: list[str]) -> None:
        for name in names:
            if name == self._name:
                continue
            try:
                self._socket.sendto(b"", self._path(name))
            except ConnectionRefusedError:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._directory)
            except OSError:
                continue  # it has just gone, or has enough of them

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._directory)
        self._socket.close()
        os.close(self._directory)
