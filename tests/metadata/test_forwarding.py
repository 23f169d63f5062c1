"""Two brokers' controllers on one store, one asking the other through a real internal listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.controller import forwarding
from penstock.controller.brokers import initialize_cluster
from penstock.controller.command_codec import encode_command
from penstock.controller.commands import (
    AllocateProducerIds,
    AlterPartition,
    ClaimController,
    Command,
    CreatedTopic,
    CreateTopics,
    DeleteTopics,
    InitializeCluster,
    NewTopic,
    ResignReplicas,
    TopicReference,
)
from penstock.controller.forwarding import Controller
from penstock.controller.registration import Registration
from penstock.controller.service import ControllerService
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.metrics import ApiMetrics
from penstock.handlers.context import Broker
from penstock.handlers.internal_registry import INTERNAL_APIS
from penstock.metadata.follower import Follower
from penstock.metadata.records import SessionState
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Committed, Transaction
from penstock.net.channel import Channels
from penstock.net.listener import ConnectionLimits
from penstock.protocol.messages.internal import AskControllerRequest, AskControllerResponse
from penstock.runtime.clock import SystemClock
from penstock.runtime.tasks import TaskGroup
from penstock.runtime.tick import Tick
from penstock.server.internal_listener import bind_internal_listener, credentials, internal_endpoint
from penstock.server.session import BrokerSession

ONE, TWO = BrokerId(1), BrokerId(2)
LIMITS = ConnectionLimits(
    max_frame_bytes=100 * 1024 * 1024,
    max_connections=50,
    max_connections_per_address=50,
    idle_limit_ms=60_000,
    read_deadline_ms=30_000,
)


class WatchedStore(SqliteStore):
    """Tells the test of each commit that happened, before whoever committed hears of it, and can be made to wait."""

    committed: Callable[[], None] | None = None
    # While set, commits wait for it; `is_held` is set when one does.
    held_until: asyncio.Event | None = None
    is_held: asyncio.Event

    async def commit(self, transaction: Transaction) -> Committed:
        if self.held_until is not None:
            self.is_held.set()
            await self.held_until.wait()
        outcome = await super().commit(transaction)
        if self.committed is not None:
            self.committed()
        return outcome


class Member:
    """What of a broker has to do with the controller: store, follower, service, and the internal listener."""

    def __init__(self, broker_id: BrokerId, store: WatchedStore, keep_trying_ms: int) -> None:
        self.broker_id = broker_id
        self.store = store
        self.tasks = TaskGroup()
        self.follower = Follower(store, self.tasks)
        self.session = BrokerSession(store, self.follower, SystemClock(), ttl_ms=60_000)
        self.service = ControllerService(store, self.follower, broker_id, BrokerConfig, lambda: self.session.epoch)
        self.channels = Channels(credentials(broker_id, lambda: self.follower.image))
        self.repeating = Channels(credentials(broker_id, lambda: self.follower.image))
        self.controller = a_controller(self, keep_trying_ms=keep_trying_ms)
        absent: Any = None  # what no request of these tests comes to
        broker = Broker(
            node_id=broker_id,
            current_config=BrokerConfig,
            clock=SystemClock(),
            files=absent,
            follower=self.follower,
            controller=self.controller,
            producer_ids=absent,
            partitions=absent,
            groups=absent,
            transactions=absent,
            fetch_sessions=absent,
            replica_sessions=absent,
            tasks=self.tasks,
            loop=asyncio.get_running_loop(),
            api_metrics={key: ApiMetrics() for key in INTERNAL_APIS},
            apis=INTERNAL_APIS,
        )
        self.metrics = broker.api_metrics[AskControllerRequest.API_KEY]
        self.listener = bind_internal_listener(broker, LIMITS, Tick(asyncio.get_running_loop()))
        self.registration = Registration(
            broker_id, (), host=f"machine-{broker_id}", internal=internal_endpoint(BrokerConfig(), self.listener)
        )

    @classmethod
    async def start(cls, path: Path, broker_id: BrokerId, *, keep_trying_ms: int = 5_000) -> Member:
        store = await WatchedStore.open(path)
        assert isinstance(store, WatchedStore)
        member = cls(broker_id, store, keep_trying_ms)
        await member.follower.start()
        for transaction in initialize_cluster(
            InitializeCluster("cluster"), member.follower.image, bytes(32)
        ).transactions:
            await store.commit(transaction)
        await member.session.begin(member.registration)
        await member.session.become(SessionState.SERVING)
        member.listener.start()
        return member

    async def takes_over_from(self, other: Member) -> None:
        await other.session.end()
        await self.follower.refresh()
        await self.service.take_part()

    def hang_up(self) -> None:
        for connection in list(self.listener.connections):
            connection.close("test")

    async def stop(self) -> None:
        self.listener.close()
        await self.channels.close()
        await self.repeating.close()
        await self.tasks.stop()
        await self.follower.stop()
        await self.store.close()


def a_controller(of: Member, *, keep_trying_ms: int) -> Controller:
    return Controller(
        of.service, of.follower, of.broker_id, of.channels, repeating=of.repeating, keep_trying_ms=keep_trying_ms
    )


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[tuple[Member, Member]]:
    """Broker 1 is the controller, broker 2 is not; both are registered."""
    one = await Member.start(tmp_path / "metadata.db", ONE)
    await one.service.take_part()
    two = await Member.start(tmp_path / "metadata.db", TWO)
    await one.follower.refresh()
    yield one, two
    for member in (two, one):
        await member.stop()


def topics(*names: str) -> CreateTopics:
    return CreateTopics(tuple(NewTopic(name, 1, 1) for name in names))


async def refused(work: Any) -> BrokerError:
    with pytest.raises(BrokerError) as error:
        await work
    return error.value


async def test_given_a_broker_that_is_not_the_controller_when_it_asks_then_the_controller_decides_and_it_sees_it(
    members: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = members
    caplog.set_level(logging.DEBUG, "penstock.handlers.ask_controller")

    (result,) = await two.controller.ask(topics("orders"), "User:alice")

    assert isinstance(result.outcome, CreatedTopic)
    assert two.follower.image.topics["orders"].topic_id == result.outcome.topic_id
    assert one.metrics.requests == 1
    assert [cast(Any, record).principal for record in caplog.records] == ["User:alice"]


async def test_given_what_the_controller_refuses_when_asked_from_elsewhere_then_the_error_comes_back(
    members: tuple[Member, Member],
) -> None:
    _, two = members

    (result,) = await two.controller.ask(DeleteTopics((TopicReference("nothing"),)))
    stale = await refused(two.controller.ask(AlterPartition(TWO, -1, ())))

    assert result.error is not None
    assert result.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nothing" in result.error.message
    assert stale.code is ErrorCode.STALE_BROKER_EPOCH


async def test_given_many_who_ask_at_once_then_each_gets_its_own_answer(members: tuple[Member, Member]) -> None:
    one, two = members

    blocks = await asyncio.gather(
        *(member.controller.ask(AllocateProducerIds()) for member in (one, two) for _ in range(20))
    )

    assert sorted(block.first for block in blocks) == [1000 * number for number in range(40)]


async def test_given_another_controller_when_the_old_one_is_asked_then_the_new_one_decides(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    await two.takes_over_from(one)

    (by_one,) = await one.controller.ask(topics("by-one"))  # whether it has heard of the change or not
    (by_two,) = await two.controller.ask(topics("by-two"))

    assert isinstance(by_one.outcome, CreatedTopic)
    assert isinstance(by_two.outcome, CreatedTopic)
    assert "by-one" in one.follower.image.topics
    assert not one.service.is_active
    assert two.service.is_active


async def test_given_a_lost_answer_when_twice_would_harm_then_it_is_not_asked_again(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    one.store.committed = one.hang_up

    unknown = await refused(two.controller.ask(topics("orders")))

    assert unknown.code is ErrorCode.REQUEST_TIMED_OUT
    assert "may have been done" in unknown.message
    assert one.metrics.requests == 1
    assert "orders" in (await two.follower.refresh()).topics


async def test_given_a_lost_answer_when_twice_does_no_harm_then_it_is_asked_again(
    members: tuple[Member, Member],
) -> None:
    one, two = members

    def hang_up_once() -> None:
        one.store.committed = None
        one.hang_up()

    one.store.committed = hang_up_once

    block = await two.controller.ask(AllocateProducerIds())

    assert block.first == 1000  # the block of the lost answer is nobody's
    assert one.metrics.requests == 2


async def test_given_a_controller_that_takes_its_time_when_something_hasty_gives_up_then_nothing_else_is_lost(
    members: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = members
    monkeypatch.setattr(forwarding, "REPEATABLE_ANSWER_TIMEOUT_MS", 100)
    hasty = a_controller(two, keep_trying_ms=0)
    one.store.held_until, one.store.is_held = asyncio.Event(), asyncio.Event()
    creating = two.tasks.spawn(two.controller.ask(topics("orders")), name="creating")
    await asyncio.wait_for(one.store.is_held.wait(), 5)

    late = await refused(hasty.ask(AllocateProducerIds()))
    one.store.held_until.set()

    assert late.code is ErrorCode.REQUEST_TIMED_OUT
    (result,) = await asyncio.wait_for(creating, 5)
    assert isinstance(result.outcome, CreatedTopic)


async def gone(member: Member, *, for_whom: Member) -> None:
    """Until then a request may still be sent to it, and nobody knows what became of that."""
    channel = await for_whom.channels.to(member.listener.address)
    member.listener.close()
    async with asyncio.timeout(5):
        while channel.is_open:  # noqa: ASYNC110 - about a socket, which has no event
            await asyncio.sleep(0)


async def test_given_a_controller_out_of_reach_when_asked_then_nothing_happens_and_the_wait_is_bounded(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    await gone(one, for_whom=two)
    impatient = a_controller(two, keep_trying_ms=200)

    late = await refused(impatient.ask(topics("orders")))

    assert late.code is ErrorCode.REQUEST_TIMED_OUT
    assert "nothing was done" in late.message
    assert "orders" not in (await two.follower.refresh()).topics


async def test_given_a_controller_out_of_reach_when_another_takes_over_then_whoever_waits_is_served(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    await gone(one, for_whom=two)
    asking = two.tasks.spawn(two.controller.ask(topics("orders")), name="asking")

    await two.takes_over_from(one)

    (result,) = await asyncio.wait_for(asking, 5)
    assert isinstance(result.outcome, CreatedTopic)


async def test_given_no_controller_yet_when_asked_then_it_waits_for_one(tmp_path: Path) -> None:
    only = await Member.start(tmp_path / "metadata.db", ONE)
    asking = only.tasks.spawn(only.controller.ask(AllocateProducerIds()), name="asking")
    await asyncio.sleep(0)

    await only.service.take_part()

    assert (await asyncio.wait_for(asking, 5)).first == 0
    await only.stop()


async def asked(there: Member, channels: Channels, command: str, body: bytes) -> ErrorCode:
    channel = await channels.to(there.listener.address)
    request = AskControllerRequest(command=command, principal="User:x", body=body)
    answer = await channel.request(request, 0, timeout_ms=5_000)
    return ErrorCode(AskControllerResponse.decode(answer, 0).error_code)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (AlterPartition(ONE, 1, ()), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ResignReplicas(ONE, 1, ()), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ClaimController(TWO, 1), ErrorCode.INVALID_REQUEST),
        (topics("allowed"), ErrorCode.NONE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Command) else value.name,
)
async def test_given_a_broker_that_asks_for_what_is_not_its_own_then_it_is_refused(
    members: tuple[Member, Member], command: Command[Any], code: ErrorCode
) -> None:
    one, two = members
    before = one.follower.image

    answer = await asked(one, two.channels, type(command).__name__, encode_command(command))

    assert answer is code
    after = await one.follower.refresh()
    assert (after.controller, after.brokers) == (before.controller, before.brokers)


async def test_given_a_command_that_is_not_known_or_not_readable_then_the_channel_lives_on(
    members: tuple[Member, Member],
) -> None:
    one, two = members

    assert await asked(one, two.channels, "Dance", b"{}") is ErrorCode.UNSUPPORTED_VERSION
    assert await asked(one, two.channels, "CreateTopics", b"\xff") is ErrorCode.UNSUPPORTED_VERSION
    assert await asked(one, two.channels, "AllocateProducerIds", b"{}") is ErrorCode.NONE
    assert one.listener.counters.accepted == 1


async def test_given_a_broker_that_is_not_the_controller_when_another_asks_it_then_it_sends_nothing_on(
    members: tuple[Member, Member],
) -> None:
    one, two = members
    before = one.metrics.requests

    body = encode_command(topics("orders"))
    assert await asked(two, one.channels, "CreateTopics", body) is ErrorCode.NOT_CONTROLLER

    assert one.metrics.requests == before


async def test_given_a_command_of_many_megabytes_when_asked_then_it_arrives(members: tuple[Member, Member]) -> None:
    _, two = members
    names = tuple(NewTopic(f"{number:06d}-" + "x" * 300) for number in range(20_000))

    results = await two.controller.ask(CreateTopics(names, validate_only=True))

    assert len(encode_command(CreateTopics(names))) > 4 * 1024 * 1024
    assert len(results) == 20_000
    assert all(isinstance(result.outcome, BrokerError) for result in results)
