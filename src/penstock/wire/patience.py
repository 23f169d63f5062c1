"""For how long something is tried again that does not get on."""

from __future__ import annotations

import time
from typing import NoReturn

from penstock.wire.errors import NoAnswer, NotNow, TimedOut, UnknownTopic, Unreachable, WireError
from penstock.wire.settings import ClientSettings

# What another attempt may get past. A broker that has just come back may not have heard of a topic yet.
PASSING = (NoAnswer, NotNow, Unreachable, UnknownTopic)
UNKNOWN_FOR_S = 5.0
MAX_PAUSE_S = 1.0
PAUSE_GROWTH = 2


class Patience:
    """Begins when it is made, and anew with every progress. `setting` is the name of what `timeout_s` comes from."""

    def __init__(
        self,
        settings: ClientSettings,
        timeout_s: float | None = None,
        setting: str = "default.api.timeout.ms",
        first_pause_s: float | None = None,
    ) -> None:
        self._timeout_s = settings.api_timeout_s if timeout_s is None else timeout_s
        self._setting = setting
        self._first_pause_s = settings.retry_backoff_s if first_pause_s is None else first_pause_s
        self.progressed()

    def progressed(self) -> None:
        self._since = time.monotonic()
        self._unknown_since: float | None = None
        self._pause_s = self._first_pause_s

    def after(self, what: str, error: WireError) -> None:
        """Pauses for a moment, longer each time. Raises TimedOut, or UnknownTopic, when it has been tried enough."""
        now = time.monotonic()
        if not isinstance(error, UnknownTopic):
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since >= min(UNKNOWN_FOR_S, self._timeout_s):
            raise error
        self.check(what, error)
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * PAUSE_GROWTH, MAX_PAUSE_S)

    def check(self, what: str, why: object) -> None:
        """As `after`, without a pause: for what has waited already."""
        if time.monotonic() - self._since >= self._timeout_s:
            self._give_up(what, why)

    def _give_up(self, what: str, why: object) -> NoReturn:
        message = f"{what}: nothing has come for {self._timeout_s:g} s ({self._setting}): {why}"
        raise TimedOut(message) from why if isinstance(why, WireError) else None
