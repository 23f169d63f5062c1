"""A broker's session over a real store: it may be lost at any moment, and then there is another."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.controller.registration import Registration
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata.follower import Follower
from penstock.metadata.records import SessionRecord, SessionState
from penstock.metadata.sqlite_store import SqliteStore
from penstock.metadata.store import Committed, Transaction
from penstock.runtime.clock import SystemClock
from penstock.runtime.files import Files
from penstock.server import session
from penstock.server.session import BrokerSession, Noted
from penstock.storage.last_session import LastSession

ONE = BrokerId(1)
ME = Registration(ONE, (), host="machine", directory_id="mine")


class StallingStore(SqliteStore):
    """Takes so long for the next commits, as told, that the leases of their keys are over by then."""

    stalls = 0

    async def commit(self, transaction: Transaction) -> Committed:
        if self.stalls:
            self.stalls -= 1
            for put in transaction.puts:
                if put.lease_id is not None:
                    await self.revoke_lease(put.lease_id)
        return await super().commit(transaction)


class Joined:
    def __init__(self, store: StallingStore) -> None:
        self.store = store
        self.follower = Follower(store)
        self.session = BrokerSession(store, self.follower, SystemClock(), ttl_ms=60_000)

    async def lose_the_session(self) -> None:
        assert self.session._lease_id is not None
        await self.store.revoke_lease(self.session._lease_id)

    async def registered(self) -> SessionRecord:
        return (await self.follower.refresh()).sessions[ONE]


@pytest.fixture
async def joined(tmp_path: Path) -> AsyncIterator[Joined]:
    store = await StallingStore.open(tmp_path / "metadata.db")
    assert isinstance(store, StallingStore)
    joined = Joined(store)
    await joined.follower.start()
    yield joined
    await joined.follower.stop()
    await store.close()


async def test_given_a_session_that_lasts_when_another_process_has_the_same_directory_id_then_it_is_refused(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PATIENCE_TTLS", 0)
    await joined.session.begin(ME)
    copy = BrokerSession(joined.store, joined.follower, SystemClock(), ttl_ms=60_000)

    with pytest.raises(BrokerError) as refused:
        await copy.begin(ME)

    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert (await joined.registered()).epoch == joined.session.epoch
    assert copy.epoch is None


async def test_given_a_process_that_is_known_to_be_gone_then_its_session_is_taken_over_at_once(
    joined: Joined, tmp_path: Path
) -> None:
    lock = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    files = Files(1, "test")

    def a_process() -> BrokerSession:
        known = Noted(LastSession(str(tmp_path), lock), files)
        return BrokerSession(joined.store, joined.follower, SystemClock(), 60_000, known)

    first = a_process()
    await first.begin(ME)
    second = a_process()

    await second.begin(ME)

    assert (await joined.registered()).epoch == second.epoch
    with pytest.raises(BrokerError) as refused:
        await first._renew()
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION, "should it run all the same"
    files.close()
    os.close(lock)


def test_given_a_copy_of_a_directory_then_what_it_says_of_sessions_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = os.open(tmp_path / "first" / ".lock", os.O_RDWR | os.O_CREAT)
    LastSession(str(tmp_path / "first"), first).began(7)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = os.open(tmp_path / "copy" / ".lock", os.O_RDWR)

    assert LastSession(str(tmp_path / "first"), first).epoch == 7
    assert LastSession(str(tmp_path / "copy"), copy).epoch is None
    os.close(first)
    os.close(copy)


async def test_given_a_lease_that_ends_before_the_session_has_begun_then_it_begins_with_another(joined: Joined) -> None:
    joined.store.stalls = 2

    await joined.session.begin(ME)

    assert (await joined.registered()).epoch == joined.session.epoch


async def test_given_a_session_that_was_lost_when_the_broker_is_ready_then_it_serves_in_another(joined: Joined) -> None:
    await joined.session.begin(ME)
    lost = joined.session.epoch
    await joined.lose_the_session()

    await joined.session.become(SessionState.SERVING)

    now = await joined.registered()
    assert (now.state, now.epoch) == (SessionState.SERVING, joined.session.epoch)
    assert now.epoch != lost


async def test_given_a_session_that_is_lost_while_its_state_changes_then_the_next_has_that_state(
    joined: Joined,
) -> None:
    await joined.session.begin(ME)
    joined.store.stalls = 1

    await joined.session.become(SessionState.SERVING)

    assert (await joined.registered()).state is SessionState.SERVING


async def test_given_a_renewal_that_finds_the_session_lost_while_its_state_changes_then_there_is_one_session(
    joined: Joined,
) -> None:
    await joined.session.begin(ME)
    await joined.lose_the_session()

    await asyncio.gather(joined.session._renew(), joined.session.become(SessionState.SERVING))

    now = await joined.registered()
    assert (now.state, now.epoch) == (SessionState.SERVING, joined.session.epoch)
    await joined.session._renew()
    assert joined.session.epoch == now.epoch, "its lease is the one that is renewed"
