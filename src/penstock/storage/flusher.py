"""Group commit: many acknowledgements wait for one fdatasync.

One flusher serves one data directory. A log has at most one flush under way; what is written meanwhile waits for the
next one, which then covers all of it. Several logs flush side by side, because a disk takes parallel flushes better
than a queue of them.

What must stay true: a flush that fails is never tried again. The directory goes offline, and everybody who waits for
any of its logs learns it. A flush for which a file could not be opened has not failed: it is put off.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from functools import partial

from penstock.runtime.files import Files
from penstock.runtime.syncs import Syncs
from penstock.storage.flush import FlushTicket
from penstock.storage.log import Log

DEFAULT_PARALLEL = 16
RETRY_S = 0.2

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

Notify = Callable[[], None]


class Flusher:
    __slots__ = (
        "_ended_one",
        "_failure",
        "_files",
        "_in_flight",
        "_on_failure",
        "_parallel",
        "_put_off",
        "_syncs",
        "_waiting",
    )

    def __init__(
        self,
        files: Files,
        on_failure: Callable[[BaseException], None],
        *,
        parallel: int = DEFAULT_PARALLEL,
        syncs: Syncs | None = None,
    ) -> None:
        self._files = files
        self._syncs = syncs
        self._on_failure = on_failure
        self._parallel = parallel
        self._failure: BaseException | None = None
        self._in_flight: set[Log] = set()
        # In the order in which they asked.
        self._waiting: dict[Log, Notify] = {}
        # For want of descriptors.
        self._put_off: dict[Log, Notify] = {}
        # For whoever waits until a flush has ended, whichever.
        self._ended_one: asyncio.Event | None = None

    def request(self, log: Log, notify: Notify) -> None:
        """Flush what the log holds now. `notify` is called on the loop when that is done, or will never be.

        Look at `log.flushed_position` and `log.is_failed` then. Another request before that replaces `notify` for the
        flush that follows.
        """
        if self._failure is not None:
            log.fail(f"flush failed: {self._failure}")
            notify()
        elif log in self._put_off:
            self._put_off[log] = notify
        elif log in self._in_flight or len(self._in_flight) >= self._parallel:
            self._waiting[log] = notify
        else:
            self._start(log, notify)

    def is_busy(self, log: Log) -> bool:
        """Whether a flush of it is under way or to come. That of a deleted log may come too late, and does no harm."""
        return log in self._in_flight or (not log.is_deleted and (log in self._waiting or log in self._put_off))

    async def drain(self) -> None:
        """Returns when nothing is under way: for when nobody asks for flushes any more."""
        while self._in_flight or self._waiting or self._put_off:
            await self._until_one_ends()

    async def reach(self, offsets: Mapping[Log, int]) -> None:
        """Returns when each log, for which a flush was asked for, is on disk up to an offset, or never will be."""
        while any(_is_to_come(log, offset) for log, offset in offsets.items()):
            await self._until_one_ends()

    async def _until_one_ends(self) -> None:
        if self._ended_one is None:
            self._ended_one = asyncio.Event()
        await self._ended_one.wait()

    def _start(self, log: Log, notify: Notify) -> None:
        if log.is_failed or not log.is_dirty:
            notify()
            return
        try:
            ticket = log.begin_flush()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                self._put_off_until_later(log, notify)
                return
            log.fail(f"its file cannot be opened: {error}")
            notify()
            return
        self._in_flight.add(log)
        done = partial(self._ended, log, notify, ticket)
        if self._syncs is not None and (file := ticket.only_file()) is not None:
            self._syncs.start(file.fd, done)
        else:
            self._files.start(ticket.run, done)

    def _ended(self, log: Log, notify: Notify, ticket: FlushTicket, error: BaseException | None) -> None:
        self._in_flight.discard(log)
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            log.defer_flush(ticket)
            self._put_off_until_later(log, notify)
            self._start_waiting()
            return
        if error is None:
            log.finish_flush(ticket)
        elif not log.is_deleted:  # a deleted log's files may be gone while they are flushed
            log.fail(f"flush failed: {error}")
            self._fail(error)
        notify()
        self._start_waiting()
        self._tell_that_one_ended()

    def _put_off_until_later(self, log: Log, notify: Notify) -> None:
        """Nothing failed to be flushed: a file could not be opened for it. Those who wait go on waiting."""
        self._put_off[log] = notify
        asyncio.get_running_loop().call_later(RETRY_S, self._try_again, log)

    def _try_again(self, log: Log) -> None:
        self.request(log, self._put_off.pop(log))
        self._tell_that_one_ended()  # there may be nothing left to flush

    def _tell_that_one_ended(self) -> None:
        if self._ended_one is not None:
            self._ended_one.set()
            self._ended_one = None

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _start_waiting(self) -> None:
        ready = [log for log in self._waiting if log not in self._in_flight]
        for log in ready:
            if len(self._in_flight) >= self._parallel:
                return
            self.request(log, self._waiting.pop(log))


def _is_to_come(log: Log, offset: int) -> bool:
    """What was cut off meanwhile is not waited for."""
    return not log.is_failed and not log.is_deleted and log.flushed_offset < min(offset, log.log_end_offset)
