"""This broker's life in the cluster: registered, alive while its lease is renewed, and what it is up to.

A session has a broker epoch. It ends with the lease, and with it all that the broker led; a broker that finds its lease
gone (it was paused, or cut off from the metadata) begins a new one and is elected again, or not.

Two processes may have the same id and directory id, on copies of one directory. So a session that lasts is waited for,
unless its process is known to be gone: it held the lock that this one holds. Who is still running then is refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from penstock.controller.registration import Registration, begin_session, change_session, check_owner, check_session
from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.follower import Follower
from penstock.metadata.records import SessionState
from penstock.metadata.store import Committed, Conflict, LeaseExpired, LeaseId, MetadataStore
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.storage.last_session import LastSession

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
POLL_S = 0.1
# How many session timeouts a session is waited for that may be somebody else's: it may have been renewed just now, and
# its end takes a moment to be seen.
PATIENCE_TTLS = 2


class KnownSession(Protocol):
    """The last session that was begun by this process, or by one that is known to be gone (storage/last_session.py)."""

    @property
    def epoch(self) -> int | None: ...

    async def began(self, epoch: int) -> None:
        """OSError."""


class InMemory:
    """For who has no predecessor."""

    def __init__(self) -> None:
        self.epoch: int | None = None

    async def began(self, epoch: int) -> None:
        self.epoch = epoch


class Noted:
    def __init__(self, last: LastSession, files: Files) -> None:
        self._last = last
        self._files = files

    @property
    def epoch(self) -> int | None:
        return self._last.epoch

    async def began(self, epoch: int) -> None:
        await self._files.run(self._last.began, epoch)


class BrokerSession:
    def __init__(
        self,
        store: MetadataStore,
        follower: Follower,
        clock: Clock,
        ttl_ms: int,
        last: KnownSession | None = None,
    ) -> None:
        self._store = store
        self._follower = follower
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._last = last or InMemory()
        self._registration: Registration | None = None
        self._lease_id: LeaseId | None = None
        # A session is lost at any time, also while it changes its state.
        self._one_at_a_time = asyncio.Lock()
        self._state = SessionState.STARTING
        # From when it is asked for: whoever hears of the session may do so before its own broker has the answer.
        self.epoch: int | None = None
        # Until then nobody else can have been given what this broker leads. Taken before each renewal was asked for.
        self.deadline_ms = 0

    async def begin(self, registration: Registration) -> None:
        """Raises DUPLICATE_BROKER_REGISTRATION when the id is another broker's."""
        self._registration = registration
        committed = None
        while committed is None:
            await self._until_no_other(registration)
            asked_ms = self._clock.monotonic_ms()
            lease_id = await self._store.grant_lease(self._ttl_ms)
            try:
                committed = await self._try_to_begin(registration, lease_id)
            except BrokerError:
                await self._store.revoke_lease(lease_id)
                raise
            if committed is None:
                await self._store.revoke_lease(lease_id)
        self._lease_id, self.deadline_ms = lease_id, asked_ms + self._ttl_ms
        assert self.epoch is not None
        try:
            await self._last.began(self.epoch)
        except OSError as error:
            log.warning("session not noted, a restart will wait for its end", extra={"reason": error.strerror})
        await self._follower.reached(committed.revision)

    async def _try_to_begin(self, registration: Registration, lease_id: LeaseId) -> Committed | None:
        """None when somebody was faster, or the lease is over."""
        try:
            image = await self._follower.refresh()
            check_session(registration.broker_id, image, self._last.epoch)
            transaction, self.epoch = begin_session(registration, image, self._state, lease_id)
            return await self._store.commit(transaction)
        except (Conflict, LeaseExpired):
            self.epoch = None
            return None
        except BrokerError:
            self.epoch = None
            raise

    async def _until_no_other(self, registration: Registration) -> None:
        """Whoever had the id may have died just now: then its session ends."""
        give_up_ms = self._clock.monotonic_ms() + PATIENCE_TTLS * self._ttl_ms
        has_said_so = False
        while True:
            image = await self._follower.refresh()
            check_owner(registration.broker_id, registration.directory_id, image)
            try:
                check_session(registration.broker_id, image, self._last.epoch)
                return
            except BrokerError:
                if self._clock.monotonic_ms() >= give_up_ms:
                    raise
            if not has_said_so:
                has_said_so = True
                log.warning("waiting for the session of another process with this id to end")
            await asyncio.sleep(POLL_S)

    async def become(self, state: SessionState) -> None:
        """In a new session if the last one is over. Raises BrokerError when the metadata is out of reach."""
        self._state = state
        async with self._one_at_a_time:
            if self.epoch is None or not await self._has_changed(self.epoch, state):
                await self._begin_again()

    async def _has_changed(self, epoch: int, state: SessionState) -> bool:
        """False: the session is over."""
        assert self._registration is not None
        assert self._lease_id is not None
        while True:
            try:
                change = change_session(
                    self._follower.image, self._registration.broker_id, epoch, state, self._lease_id
                )
                committed = await self._store.commit(change)
            except Conflict:
                await self._follower.refresh()
                continue
            except LeaseExpired:
                return False
            except BrokerError as error:
                if error.code is ErrorCode.STALE_BROKER_EPOCH:
                    return False
                raise
            await self._follower.reached(committed.revision)
            return True

    async def _begin_again(self) -> None:
        assert self._registration is not None
        lost, self.epoch = self.epoch, None
        await self.begin(self._registration)
        log.warning("session lost, registered again", extra={"lost_epoch": lost, "epoch": self.epoch})

    async def keep(self) -> None:
        """Runs for ever. Raises BrokerError when another broker has taken the id meanwhile."""
        while True:
            await asyncio.sleep(self._ttl_ms / 1000 / RENEWALS_PER_TTL)
            try:
                await self._renew()
            except BrokerError as error:
                if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    raise
                log.warning("session not renewed, trying again", extra={"reason": error.message})

    async def _renew(self) -> None:
        lease_id = self._lease_id
        assert lease_id is not None
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._store.keep_alive(lease_id)
        except LeaseExpired:
            async with self._one_at_a_time:
                if self._lease_id == lease_id:  # not if it was replaced meanwhile, by `become`
                    await self._begin_again()
            return
        if self._lease_id == lease_id:
            self.deadline_ms = asked_ms + self._ttl_ms
            self._check_sole()

    def _check_sole(self) -> None:
        """A lease lasts even if its session was taken over by somebody who should not have."""
        assert self._registration is not None
        broker_id = self._registration.broker_id
        present = self._follower.image.session_epoch(broker_id)
        if present is not None and self.epoch is not None and present > self.epoch:
            raise BrokerError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"another process has begun a session of broker {broker_id}, on a copy of its data directory",
            )

    async def end(self) -> None:
        """Others need not wait until the lease runs out."""
        lease_id, self._lease_id, self.epoch = self._lease_id, None, None
        if lease_id is not None:
            try:
                await self._store.revoke_lease(lease_id)
            except BrokerError as error:
                log.warning("session not ended", extra={"reason": error.message})
