"""A shard over a real log: a machine that counts is decided on, made durable, lost and loaded again."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.coordinators.decision import Caller, Decision, LogRecord, Now
from penstock.coordinators.groups import partition_of
from penstock.coordinators.shard import Shard
from penstock.coordinators.timers import Timers
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicId, TopicPartition
from penstock.core.metrics import CoordinatorMetrics, TopicMetrics
from penstock.core.topic_config import topic_config
from penstock.protocol.messages.groups import HeartbeatResponse
from penstock.protocol.schema import Struct
from penstock.replication.partition import Partition
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.runtime.tasks import TaskGroup, spawn
from penstock.runtime.tick import Tick
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log, LogConfig

LEADER = BrokerId(1)


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

    def read(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.answer(caller.ticket, counted(self.counts.get(name, 0)))

    def count_to_a_thousand(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.records += [LogRecord(name, b"%0100d" % count) for count in range(1, 1001)]
        decision.answer(caller.ticket, counted(1000))

    def count_two(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        decision.records += [LogRecord(name, b"1"), LogRecord(name, b"2")]
        decision.answer(caller.ticket, counted(2))

    def wait_for_a_timer(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        self.waiting.append(caller.ticket)
        self.timers.set("bell", now.monotonic_ms + 20)

    def set_a_far_deadline(self, name: bytes, caller: Caller, now: Now, decision: Decision) -> None:
        self.timers.set("next year", now.monotonic_ms + 365 * 24 * 3_600_000)
        decision.answer(caller.ticket, counted(0))


def counted(count: int) -> Struct:
    return HeartbeatResponse(throttle_time_ms=count)


@dataclass
class Broker:
    """What a shard needs around it; opened again over the same directory it is a broker after a restart."""

    directory: Path
    clean: bool = True
    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    files: Files = field(default_factory=lambda: Files(2, "test"))
    metrics: CoordinatorMetrics = field(default_factory=CoordinatorMetrics)
    shard: Shard[Counters] = field(init=False)
    partition: Partition = field(init=False)
    machines: list[Counters] = field(default_factory=list)

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
            leader_epoch=0,
            isr=(LEADER,),
            tick=Tick(asyncio.get_running_loop()),
            flusher=Flusher(self.files, lambda error: None),
            tasks=TaskGroup(),
            metrics=TopicMetrics(),
        )
        self.shard = Shard(
            self.partition,
            self._machine,
            clock=SystemClock(),
            files=self.files,
            tasks=TaskGroup(),
            metrics=self.metrics,
        )

    def _machine(self) -> Counters:
        self.machines.append(Counters())
        return self.machines[-1]

    async def ask(self, work: object, name: bytes = b"a") -> int:
        answer = await asyncio.wait_for(
            self.shard.ask(work, name, api_version=0, client_id="", client_host=""),  # type: ignore[arg-type]
            10,
        )
        return int(answer.throttle_time_ms)

    async def loaded(self) -> None:
        async with asyncio.timeout(10):
            while self.shard.machine is None:  # noqa: ASYNC110 - loading has no event of its own
                await asyncio.sleep(0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    started = Broker(tmp_path / "counters-0")
    started.start()
    await started.loaded()
    yield started
    started.shard.close()


async def test_given_commands_then_each_sees_what_those_before_it_decided(broker: Broker) -> None:
    answers = await asyncio.gather(*(broker.ask(Counters.count) for _ in range(20)))

    assert answers == list(range(1, 21))
    assert broker.partition.high_watermark.offset == broker.partition.log.log_end_offset


async def test_given_a_decision_that_is_not_committed_then_nothing_that_saw_it_is_answered(broker: Broker) -> None:
    counting = spawn(broker.ask(Counters.count), name="counting")
    reading = spawn(broker.ask(Counters.read), name="reading")
    seen_early = []
    while not counting.done():
        seen_early.append(reading.done())
        await asyncio.sleep(0)

    assert not any(seen_early)
    assert await reading == 1


async def test_given_decisions_while_one_is_on_its_way_then_they_share_a_batch(broker: Broker) -> None:
    await broker.ask(Counters.read)  # when what loading decided is committed
    before = batch_sizes(broker)

    await asyncio.gather(*(broker.ask(Counters.count) for _ in range(20)))

    assert batch_sizes(broker)[len(before) :] == [1, 19]


async def test_given_more_decisions_than_a_segment_takes_then_no_append_is_lost(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "counters-0", segment_bytes=1024)
    broker.start()
    await broker.loaded()

    answers = await asyncio.gather(*(broker.ask(Counters.count_two, b"%d" % number) for number in range(200)))

    assert answers == [2] * 200
    assert len(broker.machines) == 1


async def test_given_more_decisions_than_a_batch_takes_then_each_is_whole_in_one_and_all_are_answered(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "counters-0", max_message_bytes=400)
    broker.start()
    await broker.loaded()

    answers = await asyncio.gather(*(broker.ask(Counters.count_two, b"%d" % number) for number in range(40)))

    assert answers == [2] * 40
    sizes = batch_sizes(broker)[1:]
    assert sum(sizes) == 80
    assert 2 < len(sizes) < 40
    assert all(size % 2 == 0 for size in sizes)


def batch_sizes(broker: Broker) -> list[int]:
    segment = broker.partition.log.segments[-1]
    return [found.header.records_count for found in segment.walk(0, segment.size, wait=True)]


async def test_given_a_restart_then_the_machine_is_what_it_was(broker: Broker) -> None:
    for _ in range(3):
        await broker.ask(Counters.count)
    await broker.ask(Counters.count, b"b")
    before = dict(broker.shard.machine.counts) if broker.shard.machine else {}
    broker.partition.log.close()

    again = Broker(broker.directory)
    again.start()
    await again.loaded()

    assert again.shard.machine is not None
    assert again.shard.machine.counts == before | {b"loads": 2}
    assert await again.ask(Counters.count) == 4


async def test_given_a_machine_that_is_not_loaded_then_it_says_so_and_not_that_there_is_nothing(
    tmp_path: Path,
) -> None:
    starting = Broker(tmp_path / "counters-0")
    starting.start()

    with pytest.raises(BrokerError) as refused:
        await starting.shard.ask(Counters.read, b"a", api_version=0, client_id="", client_host="")

    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await starting.loaded()
    assert await starting.ask(Counters.read) == 0


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_given_an_append_that_fails_then_whoever_waits_is_told_and_the_machine_is_what_the_log_says(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.count)

    monkeypatch.setattr("penstock.storage.log_file.os.pwritev", full)
    failed = await asyncio.gather(*(broker.ask(Counters.count) for _ in range(3)), return_exceptions=True)
    monkeypatch.undo()

    assert {type(each) for each in failed} == {BrokerError}
    await broker.loaded()
    assert len(broker.machines) == 2
    assert await broker.ask(Counters.count) == 2


async def test_given_a_deadline_then_it_is_kept_and_so_is_the_next(broker: Broker) -> None:
    assert await broker.ask(Counters.wait_for_a_timer) == 1
    assert await broker.ask(Counters.wait_for_a_timer) == 2


async def test_given_an_earlier_deadline_than_the_one_before_then_it_is_kept(broker: Broker) -> None:
    await broker.ask(Counters.set_a_far_deadline)

    assert await broker.ask(Counters.wait_for_a_timer) == 1


async def test_given_a_machine_that_was_lost_then_deadlines_of_the_new_one_are_kept(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.set_a_far_deadline)
    monkeypatch.setattr("penstock.storage.log_file.os.pwritev", full)
    with pytest.raises(BrokerError):
        await broker.ask(Counters.count)
    monkeypatch.undo()
    await broker.loaded()

    assert await broker.ask(Counters.wait_for_a_timer) == 1


async def test_given_records_that_make_no_sense_then_the_others_are_loaded(broker: Broker) -> None:
    await broker.ask(Counters.count)
    broker.shard.tell(lambda machine, now, decision: decision.records.append(LogRecord(b"b", b"-1")))
    await broker.ask(Counters.count)
    broker.partition.log.close()

    again = Broker(broker.directory)
    Strict = type("Strict", (Counters,), {"apply": strictly})
    again._machine = lambda: again.machines.append(Strict()) or again.machines[-1]  # type: ignore[method-assign, func-returns-value]
    again.start()
    await again.loaded()

    assert await again.ask(Counters.read) == 2
    assert again.metrics.records_skipped == 1


def strictly(self: Counters, record: LogRecord) -> None:
    if record.value == b"-1":
        raise ValueError("a count below zero")
    Counters.apply(self, record)


async def test_given_more_records_than_the_partition_takes_at_once_then_they_go_in_several_batches(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "counters-0", max_message_bytes=10_000)
    broker.start()
    await broker.loaded()

    assert await broker.ask(Counters.count_to_a_thousand) == 1000

    assert await broker.ask(Counters.count) == 1001
    assert broker.partition.log.log_end_offset == 1 + 1000 + 1


async def test_given_a_shard_that_is_closed_then_whoever_waits_or_asks_is_sent_away(broker: Broker) -> None:
    waiting = spawn(broker.ask(Counters.wait_for_a_timer), name="waiting")
    await asyncio.sleep(0)

    broker.shard.close()

    with pytest.raises(BrokerError) as sent_away:
        await waiting
    assert sent_away.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(BrokerError):
        await broker.ask(Counters.read)


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("Aa", 2112),
        ("hello", 99162322),
        ("polygenelubricants", 0),  # Integer.MIN_VALUE, which Kafka takes for 0
        ("The quick brown fox", 1739336029),
        ("\U0001f600", 1772899),
    ],
)
def test_given_a_group_then_its_partition_is_the_one_that_kafka_computes(group_id: str, java_hash: int) -> None:
    assert partition_of(group_id, 2**31) == java_hash
    assert partition_of(group_id, 50) == java_hash % 50
