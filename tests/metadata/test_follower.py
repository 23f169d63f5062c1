"""The follower keeps the image equal to the store, whatever the watch does, and tells each change once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata import records
from penstock.metadata.follower import Follower
from penstock.metadata.image import ClusterImage, ImageDelta
from penstock.metadata.records import BrokerConfigsRecord
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Changes, Committed, Put, Transaction

DEADLINE_S = 10


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db", history_changes=10)
    yield store
    await store.close()


class Heard:
    """A listener that remembers the default broker configs after each change."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def __call__(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        assert delta
        assert old.revision < new.revision
        self.values.append(new.broker_configs[None]["x"])


async def write(store: SqliteStore, value: str) -> Committed:
    record = BrokerConfigsRecord(configs={"x": value})
    return await store.commit(Transaction(puts=(Put(records.broker_configs_key(None), records.encode(record)),)))


async def reached(follower: Follower, committed: Committed) -> None:
    await asyncio.wait_for(follower.reached(committed.revision), DEADLINE_S)


class UnreliableStore(SqliteStore):
    """Loses what a watch brings, or the watch itself."""

    broken_watches = 0
    is_silent = False
    is_held: asyncio.Event | None = None
    may_go_on: asyncio.Event | None = None

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Changes, None]:
        if self.broken_watches:
            self.broken_watches -= 1
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the watch broke")
        async for changes in super().watch(prefix, after_revision):
            if self.is_held is not None and self.may_go_on is not None:
                self.is_held.set()
                await self.may_go_on.wait()
            if not self.is_silent:
                yield changes


async def test_given_content_when_started_then_listeners_hear_of_it_as_one_change(store: SqliteStore) -> None:
    await write(store, "1")
    heard = Heard()
    follower = Follower(store)
    follower.add_listener(heard)

    await follower.start()

    assert heard.values == ["1"]
    await follower.stop()


async def test_given_a_follower_when_commits_happen_then_listeners_hear_each_in_order(store: SqliteStore) -> None:
    heard = Heard()
    follower = Follower(store)
    follower.add_listener(heard)
    await follower.start()

    for number in range(5):
        await reached(follower, await write(store, str(number)))

    assert heard.values == ["0", "1", "2", "3", "4"]
    await follower.stop()


async def test_given_a_waiter_when_the_follower_stops_then_it_is_released(store: SqliteStore) -> None:
    follower = Follower(store)
    await follower.start()
    waiting = asyncio.gather(follower.reached(10**9), return_exceptions=True)
    await asyncio.sleep(0)

    await follower.stop()

    assert isinstance((await asyncio.wait_for(waiting, DEADLINE_S))[0], asyncio.CancelledError)


async def test_given_a_broken_watch_when_following_then_it_is_resumed_without_loss(tmp_path: Path) -> None:
    store = await UnreliableStore.open(tmp_path / "metadata.db")
    assert isinstance(store, UnreliableStore)
    store.broken_watches = 1
    follower = Follower(store)
    await follower.start()

    committed = await write(store, "1")

    await reached(follower, committed)
    assert follower.image.broker_configs[None] == {"x": "1"}
    await follower.stop()
    await store.close()


async def test_given_history_that_is_gone_when_the_watch_resumes_then_everything_is_read_again(
    store: SqliteStore,
) -> None:
    follower = Follower(store)
    await follower.start()
    await follower.stop()
    for number in range(200):
        committed = await write(store, str(number))

    # As after a pause of this process: the image is old, and so is what the watch asks for.
    follower._running = [follower._tasks.spawn(follower._follow(), name="follow-again")]

    await reached(follower, committed)
    assert follower.image.broker_configs[None] == {"x": "199"}
    await follower.stop()


async def test_given_a_watch_that_loses_events_when_the_resync_comes_then_the_image_is_right_again(
    tmp_path: Path,
) -> None:
    store = await UnreliableStore.open(tmp_path / "metadata.db")
    assert isinstance(store, UnreliableStore)
    store.is_silent = True
    heard = Heard()
    follower = Follower(store, resync_interval_ms=20)
    follower.add_listener(heard)
    await follower.start()

    await reached(follower, await write(store, "1"))

    assert heard.values == ["1"]
    await follower.stop()
    await store.close()


async def test_given_a_late_watch_when_a_full_read_was_faster_then_the_image_does_not_go_back(tmp_path: Path) -> None:
    store = await UnreliableStore.open(tmp_path / "metadata.db")
    assert isinstance(store, UnreliableStore)
    store.is_held, store.may_go_on = asyncio.Event(), asyncio.Event()
    heard = Heard()
    follower = Follower(store)
    follower.add_listener(heard)
    await follower.start()
    await write(store, "1")
    await asyncio.wait_for(store.is_held.wait(), DEADLINE_S)
    await write(store, "2")
    await follower.refresh()

    store.may_go_on.set()
    await reached(follower, await write(store, "3"))

    assert heard.values == ["2", "3"]
    await follower.stop()
    await store.close()


async def test_given_a_store_that_closes_when_following_then_the_follower_ends_quietly(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(store)
    await follower.start()

    await store.close()
    await follower.stop()

    assert caplog.records == []
