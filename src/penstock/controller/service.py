"""This broker as a controller, and as a candidate: whoever claims the controller key first decides for the cluster.

The controller takes one command at a time, lets the machine decide, commits, and answers. An answer is given when the
decision is durable and this broker's image has it, so a client that asks this broker next sees what it was told. Every
transaction carries a fence: it happens only while this broker's claim on the controller key stands, so a controller
that was replaced without noticing cannot write.

A claim stands while the session of the broker that made it does. When that is over, all others try to claim the key,
and compare-and-set lets one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from penstock.controller.commands import (
    ClaimController,
    Command,
    ElectionType,
    ElectLeaders,
    GrowInternalTopics,
    Heal,
    Reconcile,
    RemoveUnclaimedPartitions,
)
from penstock.controller.elections import Brokers, is_settled, led_by_others
from penstock.controller.machine import handle
from penstock.core.config import BrokerConfig
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.ids import BrokerId
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.metadata.follower import Follower
from penstock.metadata.image import ClusterImage, ImageDelta
from penstock.metadata.records import CONTROLLER_KEY
from penstock.metadata.store import Conflict, Expect, MetadataStore, Transaction

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
SEED_BYTES = 32
RETRY_MS = 500

NO_FENCE: tuple[Expect, ...] = ()

Reply = TypeVar("Reply")


class ControllerService:
    def __init__(
        self,
        store: MetadataStore,
        follower: Follower,
        broker_id: BrokerId,
        config: Callable[[], BrokerConfig],
        session_epoch: Callable[[], int | None],
    ) -> None:
        """`session_epoch` is that of this broker's session; None while it has none."""
        self._store = store
        self._follower = follower
        self._broker_id = broker_id
        self._config = config
        self._session_epoch = session_epoch
        self._one_at_a_time = asyncio.Lock()
        # Empty while this broker is not the controller.
        self._fence = NO_FENCE
        self._image_is_current = True
        self._to_do = asyncio.Event()
        # When this broker, as the controller, found others without a session.
        self._missing_since: dict[BrokerId, float] = {}

    async def ask(self, command: Command[Reply]) -> Reply:
        """Decide, commit, and reply once this broker's image has it. Raises BrokerError when all of it failed."""
        return await self._decide(command, is_fenced=True)

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return bool(self._fence) and not self._is_deposed(self._follower.image)

    # Campaigning

    async def campaign(self) -> None:
        """Runs for ever: be the controller where there is none, and where it is this one, react to brokers."""
        self._follower.add_listener(self._image_changed)
        while True:
            self._to_do.clear()
            try:
                await self.take_part()
            except BrokerError as error:
                log.warning("not done as a controller, trying again", extra={"reason": error.message})
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            await self._something_to_do()

    async def _something_to_do(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._next_healing()):
                await self._to_do.wait()

    async def balance(self) -> None:
        """Runs for ever: brokers that came back lead again what they are the first replica of."""
        while True:
            config = self._config()
            await asyncio.sleep(config.int("leader.imbalance.check.interval.seconds"))
            if not self.is_active or not config.bool("auto.leader.rebalance.enable"):
                continue
            allowed = config.int("leader.imbalance.per.broker.percentage")
            partitions = led_by_others(self._follower.image, allowed)
            if not partitions:
                continue
            try:
                await self.ask(ElectLeaders(ElectionType.PREFERRED, partitions))
                log.info("leaders balanced", extra={"partitions": len(partitions)})
            except BrokerError as error:
                log.warning("leaders not balanced", extra={"reason": error.message})

    async def take_part(self) -> None:
        """What the image calls for now: claim the controller's place, give it up, or put partitions in order."""
        image = self._follower.image
        if self._fence and self._is_deposed(image):
            self._fence = NO_FENCE
            log.info("controller no more", extra={"controller": image.controller_id})
        if not self._fence:
            self._missing_since.clear()  # who came back meanwhile, and went again, was not seen
        if image.controller_id is None and self._session_epoch() is not None:
            await self._claim()
        if self._fence:
            elected = await self.ask(Reconcile())
            if elected:
                log.info("leaders elected", extra={"partitions": len(elected)})
            await self._keep_up()

    # Upkeep

    async def _keep_up(self) -> None:
        """What grows with the cluster, and what a broker held that is gone for too long."""
        for topic in await self.ask(GrowInternalTopics()):
            log.info(
                "internal topic grows", extra={"topic": topic.name, "replication_factor": topic.replication_factor}
            )
        self._note_missing()
        due = tuple(broker_id for broker_id, when in self._healing_times().items() if when <= _now())
        if due and (healed := await self.ask(Heal(due))):
            log.warning("replicas made anew elsewhere", extra={"gone": due, "partitions": len(healed)})

    def _note_missing(self) -> None:
        image = self._follower.image
        self._missing_since = {
            broker_id: self._missing_since.get(broker_id, _now())
            for broker_id in image.brokers
            if broker_id not in image.sessions
        }

    def _healing_times(self) -> dict[BrokerId, float]:
        """When to give up waiting for each broker that is missing; nothing, if that is for ever."""
        after_ms = self._config().int("penstock.replica.auto.heal.ms")
        if after_ms < 0:
            return {}
        return {broker_id: since + after_ms / 1000 for broker_id, since in self._missing_since.items()}

    def _next_healing(self) -> float | None:
        return min((when for when in self._healing_times().values() if when > _now()), default=None)

    def _is_deposed(self, image: ClusterImage) -> bool:
        return any(image.mod_revisions.get(fence.key, 0) > fence.mod_revision for fence in self._fence)

    async def _claim(self) -> None:
        broker_epoch = self._session_epoch()
        if broker_epoch is None:
            return
        try:
            epoch = await self._decide(ClaimController(self._broker_id, broker_epoch))
        except BrokerError as error:
            if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH):
                raise
            log.debug("controller not claimed", extra={"reason": error.message})
            return
        self._fence = (Expect(CONTROLLER_KEY, self._follower.image.mod_revisions[CONTROLLER_KEY]),)
        removed = await self.ask(RemoveUnclaimedPartitions())
        log.info("controller started", extra={"controller_epoch": epoch, "unclaimed_partitions_removed": removed})

    def _image_changed(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        is_about_brokers = delta.sessions_changed or delta.others_changed or delta.broker_configs_changed
        if is_about_brokers or self._is_unsettled(new, delta):
            self._to_do.set()

    def _is_unsettled(self, image: ClusterImage, delta: ImageDelta) -> bool:
        if not self._fence or not delta.partitions_changed:
            return False
        brokers = Brokers.of(image)
        return any(
            not is_settled(change.after, brokers) or change.topic_partition.topic in INTERNAL_TOPICS
            for change in delta.partitions_changed
        )

    # Deciding

    async def _decide(self, command: Command[Reply], *, is_fenced: bool = False) -> Reply:
        seed = os.urandom(SEED_BYTES)
        async with self._one_at_a_time:
            for _ in range(MAX_ATTEMPTS):
                if is_fenced and not self._fence:
                    raise BrokerError(
                        ErrorCode.NOT_CONTROLLER, f"the controller is broker {self._follower.image.controller_id}"
                    )
                if not self._image_is_current:
                    await self._follower.refresh()
                    self._image_is_current = True
                decision = handle(command, self._follower.image, self._config(), seed)
                # Until all is known to have happened: a failure or a cancelled caller leaves open how far it got.
                self._image_is_current = not decision.transactions
                try:
                    await self._commit(decision.transactions, self._fence if is_fenced else NO_FENCE)
                except Conflict as conflict:
                    log.info("metadata changed meanwhile, deciding again", extra={"keys": conflict.keys})
                    continue
                self._image_is_current = True
                return decision.reply
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata changed {MAX_ATTEMPTS} times meanwhile")

    async def _commit(self, transactions: tuple[Transaction, ...], fence: tuple[Expect, ...]) -> None:
        revision = 0
        for transaction in transactions:
            fenced = replace(transaction, expected=transaction.expected + fence)
            try:
                revision = (await self._store.commit(fenced)).revision
            except Conflict as conflict:
                if fence and CONTROLLER_KEY in conflict.keys:
                    self._fence = NO_FENCE
                    raise _deposed(half_way=revision > 0) from None
                raise
        await self._follower.reached(revision)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _deposed(*, half_way: bool) -> BrokerError:
    """NOT_CONTROLLER says that nothing happened, so that anything may be asked again of the new controller."""
    if half_way:
        return BrokerError(ErrorCode.REQUEST_TIMED_OUT, "another broker became the controller when this was half done")
    return BrokerError(ErrorCode.NOT_CONTROLLER, "another broker has become the controller")
