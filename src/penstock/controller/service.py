"""The active controller: takes one command at a time, lets the machine decide, commits, and answers.

An answer is given when the decision is durable and this broker's image has it, so a client that asks this broker next
sees what it was told. Every transaction carries a fence: it happens only while this service's claim on the controller
key stands, so a controller that was replaced without noticing cannot write.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.controller.commands import ClaimController, Command, InitializeCluster, RemoveUnclaimedPartitions
from penstock.controller.machine import handle
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.metadata.follower import Follower
from penstock.metadata.records import CONTROLLER_KEY
from penstock.metadata.store import Conflict, Expect, MetadataStore, Transaction

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
SEED_BYTES = 32

Reply = TypeVar("Reply")


class ControllerService:
    def __init__(
        self, store: MetadataStore, follower: Follower, broker_id: BrokerId, config: Callable[[], BrokerConfig]
    ) -> None:
        self._store = store
        self._follower = follower
        self._broker_id = broker_id
        self._config = config
        self._one_at_a_time = asyncio.Lock()
        self._fence: tuple[Expect, ...] = ()
        self._image_is_current = True

    @property
    def is_active(self) -> bool:
        """Whether this service's claim on the controller key stands, as far as this broker knows."""
        return any(self._follower.image.mod_revisions.get(claim.key) == claim.mod_revision for claim in self._fence)

    async def start(self, cluster_id: str) -> int:
        """Take over: the store must be of this cluster, or new. The reply is the controller epoch."""
        await self.ask(InitializeCluster(cluster_id))
        epoch = await self.ask(ClaimController(self._broker_id))
        self._fence = (Expect(CONTROLLER_KEY, self._follower.image.mod_revisions[CONTROLLER_KEY]),)
        removed = await self.ask(RemoveUnclaimedPartitions())
        log.info("controller started", extra={"controller_epoch": epoch, "unclaimed_partitions_removed": removed})
        return epoch

    async def ask(self, command: Command[Reply]) -> Reply:
        """Decide, commit, and reply once this broker's image has it. Raises BrokerError when all of it failed."""
        seed = os.urandom(SEED_BYTES)
        async with self._one_at_a_time:
            for _ in range(MAX_ATTEMPTS):
                if not self._image_is_current:
                    await self._follower.refresh()
                    self._image_is_current = True
                decision = handle(command, self._follower.image, self._config(), seed)
                # Until all is known to have happened: a failure or a cancelled caller leaves open how far it got.
                self._image_is_current = not decision.transactions
                try:
                    await self._commit(decision.transactions)
                except Conflict as conflict:
                    log.info("metadata changed meanwhile, deciding again", extra={"keys": conflict.keys})
                    continue
                self._image_is_current = True
                return decision.reply
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata changed {MAX_ATTEMPTS} times meanwhile")

    async def _commit(self, transactions: tuple[Transaction, ...]) -> None:
        revision = 0
        for transaction in transactions:
            fenced = replace(transaction, expected=transaction.expected + self._fence)
            try:
                revision = (await self._store.commit(fenced)).revision
            except Conflict as conflict:
                if self._fence and CONTROLLER_KEY in conflict.keys:
                    raise _deposed(half_way=revision > 0) from None
                raise
        await self._follower.reached(revision)


def _deposed(*, half_way: bool) -> BrokerError:
    """NOT_CONTROLLER says that nothing happened, so that anything may be asked again of the new controller."""
    if half_way:
        return BrokerError(ErrorCode.REQUEST_TIMED_OUT, "another broker became the controller when this was half done")
    return BrokerError(ErrorCode.NOT_CONTROLLER, "another broker has become the controller")
