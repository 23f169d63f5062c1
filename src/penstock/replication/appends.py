"""Appends that are written and not yet committed, in the order of their offsets, and who waits for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from penstock.core.errors import BrokerError

ACKS_ALL = -1


class Appender(Protocol):
    """Whoever waits for appends, each known by its slot: told once about each."""

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None: ...
    def failed(self, slot: int, error: BrokerError) -> None: ...


class Append(NamedTuple):
    appender: Appender
    slot: int
    base_offset: int
    next_offset: int
    log_append_time_ms: int
    acks: int
    deadline_ms: float


class Repetition:
    """Who sent once more what is in the log, but may not be committed yet: told so when it is, and not before."""

    __slots__ = ("_appender", "_repeated")

    def __init__(self, appender: Appender, repeated: BrokerError) -> None:
        self._appender = appender
        self._repeated = repeated

    def appended(self, slot: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> None:
        self._appender.failed(slot, self._repeated)

    def failed(self, slot: int, error: BrokerError) -> None:
        self._appender.failed(slot, error)


class Unacknowledged:
    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[Append] = deque()

    def wait(self, appends: Iterable[Append]) -> None:
        """Until they are committed, whatever they asked for."""
        self.waiting.extend(appends)

    def written(self, appends: Iterable[Append], committed_offset: int, log_start_offset: int) -> None:
        """acks=1 is acknowledged with that; acks=all waits for the high watermark."""
        for append in appends:
            if append.acks == ACKS_ALL and append.next_offset > committed_offset:
                self.waiting.append(append)
            else:
                append.appender.appended(append.slot, append.base_offset, append.log_append_time_ms, log_start_offset)

    def committed(self, committed_offset: int, log_start_offset: int) -> None:
        # A duplicate may stand behind records newer than itself; waiting for those too costs it nothing but a moment.
        waiting = self.waiting
        while waiting and waiting[0].next_offset <= committed_offset:
            append = waiting.popleft()
            append.appender.appended(append.slot, append.base_offset, append.log_append_time_ms, log_start_offset)

    def expire(self, now_ms: int, error: BrokerError) -> None:
        """Those whose time is up."""
        expired = [append for append in self.waiting if append.deadline_ms <= now_ms]
        if expired:
            self.waiting = deque(append for append in self.waiting if append.deadline_ms > now_ms)
            _fail(expired, error)

    def fail(self, error: BrokerError) -> None:
        waiting, self.waiting = self.waiting, deque()
        _fail(waiting, error)


def _fail(appends: Iterable[Append], error: BrokerError) -> None:
    for append in appends:
        append.appender.failed(append.slot, error)
