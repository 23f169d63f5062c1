"""A terminal that a test looks at: what is written to it, and what a person would have seen."""

from __future__ import annotations

import io
import os
import pty
import tty
from threading import Thread
from types import TracebackType


class Terminal(io.TextIOWrapper):
    """Both ends of one; `shown` is complete when it is closed."""

    def __init__(self) -> None:
        self._screen, keyboard = pty.openpty()
        tty.setraw(keyboard)
        super().__init__(os.fdopen(keyboard, "wb", buffering=0), write_through=True)
        self._seen = bytearray()
        self._reader = Thread(target=self._read)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._seen.decode()

    def _read(self) -> None:
        while True:
            try:
                self._seen += os.read(self._screen, 4096)
            except OSError:  # nobody has the other end any more
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._reader.join()
        os.close(self._screen)
