"""Where in its log's files the high watermark lies, mostly without looking there: it comes to where writes ended."""

from __future__ import annotations

from collections import deque

from penstock.core.errors import BrokerError
from penstock.storage.log import Log
from penstock.storage.log_file import LogPosition

WRITES_REMEMBERED = 64


class KnownPositions:
    __slots__ = ("_log", "_written")

    def __init__(self, log: Log) -> None:
        self._log = log
        self._written: deque[LogPosition] = deque(maxlen=WRITES_REMEMBERED)

    def written(self, end: LogPosition) -> None:
        if self._written and end.offset < self._written[-1].offset:
            self._written.clear()  # cut off, and what is written in its place ends elsewhere
        self._written.append(end)

    def forget(self) -> None:
        """The log may be cut, and grow again, unseen."""
        self._written.clear()

    def at(self, offset: int, otherwise: LogPosition) -> LogPosition:
        """`otherwise` where the log is damaged, which somebody is to look into."""
        for known in (self._log.end_position, self._log.flushed_position, otherwise):
            if known.offset == offset:
                return known
        while self._written and self._written[0].offset <= offset:
            known = self._written.popleft()
            if known.offset == offset:
                return known
        return position_or(self._log, offset, otherwise)


def position_or(log: Log, offset: int, otherwise: LogPosition) -> LogPosition:
    try:
        return log.position_of(offset)
    except BrokerError as error:
        log.suspicion = error.message  # whether it is damaged is found out by whoever looks into that
        return otherwise
