"""What this broker follows of one other broker: one fetch at a time for all of it, and what to do with each answer.

Only what has changed is asked, in a fetch session (fetch_session.py). An answer has a limit, and who has had records
in it comes behind the others in the next: a partition with much to catch up on must not hold up those that are in sync.

The leader lets a fetch wait for something new, and what became durable must not wait for it: progress goes its own way,
by which the leader is also told to answer when there is something else to ask.

Progress is told only of a log that agrees with the leader's, as an answer has shown: what a follower has on disk and
its leader has not must not count.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode, error_code_of
from penstock.core.ids import BrokerId, TopicId
from penstock.net.channel import Address, Channel, Channels
from penstock.protocol.messages.internal import (
    ReplicaProgressPartition,
    ReplicaProgressRequest,
    ReplicaProgressResponse,
    SuspectLogRequest,
)
from penstock.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from penstock.replication.fetch_session import NO_SESSION, Asking, Key, NextRequest
from penstock.replication.follower import FetchAnswer, NextFetch, StartAnew, Take, Truncate
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.storage.replicated import BeginsEarlier

log = logging.getLogger(__name__)

FETCH_VERSION = 17
PROGRESS_VERSION = 0
SUSPECT_VERSION = 0
# Beyond what the leader may let it wait.
ANSWER_MS = 10_000
PROGRESS_TIMEOUT_MS = 10_000
# How long nobody tries when every partition has to wait for something.
LONGEST_PAUSE_MS = 1_000
RETRY_PROGRESS_S = 0.1

Shorten = Callable[[Partition, Truncate | StartAnew], Awaitable[None]]


class Fetcher:
    def __init__(
        self,
        leader: BrokerId,
        *,
        broker_id: BrokerId,
        session_epoch: Callable[[], int | None],
        address: Callable[[], Address | None],
        fetching: Channels,
        talking: Channels,
        shorten: Shorten,
        holds_up: Callable[[Partition], bool],
        received: Callable[[Partition, int], None],
        config: Callable[[], BrokerConfig],
        clock: Clock,
    ) -> None:
        """`address` is where the leader is at present. `fetching` are channels that only fetches go through. What is
        held up is left out of fetches for a while; `received` hears how much came.
        """
        self._leader = leader
        self._broker_id = broker_id
        self._session_epoch = session_epoch
        self._address = address
        self._fetching = fetching
        self._talking = talking
        self._shorten = shorten
        self._holds_up = holds_up
        self._received = received
        self._config = config
        self._clock = clock
        self._followed: dict[Key, Partition] = {}
        self._asking = Asking()
        # Those that have something to wait for before they ask again.
        self._waiting: dict[Key, None] = {}
        self._channel: Channel | None = None
        self._is_unanswered = False
        self._hurries = False
        # Those whose logs agree with the leader's, in its present epoch, as it knows of this session of ours.
        self._agreed: set[Key] = set()
        self._agreed_in: int | None = None
        self._news: dict[Key, Partition] = {}
        self._has_news = asyncio.Event()
        self._changed = asyncio.Event()

    # What is followed

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        self._followed[key] = partition
        self._agreed.discard(key)
        self._news.pop(key, None)  # of an epoch that is over
        self._asking.dropped(key)
        self._changed.set()
        if self._is_unanswered:
            self._hurries = True
            self._has_news.set()

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        if self._followed.get(key) is partition:
            del self._followed[key]
            self._agreed.discard(key)
            self._news.pop(key, None)
            self._asking.look_at(key)

    def progressed(self, partition: Partition) -> None:
        self._report((partition.topic_id, partition.topic_partition.partition), partition)

    def _report(self, key: Key, partition: Partition) -> None:
        if key in self._agreed and (partition.flushes or partition.config.is_compacted):
            self._news[key] = partition
            self._has_news.set()

    # Fetching

    async def fetch(self) -> None:
        """Runs for ever."""
        while True:
            self._changed.clear()
            epoch = self._session_epoch()
            if epoch != self._agreed_in:
                # To the leader this is another process now, and it forgets what the last one had on disk.
                self._agreed_in = epoch
                self._agreed.clear()
                self._asking.start_over(self._followed)
            if not self._followed and not len(self._asking):
                await self._pause()
                continue
            await self._fetch_once(epoch)

    async def _fetch_once(self, epoch: int | None) -> None:
        # A function of its own, so that nothing keeps the buffer of the last answer while the next is received.
        try:
            answer = await self._ask(epoch)
        except BrokerError as error:
            await self._unanswered(error)
            return
        if answer is None:
            await self._pause()
        else:
            await self._answered(answer)

    async def _ask(self, epoch: int | None) -> FetchResponse | None:
        """None: there is nothing to ask for now."""
        address = self._address()
        if address is None or epoch is None:
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"broker {self._leader} is not there, or this one is not")
        channel = await self._fetching.to(address)
        if channel is not self._channel:
            self._channel = channel
            self._asking.start_over(self._followed)
        wait_ms = self._look_at_waiting()
        request = self._asking.request(self._question)
        if not len(self._asking) and not request.forgotten:
            return None
        self._is_unanswered = True
        try:
            body = await channel.request(
                self._fetch_request(request, epoch, wait_ms), FETCH_VERSION, timeout_ms=wait_ms + ANSWER_MS
            )
        finally:
            self._is_unanswered = self._hurries = False
        return FetchResponse.decode(body, FETCH_VERSION)

    def _fetch_request(self, request: NextRequest, epoch: int, wait_ms: int) -> FetchRequest:
        config = self._config()
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=config.int("replica.fetch.response.max.bytes"),
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=_topics(request.wanted, config.int("replica.fetch.max.bytes")),
            forgotten_topics_data=_forgotten(request.forgotten),
        )

    def _look_at_waiting(self) -> int:
        """Those whose time has come are asked for. Returns how long the leader may wait, for the sake of the others."""
        longest_ms = self._config().int("replica.fetch.wait.max.ms")
        if not self._waiting:
            return longest_ms
        now_ms = self._clock.monotonic_ms()
        for key in list(self._waiting):
            partition = self._followed.get(key)
            follower = None if partition is None else partition.follower
            if follower is None or follower.retry_ms <= now_ms:
                self._waiting.pop(key, None)
                self._asking.look_at(key)
            else:
                longest_ms = min(longest_ms, math.ceil(follower.retry_ms - now_ms))
        return longest_ms

    def _question(self, key: Key) -> NextFetch | None:
        partition = self._followed.get(key)
        if partition is None or partition.follower is None:
            return None
        asked = partition.follower.next_fetch(self._clock.monotonic_ms())
        if asked is None or self._holds_up(partition):
            self._waiting[key] = None
            return None
        return asked

    async def _pause(self) -> None:
        """Until something changes, or the first of those that have to wait may ask again."""
        now_ms = self._clock.monotonic_ms()
        waits = [each.follower.retry_ms - now_ms for each in self._followed.values() if each.follower is not None]
        pause_ms = min([max(1, wait) for wait in waits if wait > 0], default=LONGEST_PAUSE_MS)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause_ms, LONGEST_PAUSE_MS) / 1000):
                await self._changed.wait()

    async def _unanswered(self, error: BrokerError) -> None:
        """Whatever the leader knows, it is to be told anew."""
        now_ms = self._clock.monotonic_ms()
        for partition in self._followed.values():
            if partition.follower is not None:
                partition.follower.unanswered(error.message, now_ms)
        self._channel = None
        self._asking.start_over(self._followed)
        await self._pause()

    # Answers

    async def _answered(self, answer: FetchResponse) -> None:
        if answer.error_code:
            error = BrokerError(error_code_of(answer.error_code), f"broker {self._leader} refused a fetch")
            await self._unanswered(error)
            return
        self._asking.answered(answer.session_id)
        for topic in answer.responses:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                partition, question = self._followed.get(key), self._asking.question(key)
                if partition is not None and question is not None:
                    await self._take(key, partition, question, row)
        if answer.session_id == NO_SESSION:
            # A leader of the last release: it knows only what stands in a request.
            self._asking.start_over(self._followed)

    async def _take(self, key: Key, partition: Partition, question: NextFetch, row: PartitionData) -> None:
        follower = partition.follower
        if follower is None:
            self._asking.look_at(key)
            return
        diverging = row.diverging_epoch
        answer = FetchAnswer(
            error_code_of(row.error_code),
            row.high_watermark,
            row.log_start_offset,
            None if diverging is None else (diverging.epoch, diverging.end_offset),
        )
        step = follower.answered(question, answer, self._clock.monotonic_ms())
        if isinstance(step, Take):
            await self._append(key, partition, answer, row.records)
            return
        # The leader has dropped it, or its answer was to another question than the one of now.
        self._asking.dropped(key)
        if isinstance(step, Truncate | StartAnew):
            log.info(
                "replica shortened",
                extra={"partition": str(partition.topic_partition), "step": step, "leader": self._leader},
            )
            await self._shorten(partition, step)

    async def _append(self, key: Key, partition: Partition, answer: FetchAnswer, records: object) -> None:
        follower = partition.follower
        assert follower is not None
        self._asking.look_at(key)
        assert isinstance(records, memoryview | bytes)
        try:
            if records:
                view = memoryview(records)
                try:
                    partition.log.append_replicated(view, follower.leader_epoch, self._clock.now_ms())
                except BeginsEarlier as early:
                    epoch = follower.leader_epoch
                    await self._shorten(partition, follower.begins_earlier(early.base_offset))
                    if partition.follower is not follower or follower.leader_epoch != epoch:
                        return  # another leads by now, perhaps this broker: what the last one sent is not for its log
                    partition.log.append_replicated(view, epoch, self._clock.now_ms())
        except BrokerError as error:
            log.warning("not appended", extra={"partition": str(partition.topic_partition), "reason": error.message})
            if follower.not_appended(error, self._clock.monotonic_ms()) is None:
                partition.fail(error)
            elif error.code is ErrorCode.CORRUPT_MESSAGE:
                await self._suspect(partition)
            return
        partition.log.move_log_start(follower.appended(answer))
        partition.followed()
        if self._followed.get(key) is not partition:
            return
        if records:
            self._received(partition, len(view))
        if key not in self._agreed:
            self._agreed.add(key)
            self._report(key, partition)

    async def _suspect(self, partition: Partition) -> None:
        """Damaged on its way, or where it lies: only the leader can tell."""
        address = self._address()
        if address is None:
            return
        request = SuspectLogRequest(
            topic_id=partition.topic_id,
            partition=partition.topic_partition.partition,
            leader_epoch=partition.leader_epoch,
            offset=partition.log.log_end_offset,
        )
        with suppress(BrokerError):  # it is said again with the next try
            channel = await self._talking.to(address)
            await channel.request(request, SUSPECT_VERSION, timeout_ms=PROGRESS_TIMEOUT_MS)

    # Progress

    async def report(self) -> None:
        """Runs for ever: one report at a time, which then tells of all that has become durable meanwhile."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            news, self._news = self._news, {}
            hurries, self._hurries = self._hurries, False
            address, epoch = self._address(), self._session_epoch()
            if address is None or epoch is None or not (news or hurries):
                continue  # told anew when this broker follows anew, or in a new session
            request = ReplicaProgressRequest(
                broker_epoch=epoch,
                partitions=[_progress(partition) for partition in news.values()],
                hurried_session_id=self._asking.session_id if hurries else NO_SESSION,
                hurried_session_epoch=self._asking.epoch,
            )
            try:
                channel = await self._talking.to(address)
                body = await channel.request(request, PROGRESS_VERSION, timeout_ms=PROGRESS_TIMEOUT_MS)
            except BrokerError:
                # The leader is away, or another is: say it again a little later, if it is still of interest.
                await asyncio.sleep(RETRY_PROGRESS_S)
                for key, partition in news.items():
                    # Another by now, if it has begun anew: of the last one nothing counts any more.
                    if self._followed.get(key) is partition:
                        self._report(key, partition)
                continue
            answer = ReplicaProgressResponse.decode(body, PROGRESS_VERSION)
            for partition, told in zip(news.values(), answer.removable_ends, strict=False):
                partition.removable_up_to(told)


def _topics(asked: dict[Key, NextFetch], max_bytes: int) -> list[FetchTopic]:
    """In this order, even if that names a topic more than once."""
    topics: list[FetchTopic] = []
    for (topic_id, partition), wanted in asked.items():
        if not topics or topics[-1].topic_id != topic_id:
            topics.append(FetchTopic(topic_id=topic_id, partitions=[]))
        topics[-1].partitions.append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=wanted.current_leader_epoch,
                fetch_offset=wanted.fetch_offset,
                last_fetched_epoch=wanted.last_fetched_epoch,
                log_start_offset=wanted.log_start_offset,
                partition_max_bytes=max_bytes,
            )
        )
    return topics


def _forgotten(keys: list[Key]) -> list[ForgottenTopic]:
    topics: dict[TopicId, list[int]] = {}
    for topic_id, partition in keys:
        topics.setdefault(topic_id, []).append(partition)
    return [ForgottenTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]


def _progress(partition: Partition) -> ReplicaProgressPartition:
    replica = partition.log
    return ReplicaProgressPartition(
        topic_id=partition.topic_id,
        partition=partition.topic_partition.partition,
        leader_epoch=partition.leader_epoch,
        end_offset=replica.log_end_offset,
        flushed_offset=replica.flushed_offset,
        cleaned_offset=replica.cleaned_offset,
    )
