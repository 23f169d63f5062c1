"""Incremental fetch sessions (KIP-227): a consumer of many partitions names them once, then only what changes.

The broker remembers the session's partitions and what it last told about each, and leaves out of an answer what is as
it was. Memory is bounded in sessions and in partitions over all sessions; a client beyond the bounds gets session id 0
and goes on with full fetches, which always work.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import TopicId

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
MAX_CACHED_PARTITIONS = 200_000
EVICTION_MS = 120_000

PartitionKey = tuple[str | TopicId, int]


class FetchPartition:
    """What a client wants of one partition, and what it was last told. `topic` is a name, from v13 on an id."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
    )

    def __init__(
        self, topic: str | TopicId, index: int, fetch_offset: int, max_bytes: int, current_leader_epoch: int
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.index

    def is_news(
        self,
        high_watermark: int,
        log_start_offset: int,
        *,
        has_records: bool,
        error_code: int,
        is_elsewhere: bool = False,
    ) -> bool:
        """Whether an incremental answer must mention this partition; remembers what it will have been told.

        `is_elsewhere`: the client is to read it from another replica.
        """
        news = (
            has_records
            or is_elsewhere
            or error_code != 0
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
        )
        # After an error the client must be told again once it is over.
        self.sent_high_watermark = -1 if error_code else high_watermark
        self.sent_log_start_offset = -1 if error_code else log_start_offset
        return news


class FetchSession:
    __slots__ = ("by_id", "epoch", "partitions", "session_id", "used_ms")

    def __init__(self, session_id: int, partitions: Iterable[FetchPartition], now_ms: int, *, by_id: bool) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH + 1
        self.used_ms = now_ms
        # In the order they are served: who got records goes to the end, so that no partition starves another.
        self.partitions: dict[PartitionKey, FetchPartition] = {each.key: each for each in partitions}

    def served(self, partition: FetchPartition) -> None:
        if self.partitions.pop(partition.key, None) is not None:
            self.partitions[partition.key] = partition

    def update(self, wanted: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        for each in wanted:
            known = self.partitions.get(each.key)
            if known is None:
                self.partitions[each.key] = each
            else:
                known.fetch_offset = each.fetch_offset
                known.max_bytes = each.max_bytes
                known.current_leader_epoch = each.current_leader_epoch
        for key in forgotten:
            self.partitions.pop(key, None)


class FetchSessions:
    def __init__(self, max_sessions: int, seed: int) -> None:
        self._sessions: dict[int, FetchSession] = {}
        self._max_sessions = max_sessions
        self._cached_partitions = 0
        self._next_id = seed

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, partitions: list[FetchPartition], now_ms: int, *, by_id: bool) -> FetchSession | None:
        """A new session, or None when the bounds are reached."""
        if not partitions or self._cached_partitions + len(partitions) > MAX_CACHED_PARTITIONS:
            return None
        if len(self._sessions) >= self._max_sessions and not self._evict(now_ms):
            return None
        while self._next_id in self._sessions or self._next_id == 0:
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        session = FetchSession(self._next_id, partitions, now_ms, by_id=by_id)
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        self._sessions[session.session_id] = session
        self._cached_partitions += len(session.partitions)
        return session

    def _evict(self, now_ms: int) -> bool:
        """Sessions are kept in order of use, so the first is the one that was idle longest."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.used_ms < EVICTION_MS:
            return False
        self.close(oldest.session_id)
        return True

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._cached_partitions -= len(session.partitions)

    def use(
        self,
        session_id: int,
        epoch: int,
        wanted: list[FetchPartition],
        forgotten: list[PartitionKey],
        now_ms: int,
        *,
        by_id: bool,
    ) -> FetchSession:
        """The session of an incremental fetch, brought up to date. `by_id`: its topics are named by their ids."""
        session = self._sessions.get(session_id)
        if session is None:
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id}")
        if epoch != session.epoch:
            raise BrokerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id}: epoch {epoch}, expected {session.epoch}",
            )
        if by_id != session.by_id:
            # Its partitions have other names there: the client would not know what it is told about them.
            named_by = "id" if session.by_id else "name"
            raise BrokerError(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {session_id} names topics by {named_by}, this request does not",
            )
        before = len(session.partitions)
        session.update(wanted, forgotten)
        self._cached_partitions += len(session.partitions) - before
        if self._cached_partitions > MAX_CACHED_PARTITIONS and len(session.partitions) > before:
            self.close(session_id)
            raise BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"fetch session {session_id} became too large")
        session.epoch = 1 if session.epoch == MAX_EPOCH else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return session
