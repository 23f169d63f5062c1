"""One partition as its follower sees it: what to ask the leader for, and what to do with each answer.

    FETCHING    asks from the end of its log on, and appends what comes
    SHORTENING  cuts its log, or starts it anew, in a thread: nothing is asked meanwhile, and no answer counts
    FAILED      its log cannot be written to any more: the replica is offline until somebody mends it

What must stay true:
- Nothing is cut because the leader changed; only what a leader says that it has not (trap A1).
- An answer counts only if it is to the question that would be asked now: same leader epoch, same end of the log.
- The high watermark is what the leader said, as far as the log goes. It goes back with the log's end and never else.
- The offset reported as flushed is on disk: the leader commits by it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from penstock.core.errors import BrokerError, ErrorCode
from penstock.replication.truncation import EpochEnd, truncation_offset
from penstock.storage.epochs import LeaderEpochs

BACKOFF_MIN_MS = 20
BACKOFF_MAX_MS = 1_000


class FollowedLog(Protocol):
    """What is asked of a log; `storage.log.Log` is one."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def cleaned_offset(self) -> int: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def is_failed(self) -> bool: ...


class FollowerState(Enum):
    FETCHING = "fetching"
    SHORTENING = "shortening"
    FAILED = "failed"


class NextFetch(NamedTuple):
    """A partition of a Fetch request."""

    fetch_offset: int
    # Of the last batch in the log; -1: there is none.
    last_fetched_epoch: int
    current_leader_epoch: int
    log_start_offset: int
    flushed_offset: int
    cleaned_offset: int

    @property
    def place(self) -> tuple[int, int, int, int]:
        """What the leader has to be told anew when it changes."""
        return self.fetch_offset, self.last_fetched_epoch, self.current_leader_epoch, self.log_start_offset


class FetchAnswer(NamedTuple):
    """What the leader said, its records aside. With OFFSET_OUT_OF_RANGE too it says where its log starts."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    diverging: EpochEnd | None = None


class Take(NamedTuple):
    """Append the records, if there are any, then say `appended`, or what kept them from being appended."""


class Truncate(NamedTuple):
    """Cut the log, then say `shortened`."""

    offset: int


class StartAnew(NamedTuple):
    """Throw the log away and begin at `offset`, for readers at `log_start_offset`; then say `shortened`."""

    offset: int
    log_start_offset: int


class Wait(NamedTuple):
    """Not before then; `next_fetch` knows it too."""

    until_ms: float


class Ignore(NamedTuple):
    """An answer to a question of yesterday."""


Step = Take | Truncate | StartAnew | Wait | Ignore


class Follower:
    __slots__ = (
        "_failures",
        "_log",
        "_retry_ms",
        "_starts_anew",
        "high_watermark",
        "leader_epoch",
        "reason",
        "state",
    )

    def __init__(self, log: FollowedLog, leader_epoch: int, high_watermark: int) -> None:
        self._log = log
        self.leader_epoch = leader_epoch
        self.high_watermark = min(high_watermark, log.log_end_offset)
        self.state = FollowerState.FETCHING
        # Why it last had to wait, or failed.
        self.reason = ""
        self._failures = 0
        self._retry_ms: float = 0
        self._starts_anew = False
        if log.is_failed:
            self.failed("its log was given up before")

    # Asking

    def next_fetch(self, now_ms: float) -> NextFetch | None:
        """None: not now."""
        if self.state is not FollowerState.FETCHING or now_ms < self._retry_ms:
            return None
        log = self._log
        return NextFetch(
            log.log_end_offset,
            log.leader_epochs.latest_epoch,
            self.leader_epoch,
            log.log_start_offset,
            log.flushed_offset,
            log.cleaned_offset,
        )

    @property
    def retry_ms(self) -> float:
        """When `next_fetch` is worth asking again, after a Wait."""
        return self._retry_ms

    # Answers

    def answered(self, asked: NextFetch, answer: FetchAnswer, now_ms: float) -> Step:
        if not self._is_of_now(asked):
            return Ignore()
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(answer, now_ms)
        if answer.error is not ErrorCode.NONE:
            return self._wait(f"the leader answered {answer.error.name}", now_ms)
        if answer.diverging is not None:
            return self._diverging(answer.diverging, now_ms)
        return Take()

    def _is_of_now(self, asked: NextFetch) -> bool:
        return (
            self.state is FollowerState.FETCHING
            and asked.current_leader_epoch == self.leader_epoch
            and asked.fetch_offset == self._log.log_end_offset
        )

    def _out_of_range(self, answer: FetchAnswer, now_ms: float) -> Step:
        """The leader's log starts behind our end, or we have nothing at all and it ends before where we would begin."""
        start, end = answer.log_start_offset, self._log.log_end_offset
        is_empty = self._log.log_start_offset == end
        if start > end or (is_empty and 0 <= start < end):
            return self._shorten(StartAnew(start, start))
        return self._wait(f"the leader has nothing at {end}, its log starts at {start}", now_ms)

    def _diverging(self, diverging: EpochEnd, now_ms: float) -> Step:
        offset = truncation_offset(self._log.leader_epochs, self._log.log_end_offset, diverging)
        if offset >= self._log.log_end_offset:
            return self._wait(f"the leader disagrees at {diverging}, where nothing is", now_ms)
        return self._shorten(Truncate(offset))

    def _shorten(self, step: Truncate | StartAnew) -> Step:
        self.state = FollowerState.SHORTENING
        self._starts_anew = isinstance(step, StartAnew)
        return step

    def _wait(self, reason: str, now_ms: float) -> Wait:
        self.reason = reason
        self._retry_ms = now_ms + min(BACKOFF_MIN_MS * 2**self._failures, BACKOFF_MAX_MS)
        self._failures = min(self._failures + 1, 16)
        return Wait(self._retry_ms)

    def unanswered(self, reason: str, now_ms: float) -> Wait:
        """The leader could not be reached, or the connection ended."""
        return self._wait(reason, now_ms)

    # What came of it

    def appended(self, answer: FetchAnswer) -> int:
        """What was taken is in the log. Returns where it may start now: with the leader's, if that is committed."""
        self._failures = 0
        self.high_watermark = max(self.high_watermark, min(answer.high_watermark, self._log.log_end_offset))
        return min(answer.log_start_offset, self.high_watermark)

    def begins_earlier(self, base_offset: int) -> StartAnew:
        """The first batch, of an empty log, begins before the log does (BeginsEarlier). The records are for afterwards:
        when the log was started anew, they are appended, and then it is `appended`.
        """
        step = StartAnew(base_offset, self._log.log_end_offset)
        self._shorten(step)
        return step

    def not_appended(self, error: BrokerError, now_ms: float) -> Wait | None:
        """None: never will be. A full disk and bytes that were damaged on their way are worth another try; a log that
        does not know what it holds is not.
        """
        if self._log.is_failed:
            self.failed(str(error))
            return None
        return self._wait(str(error), now_ms)

    def shortened(self) -> None:
        """Cut, or begun anew, and no checkpoint says more of the log than is left."""
        if self.state is FollowerState.SHORTENING:
            self.state = FollowerState.FETCHING
        end = self._log.log_end_offset
        # What the leader has no more was committed.
        self.high_watermark = end if self._starts_anew else min(self.high_watermark, end)
        self._starts_anew = False

    def failed(self, reason: str) -> None:
        self.state = FollowerState.FAILED
        self.reason = reason

    def leader_changed(self, leader_epoch: int) -> None:
        """The log stays as it is: what of it is not the new leader's, the new leader will say."""
        assert leader_epoch >= self.leader_epoch
        self.leader_epoch = leader_epoch
        self._failures = 0
        self._retry_ms = 0

    # Readers (KIP-392)

    def check_readable(self, offset: int) -> None:
        """Raises for an offset that a consumer cannot wait for here. What is in the log will be committed in a moment;
        what is above its end may be right and only not here yet: told that it is out of range, a consumer would start
        over somewhere else (trap A12).
        """
        if self.state is not FollowerState.FETCHING:
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this replica is {self.state.value}")
        if offset < self._log.log_start_offset:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset}, the log starts at {self._log.log_start_offset}"
            )
        if offset > self._log.log_end_offset:
            raise BrokerError(
                ErrorCode.OFFSET_NOT_AVAILABLE, f"offset {offset}, this replica ends at {self._log.log_end_offset}"
            )
