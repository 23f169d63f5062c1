"""What several brokers print, as one stream: whole lines, each with the name of who said it in front.

Lines are written by a thread, so that a terminal that stands still stops nobody but, once their pipes are full, those
who print. A stream that has gone (a pager that was quit) takes nothing with it: the brokers go on unheard.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from penstock.runtime.files import Files
from penstock.runtime.logs import Writable

READ_BYTES = 64 * 1024
# A line that never ends is cut here, because nobody has memory for all of it.
MAX_LINE_BYTES = 1024 * 1024


class Lines:
    """Cuts what is read from a pipe into lines."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole by now, without their ends."""
        first, *others = chunk.split(b"\n")
        self._begin(first)
        lines = []
        for other in others:
            lines += self.rest() or [b""]
            self._begin(other)
        if self._begun_bytes >= self._max_line_bytes:
            lines += self.rest()
        return lines

    def rest(self) -> list[bytes]:
        """What has no end yet, if there is something."""
        line = b"".join(self._begun)
        self._begun, self._begun_bytes = [], 0
        return [line] if line else []

    def _begin(self, part: bytes) -> None:
        self._begun.append(part)
        self._begun_bytes += len(part)


class LogStream:
    def __init__(self, descriptor: int, names: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._width = max(map(len, names))
        self._thread = Files(threads=1, name="log-stream")

    async def relay(self, pipe: asyncio.StreamReader, name: str) -> list[str]:
        """Until the pipe ends. The last line, if there was one."""
        lines, last = Lines(), b""
        while chunk := await pipe.read(READ_BYTES):
            last = await self._relay(lines.feed(chunk), name, last)
        last = await self._relay(lines.rest(), name, last)
        return [last.decode(errors="replace")] if last else []

    async def _relay(self, lines: list[bytes], name: str, last: bytes) -> bytes:
        if not lines:
            return last
        await self._thread.run(self._write, self._named(lines, name))
        return lines[-1] or last

    def text_of(self, name: str) -> Writable:
        """For one who prints whole lines from the event loop, and does not wait."""
        return _Text(self, name)

    def print(self, text: str, name: str) -> None:
        block = self._named(text.encode(errors="replace").splitlines(), name)
        self._thread.start(lambda: self._write(block), lambda error: None)

    async def finish(self) -> None:
        """Waits until all is written."""
        await self._thread.run(lambda: None)
        self._thread.close()

    def _named(self, lines: Sequence[bytes], name: str) -> bytes:
        prefix = f"{name.ljust(self._width)} | ".encode()
        return b"".join(prefix + line + b"\n" for line in lines)

    def _write(self, block: bytes) -> None:
        left = memoryview(block)
        with contextlib.suppress(OSError):  # nobody reads it any more
            while left:
                left = left[os.write(self._descriptor, left) :]


class _Text:
    def __init__(self, stream: LogStream, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str, /) -> None:
        self._stream.print(text, self._name)
