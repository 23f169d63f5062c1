"""The controller's service over a real store: one at a time, fenced, and right about what it cannot know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.controller.commands import (
    AllocateProducerIds,
    CreatedTopic,
    CreateTopics,
    NewTopic,
)
from penstock.controller.producer_ids import ProducerIds
from penstock.controller.registration import Registration
from penstock.controller.service import ControllerService
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId, TopicPartition, topic_id_from_text
from penstock.metadata import records
from penstock.metadata.follower import Follower
from penstock.metadata.records import PartitionRecord, SessionState
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Committed, Conflict, Put, Transaction
from penstock.runtime.clock import SystemClock
from penstock.runtime.tasks import spawn
from penstock.server.session import BrokerSession, InMemory

ONE = BrokerId(1)


class InterruptibleStore(SqliteStore):
    """Fails the next commits as told: before they happen, or after. None lets one pass."""

    fail_before: list[Exception | None]
    fail_after: list[Exception]
    commits = 0

    async def commit(self, transaction: Transaction) -> Committed:
        if self.fail_before and (failure := self.fail_before.pop(0)) is not None:
            raise failure
        committed = await super().commit(transaction)
        self.commits += 1
        if self.fail_after:
            raise self.fail_after.pop(0)
        return committed


class Running:
    """A store, its follower and a controller that has registered one broker."""

    def __init__(self, store: InterruptibleStore, known: InMemory) -> None:
        self.store = store
        self.follower = Follower(store)
        self.session = BrokerSession(store, self.follower, SystemClock(), 60_000, known)
        self.controller = ControllerService(store, self.follower, ONE, BrokerConfig, lambda: self.session.epoch)

    @classmethod
    async def start(cls, path: Path, known: InMemory) -> Running:
        store = await InterruptibleStore.open(path)
        assert isinstance(store, InterruptibleStore)
        store.fail_before, store.fail_after = [], []
        running = cls(store, known)
        await running.follower.start()
        await running.session.begin(Registration(ONE, (), host="machine"))
        await running.session.become(SessionState.SERVING)
        await running.controller.take_part()
        return running

    async def stop(self) -> None:
        await self.follower.stop()
        await self.store.close()

    async def create(self, *names: str, partition_count: int = 1) -> list[CreatedTopic | BrokerError]:
        topics = tuple(NewTopic(name, partition_count, 1) for name in names)
        return [result.outcome for result in await self.controller.ask(CreateTopics(topics))]


Start = Callable[[], Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Running] = []
    known = InMemory()  # each knows that the one before is gone

    async def start_one() -> Running:
        started.append(await Running.start(tmp_path / "metadata.db", known))
        return started[-1]

    yield start_one
    for running in started:
        await running.stop()


@pytest.fixture
async def running(start: Start) -> Running:
    return await start()


async def test_given_a_reply_when_it_comes_then_this_brokers_image_already_has_it(running: Running) -> None:
    (created,) = await running.create("orders", partition_count=250)

    assert isinstance(created, CreatedTopic)
    assert running.follower.image.topics["orders"].topic_id == created.topic_id
    assert len(running.follower.image.topics["orders"].partitions) == 250


async def test_given_a_restart_when_started_again_then_topics_stay_and_epochs_rise(start: Start) -> None:
    first = await start()
    await first.create("orders")
    before = first.follower.image
    await first.stop()

    second = await start()

    after = second.follower.image
    assert after.topics["orders"].topic_id == before.topics["orders"].topic_id
    assert after.topics["orders"].partitions[0].leader_epoch == before.topics["orders"].partitions[0].leader_epoch + 1
    assert after.brokers[ONE].epoch > before.brokers[ONE].epoch
    assert before.controller is not None
    assert after.controller is not None
    assert after.controller.epoch == before.controller.epoch + 1


async def test_given_another_controller_when_the_old_one_writes_then_it_is_fenced(start: Start) -> None:
    old = await start()
    new = await start()

    with pytest.raises(BrokerError) as fenced:
        await old.create("orders")

    assert fenced.value.code is ErrorCode.NOT_CONTROLLER
    assert "orders" not in (await new.follower.refresh()).topics


async def test_given_another_controller_when_the_old_one_is_half_way_then_it_does_not_say_that_nothing_happened(
    running: Running,
) -> None:
    running.store.fail_before = [None, Conflict(("controller",))]

    with pytest.raises(BrokerError) as half_done:
        await running.create("orders", partition_count=250)

    assert half_done.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_given_a_conflict_when_committing_then_decided_again_on_what_is_there(running: Running) -> None:
    running.store.fail_before = [Conflict(("topics/orders",)), Conflict(("topics/orders",))]

    (created,) = await running.create("orders")

    assert isinstance(created, CreatedTopic)


async def test_given_conflicts_without_end_when_committing_then_given_up_with_a_retriable_code(
    running: Running,
) -> None:
    running.store.fail_before = [Conflict(("topics/orders",))] * 100

    with pytest.raises(BrokerError) as given_up:
        await running.create("orders")

    assert given_up.value.code.retriable


async def test_given_a_conflict_half_way_when_decided_again_then_what_is_there_counts_as_created(
    running: Running,
) -> None:
    before = running.store.commits
    running.store.fail_after = [Conflict(("as if lost half way",))]

    created = await running.create("a.b", "c")

    assert all(isinstance(outcome, CreatedTopic) for outcome in created)
    assert running.store.commits == before + 1


async def test_given_an_unknown_outcome_when_asked_next_then_decided_on_what_really_happened(running: Running) -> None:
    running.store.fail_after = [BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no answer")]
    with pytest.raises(BrokerError):
        await running.create("a.b")

    (collides,) = await running.create("a_b")

    assert isinstance(collides, BrokerError)
    assert collides.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_given_a_caller_that_went_away_when_asked_next_then_decided_on_what_really_happened(
    running: Running,
) -> None:
    caller = spawn(running.create("a.b"), name="caller")
    await asyncio.sleep(0)  # the commit is on its way now, to the store's thread
    assert running.controller._one_at_a_time.locked()
    caller.cancel()

    (outcome,) = await running.create("a_b")

    # Either the commit was stopped in time, or it happened and the names collide: never both topics.
    assert set(running.follower.image.topics) == {"a_b" if isinstance(outcome, CreatedTopic) else "a.b"}


async def test_given_many_callers_when_asking_at_once_then_one_of_them_creates_the_topic(running: Running) -> None:
    outcomes = await asyncio.gather(*[running.create("orders") for _ in range(20)])

    created = [outcome for (outcome,) in outcomes if isinstance(outcome, CreatedTopic)]
    assert len(created) == 1


async def test_given_leftovers_of_a_crash_when_the_controller_starts_then_they_are_removed(start: Start) -> None:
    first = await start()
    topic_id = topic_id_from_text("AAAAAAAAAAAAAAAAAAAAAQ")
    left = PartitionRecord(replicas=(ONE,), isr=(ONE,), leader=ONE)
    await first.store.commit(Transaction(puts=(Put(records.partition_key(topic_id, 0), records.encode(left)),)))
    await first.stop()

    second = await start()

    assert (await second.store.read(records.PARTITIONS_PREFIX)).entries == ()


async def test_given_restarts_when_producer_ids_are_drawn_then_none_repeats(start: Start) -> None:
    drawn: list[int] = []
    for _ in range(3):
        running = await start()
        producer_ids = ProducerIds(running.controller)
        drawn += await asyncio.gather(*[producer_ids.next() for _ in range(1_001)])
        await running.stop()

    assert len(set(drawn)) == len(drawn) == 3 * 1_001
    assert running.follower.image.next_producer_id == 6_000


async def test_given_a_full_disk_when_asked_then_the_error_is_clear_and_the_next_request_works(
    running: Running,
) -> None:
    running.store.fail_before = [BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "disk full")]
    with pytest.raises(BrokerError, match="disk full"):
        await running.controller.ask(AllocateProducerIds())

    block = await running.controller.ask(AllocateProducerIds())
    (created,) = await running.create("orders")

    assert block.first == 0
    assert isinstance(created, CreatedTopic)
    assert running.follower.image.partition(TopicPartition("orders", 0)) is not None
