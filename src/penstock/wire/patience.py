"""For how long something is tried again that does not get on."""

from __future__ import annotations

import time
from typing import NoReturn

from penstock.wire.errors import NoAnswer, NotNow, TimedOut, UnknownTopic, Unreachable, WireError
from penstock.wire.settings import ClientSettings

# What another attempt may get past. A broker that has just come back may not have heard of a topic yet.
PASSING = (NoAnswer, NotNow, Unreachable, UnknownTopic)
_UNKNOWN_FOR_S = 5.0
_MAX_PAUSE_S = 1.0
_GROWTH = 2


class Patience:
    """Begins when it is made, and anew with every progress."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.progressed()

    def progressed(self) -> None:
        self._since = time.monotonic()
        self._unknown_since: float | None = None
        self._pause_s = self._settings.retry_backoff_s

    def after(self, what: str, error: WireError) -> None:
        """Pauses for a moment, longer each time. Raises TimedOut, or UnknownTopic, when it has been tried enough."""
        now = time.monotonic()
        if not isinstance(error, UnknownTopic):
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since >= min(_UNKNOWN_FOR_S, self._settings.api_timeout_s):
            raise error
        self.check(what, error)
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * _GROWTH, _MAX_PAUSE_S)

    def check(self, what: str, why: object) -> None:
        """As `after`, without a pause: for what has waited already."""
        if time.monotonic() - self._since >= self._settings.api_timeout_s:
            self._give_up(what, why)

    def _give_up(self, what: str, why: object) -> NoReturn:
        message = f"{what}: nothing has come for {self._settings.api_timeout_s:g} s (default.api.timeout.ms): {why}"
        raise TimedOut(message) from why if isinstance(why, WireError) else None
