"""This broker's life in the cluster: registered, alive while its lease is renewed, and what it is up to.

A session has a broker epoch. It ends with the lease, and with it all that the broker led; a broker that finds its lease
gone (it was paused, or cut off from the metadata) begins a new one and is elected again, or not.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.controller.registration import Registration, begin_session, change_session
from penstock.core.errors import BrokerError, ErrorCode
from penstock.metadata.follower import Follower
from penstock.metadata.records import SessionState
from penstock.metadata.store import Conflict, LeaseExpired, LeaseId, MetadataStore
from penstock.runtime.clock import Clock

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3


class BrokerSession:
    def __init__(self, store: MetadataStore, follower: Follower, clock: Clock, ttl_ms: int) -> None:
        self._store = store
        self._follower = follower
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._registration: Registration | None = None
        self._lease_id: LeaseId | None = None
        # A session is lost at any time, also while it changes its state.
        self._one_at_a_time = asyncio.Lock()
        self._state = SessionState.STARTING
        self.epoch: int | None = None
        # Until then nobody else can have been given what this broker leads. Taken before each renewal was asked for.
        self.deadline_ms = 0

    async def begin(self, registration: Registration) -> None:
        """Raises DUPLICATE_BROKER_REGISTRATION when the id is another broker's."""
        self._registration = registration
        while True:
            asked_ms = self._clock.monotonic_ms()
            lease_id = await self._store.grant_lease(self._ttl_ms)
            try:
                transaction, epoch = begin_session(registration, await self._follower.refresh(), self._state, lease_id)
                committed = await self._store.commit(transaction)
                break
            except (Conflict, LeaseExpired):
                await self._store.revoke_lease(lease_id)
            except BrokerError:
                await self._store.revoke_lease(lease_id)
                raise
        self._lease_id, self.epoch, self.deadline_ms = lease_id, epoch, asked_ms + self._ttl_ms
        await self._follower.reached(committed.revision)

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

    async def end(self) -> None:
        """Others need not wait until the lease runs out."""
        lease_id, self._lease_id, self.epoch = self._lease_id, None, None
        if lease_id is not None:
            try:
                await self._store.revoke_lease(lease_id)
            except BrokerError as error:
                log.warning("session not ended", extra={"reason": error.message})
