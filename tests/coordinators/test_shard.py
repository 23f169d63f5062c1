"""A shard over a real log: a machine that counts is decided on, made durable, lost and loaded again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.coordinators.counters import Broker, Counters, full

from penstock.coordinators import replay
from penstock.coordinators.coordinators import partition_of
from penstock.coordinators.decision import LogRecord
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.runtime.tasks import spawn

FOLLOWER = BrokerId(2)


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
    before = broker.batches()

    await asyncio.gather(*(broker.ask(Counters.count) for _ in range(20)))

    assert [batch.records_count for batch in broker.batches()[len(before) :]] == [1, 19]


@pytest.mark.parametrize("next_one", [Counters.count, Counters.count_without_haste, Counters.read])
async def test_given_a_decision_that_may_linger_then_it_goes_with_the_next_one_or_soon(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, next_one: object
) -> None:
    await broker.ask(Counters.read)
    before = len(broker.batches())

    assert await broker.ask(Counters.count_without_haste) == 1  # nothing comes to take it along
    assert [batch.records_count for batch in broker.batches()[before:]] == [1]

    if next_one is not Counters.count_without_haste:
        monkeypatch.setattr("penstock.coordinators.shard.LINGER_S", 1000)
    lingering = broker.submit(Counters.count_without_haste)
    answer = await broker.ask(next_one)

    assert (await lingering, answer) == (2, 2 if next_one is Counters.read else 3)
    together = 1 if next_one is Counters.read else 2
    assert [batch.records_count for batch in broker.batches()[before:]] == [1, together]


async def test_given_a_decision_that_lingers_when_an_append_fails_then_it_is_lost_with_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.count)
    lingering = broker.submit(Counters.count_without_haste)

    monkeypatch.setattr("penstock.storage.log_file.os.pwritev", full)
    with pytest.raises(BrokerError):
        await broker.ask(Counters.count)
    monkeypatch.undo()

    with pytest.raises(BrokerError):
        await lingering
    await broker.loaded()
    assert await broker.ask(Counters.count) == 2


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
    sizes = [batch.records_count for batch in broker.batches()[1:]]
    assert sum(sizes) == 80
    assert 2 < len(sizes) < 40
    assert all(size % 2 == 0 for size in sizes)


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


# Effects


async def test_given_effects_then_they_are_done_in_order_when_committed_and_before_the_answer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.read)
    end = broker.partition.log.log_end_offset
    asked = [broker.submit(Counters.count_and_tell, b"%d" % number) for number in range(5)]
    uncommitted, answered = [], []

    def effect(effect: object) -> None:
        broker.effects.append(effect)
        if isinstance(effect, bytes):
            uncommitted.append(broker.partition.high_watermark.offset <= end + int(effect))
            answered.append(asked[int(effect)].done())

    monkeypatch.setattr(broker.shard, "_effect", effect)
    await asyncio.gather(*asked)

    assert broker.effects == [b"0", 1, b"1", 1, b"2", 1, b"3", 1, b"4", 1]
    assert not any(uncommitted)
    assert not any(answered)


async def test_given_an_effect_without_records_then_it_waits_for_what_was_decided_before(broker: Broker) -> None:
    await broker.ask(Counters.read)
    asked = [broker.submit(Counters.count_and_tell, b"first"), broker.submit(Counters.tell, b"second")]
    asked += [broker.submit(Counters.count_and_tell, b"third"), broker.submit(Counters.tell, b"fourth")]
    assert not broker.effects

    await asyncio.gather(*asked)

    assert broker.effects == [b"first", 1, b"second", b"third", 1, b"fourth"]


async def test_given_an_append_that_fails_then_its_effects_are_not_done(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.read)

    monkeypatch.setattr("penstock.storage.log_file.os.pwritev", full)
    await asyncio.gather(*(broker.ask(Counters.count_and_tell) for _ in range(3)), return_exceptions=True)
    monkeypatch.undo()
    await broker.loaded()
    await broker.ask(Counters.count_and_tell)

    assert broker.effects == [b"a", 1]


# Time and loss


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


# Leaders that come and go


async def test_given_a_new_leader_that_does_not_know_what_is_committed_then_nothing_is_answered_before_it_does(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last leader had acknowledged may be above the high watermark that this one knows (trap E3)."""
    for _ in range(3):
        await broker.ask(Counters.count)
    broker.partition.log.close()
    monkeypatch.setattr(replay, "POLL_COMMITTED_S", 0)
    next_one = Broker(broker.directory, followers=(FOLLOWER,))
    next_one.start()
    await next_one.until_flushed()

    for _ in range(100):
        with pytest.raises(BrokerError, match="loading") as refused:
            await next_one.ask(Counters.read)
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await asyncio.sleep(0)
    next_one.followers_catch_up()
    await next_one.loaded()

    assert next_one.shard.machine is not None
    assert next_one.shard.machine.counts[b"a"] == 3


async def test_given_an_append_that_waits_when_the_partition_goes_elsewhere_then_who_waits_is_sent_there(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path / "counters-0", followers=(FOLLOWER,))
    broker.start()
    await broker.loaded()
    waiting = broker.submit(Counters.count)
    await broker.until_flushed()
    assert not waiting.done()

    broker.shard.close()  # as whoever hears of it first
    broker.partition.stop_leading(1)

    with pytest.raises(BrokerError) as told:
        await waiting
    with pytest.raises(BrokerError) as refused:
        await broker.ask(Counters.read)
    assert {told.value.code, refused.value.code} == {ErrorCode.NOT_COORDINATOR}
    assert broker.shard.machine is None


async def test_given_a_load_when_the_partition_goes_elsewhere_then_it_ends_and_is_no_error(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Counters.count)
    broker.partition.log.close()
    monkeypatch.setattr(replay, "POLL_COMMITTED_S", 0)
    next_one = Broker(broker.directory, followers=(FOLLOWER,))
    next_one.start()
    for _ in range(100):
        await asyncio.sleep(0)

    next_one.shard.close()
    next_one.partition.stop_leading(1)
    for _ in range(100):
        await asyncio.sleep(0)

    assert next_one.shard.machine is None
    assert caplog.records == []
