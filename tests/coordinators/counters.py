"""A machine that counts, and a shard for it over a real log."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from tests.testkit.images import a_partition_on

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now, Producer
from penstock.coordinators.shard import Shard
from penstock.coordinators.timers import Timers
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.core.metrics import CoordinatorMetrics, TopicMetrics
from penstock.core.topic_config import topic_config
from penstock.protocol.batch import BatchHeader
from penstock.protocol.messages.groups import HeartbeatResponse
from penstock.protocol.schema import Struct
from penstock.replication.partition import Partition
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log, LogConfig

LEADER = BrokerId(1)
BROKER_EPOCH = 1


@dataclass
class Counters:
    """Counts names up. Answers with the count, in the field of a message that has one."""

    counts: dict[bytes, int] = field(default_factory=dict)
    timers: Timers[str] = field(default_factory=Timers)
    rang: list[str] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def apply(self, record: LogRecord) -> None:
        if record.value is None:
            self.counts.pop(record.key, None)
        else:
            self.counts[record.key] = int(record.value)

    def loaded(self, now: Now, decision: Decision) -> None:
        decision.records.append(LogRecord(b"loads", b"%d" % (self.counts.get(b"loads", 0) + 1)))

    def due(self, now: Now, decision: Decision) -> None:
        rang = self.timers.pop_due(now.monotonic_ms)
        if rang is not None:
            self.rang.append(rang)
            for ticket in self.waiting:
                decision.answer(ticket, counted(len(self.rang)))

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_ms()

    def count(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        count = self.counts.get(name, 0) + 1
        decision.records.append(LogRecord(name, b"%d" % count))
        decision.answer(caller.ticket, counted(count))

    def count_without_haste(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        self.count(name, caller, now, decision)
        decision.may_linger = True

    def read(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.answer(caller.ticket, counted(self.counts.get(name, 0)))

    def count_to_a_thousand(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.records += [LogRecord(name, b"%0100d" % count) for count in range(1, 1001)]
        decision.answer(caller.ticket, counted(1000))

    def count_two(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.records += [LogRecord(name, b"1"), LogRecord(name, b"2")]
        decision.answer(caller.ticket, counted(2))

    def count_and_tell(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        """Two effects: what is counted, and how far."""
        self.count(name, caller, now, decision)
        decision.effects += [name, self.counts.get(name, 0) + 1]

    def tell(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.effects.append(name)
        decision.answer(caller.ticket, counted(0))

    def wait_for_a_timer(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        self.waiting.append(caller.ticket)
        self.timers.set("bell", now.monotonic_ms + 20)

    def set_a_far_deadline(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        self.timers.set("next year", now.monotonic_ms + 365 * 24 * 3_600_000)
        decision.answer(caller.ticket, counted(0))


@dataclass
class Ledger(Counters):
    """Counters that count in transactions too: what is pending counts when the transaction is committed."""

    pending: dict[int, list[LogRecord]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)

    def apply(self, record: LogRecord) -> None:
        self.story.append(f"{record.key.decode()}={(record.value or b'').decode()}")
        super().apply(record)

    def apply_pending(self, record: LogRecord, producer_id: int) -> None:
        self.story.append(f"{record.key.decode()}={(record.value or b'').decode()} by {producer_id}")
        self.pending.setdefault(producer_id, []).append(LogRecord(record.key, record.value))

    def transaction_ended(self, producer_id: int, *, committed: bool) -> None:
        self.story.append(f"{producer_id} {'commits' if committed else 'aborts'}")
        for record in self.pending.pop(producer_id, []):
            if committed:
                super().apply(record)

    def count_two_for(self, producer: Producer, caller: Caller, now: Now, decision: Decision) -> None:
        decision.producer = producer
        decision.records += [LogRecord(b"x", b"7"), LogRecord(b"y", b"8")]
        decision.answer(caller.ticket, counted(2))

    def count_a_thousand_for(self, producer: Producer, caller: Caller, now: Now, decision: Decision) -> None:
        decision.producer = producer
        self.count_to_a_thousand(b"x", caller, now, decision)

    def refuse_for(self, producer: Producer, caller: Caller, now: Now, decision: Decision) -> None:
        decision.producer = producer
        decision.answer(caller.ticket, counted(-1))


def counted(count: int) -> Struct:
    return HeartbeatResponse(throttle_time_ms=count)


@dataclass
class Broker:
    """What a shard needs around it; opened again over the same directory it is a broker after a restart."""

    directory: Path
    clean: bool = True
    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    followers: tuple[BrokerId, ...] = ()
    files: Files = field(default_factory=lambda: Files(2, "test"))
    metrics: CoordinatorMetrics = field(default_factory=CoordinatorMetrics)
    shard: Shard[Counters] = field(init=False)
    partition: Partition = field(init=False)
    machine: type[Counters] = Counters
    machines: list[Counters] = field(default_factory=list)
    effects: list[object] = field(default_factory=list)

    def start(self) -> None:
        overrides = {
            "flush.messages": "1",
            "max.message.bytes": str(self.max_message_bytes),
            "segment.bytes": str(self.segment_bytes),
        }
        config = topic_config(overrides, BrokerConfig())
        self.partition = Partition(
            TopicPartition("counters", 0),
            TopicId(bytes(16)),
            Log.open(str(self.directory), LogConfig.of(config), clean=self.clean, now_ms=0),
            config,
            broker_id=LEADER,
            tick=Tick(asyncio.get_running_loop()),
            flusher=Flusher(self.files, lambda error: None),
            tasks=TaskGroup(),
            metrics=TopicMetrics(),
            committed_offset=0 if self.followers else None,
        )
        serving = dict.fromkeys((LEADER, *self.followers), BROKER_EPOCH)
        self.partition.lead(a_partition_on(LEADER, *self.followers), serving, lag_max_ms=30_000, now_ms=0)
        self.shard = Shard(
            self.partition,
            self._machine,
            clock=SystemClock(),
            files=self.files,
            tasks=TaskGroup(),
            metrics=self.metrics,
            effect=self._effect,
        )

    def _effect(self, effect: object) -> None:
        self.effects.append(effect)

    def _machine(self) -> Counters:
        self.machines.append(self.machine())
        return self.machines[-1]

    async def ask(self, work: object, name: object = b"a") -> int:
        answer = await asyncio.wait_for(
            self.shard.ask(work, name, api_version=0, client_id="", client_host=""),  # type: ignore[arg-type]
            10,
        )
        return int(answer.throttle_time_ms)

    def submit(self, work: object, name: object = b"a") -> asyncio.Future[int]:
        """`ask`, decided before it returns."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(answer: Struct | BrokerError) -> None:
            if isinstance(answer, BrokerError):
                outcome.set_exception(answer)
            else:
                assert isinstance(answer, HeartbeatResponse)
                outcome.set_result(answer.throttle_time_ms)

        self.shard.submit(work, name, done, 0, "", "")  # type: ignore[arg-type]
        return outcome

    async def loaded(self) -> None:
        async with asyncio.timeout(10):
            while self.shard.machine is None:  # noqa: ASYNC110 - loading has no event of its own
                await asyncio.sleep(0)

    def followers_catch_up(self) -> None:
        """Every follower has all of the log, on disk."""
        end_offset = self.partition.log.log_end_offset
        for follower in self.followers:
            self.partition.fetched_by(follower, BROKER_EPOCH, end_offset, now_ms=0)
            self.partition.flushed_by(follower, BROKER_EPOCH, end_offset, end_offset, now_ms=0)

    async def until_flushed(self) -> None:
        async with asyncio.timeout(10):
            while self.partition.log.is_dirty:  # noqa: ASYNC110 - flushing has no event of its own
                await asyncio.sleep(0)

    def batches(self) -> list[BatchHeader]:
        segment = self.partition.log.segments[-1]
        return [found.header for found in segment.walk(0, segment.size, wait=True)]

    async def restarted(self) -> Broker:
        self.shard.close()
        self.partition.log.close()
        again = Broker(self.directory, machine=self.machine)
        again.start()
        await again.loaded()
        return again


def full(*_: object) -> int:
    """In place of os.pwritev: a disk that takes no more."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
