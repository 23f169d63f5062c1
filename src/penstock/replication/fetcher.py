"""What this broker follows of one other broker: one fetch at a time for all of it, and what to do with each answer.

An answer has a limit, and the leader fills it in the order of the question. So what had records in the last answer is
asked for behind the rest in the next: a partition with much to catch up on must not hold up those that are in sync.

The leader lets a fetch wait for something new. So partitions that come or go meanwhile, and what became durable, must
not wait for it: the fetch is given up for a new one, and progress goes its own way.

Progress is told only of a log that agrees with the leader's, as an answer has shown: what a follower has on disk and
its leader has not must not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode, error_code_of
from penstock.core.ids import BrokerId, TopicId
from penstock.net.channel import Address, Channel, Channels
from penstock.protocol.messages.internal import ReplicaProgressPartition, ReplicaProgressRequest
from penstock.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from penstock.replication.follower import FetchAnswer, NextFetch, StartAnew, Take, Truncate
from penstock.replication.partition import Partition
from penstock.runtime.clock import Clock
from penstock.storage.replicated import BeginsEarlier

log = logging.getLogger(__name__)

FETCH_VERSION = 17
PROGRESS_VERSION = 0
# Beyond what the leader may let it wait.
ANSWER_MS = 10_000
PROGRESS_TIMEOUT_MS = 10_000
# How long nobody tries when every partition has to wait for something.
LONGEST_PAUSE_MS = 1_000
RETRY_PROGRESS_S = 0.1

Key = tuple[TopicId, int]
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
        # Those whose logs agree with the leader's, in its present epoch, as it knows of this session of ours.
        self._agreed: set[Key] = set()
        self._agreed_in: int | None = None
        self._news: dict[Key, Partition] = {}
        self._has_news = asyncio.Event()
        self._changed = asyncio.Event()
        self._waiting_on: Channel | None = None

    # What is followed

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        self._followed[key] = partition
        self._agreed.discard(key)
        self._interrupt()

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.topic_partition.partition)
        if self._followed.get(key) is partition:
            del self._followed[key]
            self._agreed.discard(key)
            self._news.pop(key, None)
            self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        if self._waiting_on is not None:
            self._waiting_on.close("what is followed has changed")

    def flushed(self, partition: Partition) -> None:
        self._report((partition.topic_id, partition.topic_partition.partition), partition)

    def _report(self, key: Key, partition: Partition) -> None:
        if key in self._agreed and partition.flushes:
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
            asked = self._due()
            if not asked:
                await self._pause()
                continue
            try:
                answer = await self._ask(asked, epoch)
            except BrokerError as error:
                if not self._changed.is_set():
                    await self._unanswered(asked, error)
                continue
            await self._answered(asked, answer)

    def _due(self) -> dict[Key, NextFetch]:
        now_ms = self._clock.monotonic_ms()
        due = {}
        for key, partition in self._followed.items():
            follower = partition.follower
            wanted = None if follower is None else follower.next_fetch(now_ms)
            if wanted is not None and not self._holds_up(partition):
                due[key] = wanted
        return due

    async def _pause(self) -> None:
        """Until something changes, or the first of those that have to wait may ask again."""
        now_ms = self._clock.monotonic_ms()
        waits = [each.follower.retry_ms - now_ms for each in self._followed.values() if each.follower is not None]
        pause_ms = min([max(1, wait) for wait in waits if wait > 0], default=LONGEST_PAUSE_MS)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(pause_ms, LONGEST_PAUSE_MS) / 1000):
                await self._changed.wait()

    async def _ask(self, asked: dict[Key, NextFetch], epoch: int | None) -> FetchResponse:
        config, address = self._config(), self._address()
        if address is None or epoch is None:
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, f"broker {self._leader} is not there, or this one is not")
        wait_ms = config.int("replica.fetch.wait.max.ms")
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=config.int("replica.fetch.response.max.bytes"),
            session_epoch=-1,
            topics=_topics(asked, config.int("replica.fetch.max.bytes")),
        )
        channel = await self._fetching.to(address)
        if self._changed.is_set():
            raise BrokerError(ErrorCode.NETWORK_EXCEPTION, "what is followed has changed")
        self._waiting_on = channel
        try:
            body = await channel.request(request, FETCH_VERSION, timeout_ms=wait_ms + ANSWER_MS)
        finally:
            self._waiting_on = None
        return FetchResponse.decode(body, FETCH_VERSION)

    async def _unanswered(self, asked: dict[Key, NextFetch], error: BrokerError) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in asked:
            partition = self._followed.get(key)
            if partition is not None and partition.follower is not None:
                partition.follower.unanswered(error.message, now_ms)
        await self._pause()

    # Answers

    async def _answered(self, asked: dict[Key, NextFetch], answer: FetchResponse) -> None:
        if answer.error_code:
            error = BrokerError(error_code_of(answer.error_code), f"broker {self._leader} refused a fetch")
            await self._unanswered(asked, error)
            return
        for topic in answer.responses:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                partition, question = self._followed.get(key), asked.get(key)
                if partition is not None and question is not None:
                    await self._take(partition, question, row)

    async def _take(self, partition: Partition, question: NextFetch, row: PartitionData) -> None:
        follower = partition.follower
        if follower is None:
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
            await self._append(partition, answer, row.records)
        elif isinstance(step, Truncate | StartAnew):
            log.info(
                "replica shortened",
                extra={"partition": str(partition.topic_partition), "step": step, "leader": self._leader},
            )
            await self._shorten(partition, step)

    async def _append(self, partition: Partition, answer: FetchAnswer, records: object) -> None:
        follower = partition.follower
        assert follower is not None
        assert isinstance(records, memoryview | bytes)
        try:
            if records:
                view = memoryview(records)
                try:
                    partition.log.append_replicated(view, follower.leader_epoch, self._clock.now_ms())
                except BeginsEarlier as early:
                    await self._shorten(partition, follower.begins_earlier(early.base_offset))
                    partition.log.append_replicated(view, follower.leader_epoch, self._clock.now_ms())
        except BrokerError as error:
            if follower.not_appended(error, self._clock.monotonic_ms()) is None:
                partition.fail(error)
            return
        partition.log.move_log_start(follower.appended(answer))
        partition.followed()
        key = (partition.topic_id, partition.topic_partition.partition)
        if self._followed.get(key) is not partition:
            return
        if records:
            self._received(partition, len(view))
            self._followed[key] = self._followed.pop(key)
        if key not in self._agreed:
            self._agreed.add(key)
            self._report(key, partition)

    # Progress

    async def report(self) -> None:
        """Runs for ever: one report at a time, which then tells of all that has become durable meanwhile."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            news, self._news = self._news, {}
            address, epoch = self._address(), self._session_epoch()
            if address is None or epoch is None or not news:
                continue  # told anew when this broker follows anew, or in a new session
            request = ReplicaProgressRequest(
                broker_epoch=epoch, partitions=[_progress(partition) for partition in news.values()]
            )
            try:
                channel = await self._talking.to(address)
                await channel.request(request, PROGRESS_VERSION, timeout_ms=PROGRESS_TIMEOUT_MS)
            except BrokerError:
                # The leader is away, or another is: say it again a little later, if it is still of interest.
                await asyncio.sleep(RETRY_PROGRESS_S)
                for key, partition in news.items():
                    self._report(key, partition)


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
