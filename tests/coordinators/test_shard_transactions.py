"""Transactions in the log of a coordinator: batches of their own, refused or applied, ended by markers, replayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.coordinators.counters import Broker, Counters, Ledger, full

from penstock.coordinators.decision import Producer
from penstock.core.errors import BrokerError, ErrorCode
from penstock.protocol.control import EndMarker
from penstock.replication.partition import Partition

PRODUCER = Producer(4_000, 3)
OLDER = Producer(4_000, 2)
OTHER = Producer(5_000, 0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    started = Broker(tmp_path / "ledger-0", machine=Ledger)
    started.start()
    await started.loaded()
    await started.ask(Ledger.read)
    yield started
    started.shard.close()


def ledger(broker: Broker) -> Ledger:
    assert isinstance(broker.shard.machine, Ledger)
    return broker.shard.machine


def ended(broker: Broker, producer: Producer, *, commit: bool = True) -> asyncio.Future[BrokerError | None]:
    outcome: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    broker.shard.write_marker(EndMarker(*producer, commit, coordinator_epoch=1), 0, outcome.set_result)
    return outcome


async def test_given_a_decision_of_a_producer_then_it_is_a_transactional_batch_of_its_own_in_order(
    broker: Broker,
) -> None:
    before = len(broker.batches())

    await asyncio.gather(
        *(broker.ask(Ledger.count) for _ in range(3)),
        broker.ask(Ledger.count_two_for, PRODUCER),
        *(broker.ask(Ledger.count) for _ in range(2)),
        broker.ask(Ledger.count_two_for, OTHER),
        broker.ask(Ledger.count_two_for, PRODUCER),
    )

    assert [
        (each.records_count, each.is_transactional, each.producer_id, each.producer_epoch, each.base_sequence)
        for each in broker.batches()[before:]
    ] == [
        (1, False, -1, -1, -1),
        (2, False, -1, -1, -1),
        (2, True, *PRODUCER, -1),
        (2, False, -1, -1, -1),
        (2, True, *OTHER, -1),
        (2, True, *PRODUCER, -1),
    ]


async def test_given_a_decision_of_a_producer_then_it_is_answered_when_committed_and_pending(broker: Broker) -> None:
    counting, reading = broker.submit(Ledger.count_two_for, PRODUCER), broker.submit(Ledger.read, b"x")
    while not counting.done():
        assert not reading.done()
        await asyncio.sleep(0)

    assert await counting == 2
    assert await reading == 0
    assert [each.key for each in ledger(broker).pending[PRODUCER.producer_id]] == [b"x", b"y"]
    assert broker.partition.high_watermark.offset == broker.partition.log.log_end_offset


async def test_given_more_than_a_batch_takes_then_all_of_it_is_pending(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "ledger-0", max_message_bytes=10_000, machine=Ledger)
    broker.start()
    await broker.loaded()

    assert await broker.ask(Ledger.count_a_thousand_for, PRODUCER) == 1000

    assert {each.is_transactional for each in broker.batches()[1:]} == {True}
    assert await ended(broker, PRODUCER) is None
    assert await broker.ask(Ledger.read, b"x") == 1000


async def test_given_an_older_producer_then_it_alone_is_refused_and_the_machine_stays(broker: Broker) -> None:
    await broker.ask(Ledger.count_two_for, PRODUCER)
    before = ledger(broker)

    outcomes = await asyncio.gather(
        broker.ask(Ledger.count),
        broker.ask(Ledger.count),
        broker.ask(Ledger.count_two_for, OLDER),
        broker.ask(Ledger.count),
        return_exceptions=True,
    )

    assert (outcomes[0], outcomes[1], outcomes[3]) == (1, 2, 3)
    assert isinstance(outcomes[2], BrokerError)
    assert outcomes[2].code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ledger(broker) is before
    assert len(before.pending[PRODUCER.producer_id]) == 2


async def test_given_a_refusal_without_records_then_it_is_answered_and_nothing_is_written(broker: Broker) -> None:
    end = broker.partition.log.log_end_offset

    assert await broker.ask(Ledger.refuse_for, PRODUCER) == -1

    assert broker.partition.log.log_end_offset == end


async def test_given_what_was_decided_before_is_lost_then_so_is_the_transactional_decision(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = broker.submit(Ledger.count), broker.submit(Ledger.count)
    append, append_once = broker.partition.append, [no_replicas]
    monkeypatch.setattr(Partition, "append", lambda _, *batch: (append_once.pop() if append_once else append)(*batch))
    third = broker.submit(Ledger.count_two_for, PRODUCER)
    outcomes = await asyncio.gather(first, second, third, return_exceptions=True)

    assert {type(each) for each in outcomes} == {BrokerError}
    await broker.loaded()
    assert not ledger(broker).pending


def no_replicas(*_: object) -> None:
    raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "none is left")


# Markers


async def test_given_a_marker_then_the_machine_hears_it_in_order_and_who_asked_when_it_is_committed(
    broker: Broker,
) -> None:
    heard = len(ledger(broker).story)
    counting = [broker.submit(Ledger.count), broker.submit(Ledger.count)]
    counting.append(broker.submit(Ledger.count_two_for, PRODUCER))
    counting.append(broker.submit(Ledger.count))
    ending = ended(broker, PRODUCER)
    end = broker.partition.log.log_end_offset
    counting.append(broker.submit(Ledger.count, b"x"))
    while not ending.done():
        assert broker.partition.high_watermark.offset < end
        await asyncio.sleep(0)

    assert await ending is None
    assert await asyncio.gather(*counting) == [1, 2, 2, 3, 8]
    assert ledger(broker).story[heard:] == [
        "a=1",
        "a=2",
        "x=7 by 4000",
        "y=8 by 4000",
        "a=3",
        "4000 commits",
        "x=8",
    ]
    assert [each.is_control for each in broker.batches()] == [False, False, False, False, False, True, False]


async def test_given_an_abort_then_what_was_pending_is_gone(broker: Broker) -> None:
    await broker.ask(Ledger.count_two_for, PRODUCER)

    assert await ended(broker, PRODUCER, commit=False) is None

    assert await broker.ask(Ledger.read, b"x") == 0
    assert not ledger(broker).pending


async def test_given_a_marker_of_an_older_epoch_then_it_is_refused_and_changes_nothing(broker: Broker) -> None:
    await broker.ask(Ledger.count_two_for, PRODUCER)
    before, end = ledger(broker), broker.partition.log.log_end_offset

    refused = await ended(broker, OLDER)

    assert refused is not None
    assert refused.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert ledger(broker) is before
    assert before.pending
    assert broker.partition.log.log_end_offset == end


async def test_given_a_marker_that_is_not_written_then_who_asked_is_told_and_the_transaction_is_open(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.ask(Ledger.count_two_for, PRODUCER)

    monkeypatch.setattr("penstock.storage.log_file.os.pwritev", full)
    lost = await ended(broker, PRODUCER)
    monkeypatch.undo()

    assert lost is not None
    assert lost.code is ErrorCode.NOT_COORDINATOR
    await broker.loaded()
    assert ledger(broker).pending
    assert await ended(broker, PRODUCER) is None
    assert await broker.ask(Ledger.read, b"x") == 7


async def test_given_a_shard_that_is_not_there_yet_or_any_more_then_a_marker_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "ledger-0", machine=Ledger)
    broker.start()

    while_loading = await ended(broker, PRODUCER)
    await broker.loaded()
    on_its_way = ended(broker, PRODUCER)
    broker.shard.close()
    when_closed = await ended(broker, PRODUCER)

    assert [error and error.code for error in (while_loading, await on_its_way, when_closed)] == [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_COORDINATOR,
    ]


# Replay


async def test_given_a_restart_then_the_machine_hears_the_same_story(broker: Broker) -> None:
    await broker.ask(Ledger.count_two_for, PRODUCER)
    await asyncio.gather(broker.ask(Ledger.count, b"x"), broker.ask(Ledger.count_two_for, OTHER))
    await ended(broker, PRODUCER)
    await broker.ask(Ledger.count_two_for, PRODUCER)
    await ended(broker, OTHER, commit=False)
    live = ledger(broker)

    again = ledger(await broker.restarted())

    assert again.story == [*live.story, "loads=2"]
    assert again.pending == live.pending
    assert again.counts == live.counts | {b"loads": 2}


async def test_given_a_coordinator_without_transactions_then_those_in_its_log_are_passed_over(broker: Broker) -> None:
    await broker.ask(Ledger.count)
    await broker.ask(Ledger.count_two_for, PRODUCER)
    await ended(broker, PRODUCER)
    await broker.ask(Ledger.count)
    broker.machine = Counters

    again = await broker.restarted()

    assert await again.ask(Counters.read) == 2
    assert await again.ask(Counters.read, b"x") == 0
    assert again.metrics.records_skipped == 2
