"""Both ends of a fetch session between replicas (KIP-227): a follower names what it wants of its leader once, then only
what has changed, and is answered with what is new. A thousand partitions in which nothing happens cost nothing.

What must stay true:
- What the leader has for a partition is what the follower would ask now, or the next request tells it so.
- What is new at the leader is in the next answer that has room for it: records, the high watermark, the log's start.
- A partition that is answered with an error, or with where the logs part, is in the session no more. The follower names
  it again when it has done something about it; until then its leader would only repeat itself.
- After any doubt the session starts over, with everything: another connection, another process at either end.
- Records that were sent are not sent again unasked: what comes of them, the follower says by its next question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId
from penstock.replication.follower import NextFetch

NO_SESSION = 0
# What a request without a session says.
NO_SESSION_EPOCH = -1
INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
UNTOLD = -1

Key = tuple[TopicId, int]


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == MAX_EPOCH else epoch + 1


# The follower's end


class NextRequest(NamedTuple):
    """What is in both is to be forgotten first, and with it what the leader has told of it."""

    session_id: int
    session_epoch: int
    wanted: dict[Key, NextFetch]
    forgotten: list[Key]


class Asking:
    """What the leader has been told in this session."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._told: dict[Key, NextFetch] = {}
        # Those whose question may be another by now.
        self._due: dict[Key, None] = {}
        # Those of which it is not clear whether the leader has them.
        self._dropped: set[Key] = set()

    def __len__(self) -> int:
        """How many partitions the leader answers for."""
        return len(self._told)

    def start_over(self, keys: Iterable[Key]) -> None:
        """The leader knows nothing, or what it knows is in doubt."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._told.clear()
        self._dropped.clear()
        self._due = dict.fromkeys(keys)

    def look_at(self, key: Key) -> None:
        """Something about this partition has changed here."""
        self._due[key] = None

    def dropped(self, key: Key) -> None:
        """The leader has it no more, or has told something that was not used: it is to be named as if for the first
        time.
        """
        if self._told.pop(key, None) is not None:
            self._dropped.add(key)
        self._due[key] = None

    def question(self, key: Key) -> NextFetch | None:
        """What the leader answers, for this partition."""
        return self._told.get(key)

    def request(self, question: Callable[[Key], NextFetch | None]) -> NextRequest:
        """`question` is what is to be asked now; None: nothing, for now or ever."""
        wanted: dict[Key, NextFetch] = {}
        forgotten = list(self._dropped)
        self._dropped.clear()
        for key in self._due:
            asked, told = question(key), self._told.get(key)
            if asked is None:
                if told is not None:
                    del self._told[key]
                    forgotten.append(key)
            elif told is None or told.place != asked.place:
                self._told[key] = wanted[key] = asked
        self._due.clear()
        return NextRequest(self.session_id, self.epoch, wanted, forgotten)

    def answered(self, session_id: int) -> None:
        """The last request was, without an error."""
        self.session_id = session_id
        self.epoch = _next_epoch(self.epoch)


# The leader's end


class Served:
    """One partition of a session. The partition has it among those that wait for what is written to it."""

    __slots__ = (
        "fetch_offset",
        "is_asked",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "session",
        "told_high_watermark",
        "told_log_start_offset",
        "waiters",
    )

    def __init__(self, session: Serving, key: Key) -> None:
        self.session = session
        self.key = key
        self.leader_epoch = UNTOLD
        self.told_high_watermark = UNTOLD
        self.told_log_start_offset = UNTOLD
        self.waiters: dict[Served, None] | None = None

    def joins(self, waiters: dict[Served, None]) -> None:
        """It is one of those who are to be told what happens to the partition."""
        if waiters is not self.waiters:
            self.leaves()
            self.waiters = waiters
            waiters[self] = None

    def leaves(self) -> None:
        if self.waiters is not None:
            self.waiters.pop(self, None)
            self.waiters = None

    def asks(
        self, fetch_offset: int, last_fetched_epoch: int, leader_epoch: int, max_bytes: int, log_start_offset: int
    ) -> None:
        if leader_epoch != self.leader_epoch:
            # Whose log agrees in the new epoch must hear of it, if there is nothing else to say.
            self.told_high_watermark = UNTOLD
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.leader_epoch = leader_epoch
        self.max_bytes = max_bytes
        self.log_start_offset = log_start_offset
        # Until it has been looked at whether the logs agree.
        self.is_asked = True

    def arrived(self, size: int) -> None:
        del size
        self.session.is_new(self, wakes=True)

    def wake(self) -> None:
        self.session.is_new(self, wakes=True)

    def committed(self) -> None:
        """It is worth telling, and worth an answer of its own only where consumers may wait for it."""
        self.session.is_new(self, wakes=self.session.wakes_on_commit)

    def log_starts_at(self, offset: int) -> None:
        if offset != self.told_log_start_offset:
            self.session.is_new(self, wakes=False)

    @property
    def is_untold(self) -> bool:
        """The follower waits to hear that its log agrees, in this leader epoch."""
        return self.told_high_watermark == UNTOLD

    def is_news(self, high_watermark: int, log_start_offset: int) -> bool:
        """Whether an answer without records is worth it; remembers what the follower will have been told."""
        is_news = (high_watermark, log_start_offset) != (self.told_high_watermark, self.told_log_start_offset)
        self.told_high_watermark, self.told_log_start_offset = high_watermark, log_start_offset
        return is_news


class Serving:
    """What one follower wants of this broker. One request at a time: `resume` is there while it waits."""

    def __init__(self, replica: BrokerId, session_id: int, *, wakes_on_commit: bool = False) -> None:
        self.replica = replica
        self.session_id = session_id
        # When the last request came.
        self.asked_ms: float = -math.inf
        self.wakes_on_commit = wakes_on_commit
        self.epoch = INITIAL_EPOCH
        self.resume: Callable[[], None] | None = None
        self._partitions: dict[Key, Served] = {}
        # To be looked at for the next answer, in this order: who gets records comes back behind the others.
        self._new: dict[Served, None] = {}
        self._hurried_epoch = UNTOLD

    def __len__(self) -> int:
        return len(self._partitions)

    def begin_request(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise BrokerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {self.session_id}: epoch {epoch}, expected {self.epoch}",
            )
        self.epoch = _next_epoch(epoch)

    def names(self, key: Key) -> Served:
        """A partition of the request: what it `asks` is said next."""
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = Served(self, key)
        self._new.pop(partition, None)
        self._new[partition] = None
        return partition

    def drop(self, key: Key) -> None:
        """Forgotten by the follower, or answered with an error."""
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._new.pop(partition, None)
            partition.leaves()

    def new(self) -> list[Served]:
        """What is to be looked at now."""
        return list(self._new)

    def told(self, partition: Served) -> None:
        """All that is new of it is in the answer."""
        self._new.pop(partition, None)

    def is_new(self, partition: Served, *, wakes: bool) -> None:
        self._new.setdefault(partition)
        if wakes:
            self.wake()

    def hurry(self, epoch: int) -> None:
        """The follower wants the answer to this request now, whether it has come yet or not."""
        self._hurried_epoch = epoch
        if self.is_hurried:
            self.wake()

    @property
    def is_hurried(self) -> bool:
        """Whether the answer to the last request is not to wait."""
        return _next_epoch(self._hurried_epoch) == self.epoch

    def wake(self) -> None:
        resume, self.resume = self.resume, None
        if resume is not None:
            resume()

    def end(self) -> None:
        """Another session takes its place, or the follower is gone."""
        self.wake()
        for key in list(self._partitions):
            self.drop(key)


class ServingSessions:
    """The last session of each broker that follows this one."""

    def __init__(self, seed: int) -> None:
        self._sessions: dict[BrokerId, Serving] = {}
        self._next_id = seed

    def begin(self, replica: BrokerId, *, wakes_on_commit: bool = False) -> Serving:
        before = self._sessions.get(replica)
        if before is not None:
            before.end()
        self._next_id = self._next_id % MAX_EPOCH + 1
        session = self._sessions[replica] = Serving(replica, self._next_id, wakes_on_commit=wakes_on_commit)
        return session

    def find(self, replica: BrokerId, session_id: int) -> Serving:
        session = self._sessions.get(replica)
        if session is None or session.session_id != session_id:
            raise BrokerError(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {session_id} of broker {replica}"
            )
        return session
