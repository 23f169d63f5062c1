"""The controller, wherever it is: a command is decided here if this broker is it, else sent to the broker that is.

An answer is given when this broker's image has what was decided, as if it had been decided here. Who is the controller
may be unknown for a moment, or be wrong; so a command is asked again, for some seconds, **when that is safe**:

- NOT_CONTROLLER and NotSent say that nothing happened: anything is asked again.
- NoAnswer leaves open what happened. Only commands that do no harm twice are asked again: see FORWARDED. Of the others
  whoever asked is told so (REQUEST_TIMED_OUT), and looks before they try again, or has the client do that.
- Any other error is the controller's answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from penstock.controller.command_codec import Undecodable, decode_reply, encode_command
from penstock.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartition,
    AlterReassignments,
    ClaimController,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    GrowInternalTopics,
    Heal,
    InitializeCluster,
    Reconcile,
    RemoveUnclaimedPartitions,
    ResignReplicas,
    UnregisterBroker,
    UpdateFeatures,
)
from penstock.controller.service import ControllerService
from penstock.core.errors import BrokerError, ErrorCode, error_code_of
from penstock.core.ids import BrokerId
from penstock.metadata.follower import Follower
from penstock.metadata.image import ClusterImage, ImageDelta
from penstock.net.channel import Address, Channels, NoAnswer, NotSent
from penstock.protocol.messages.internal import AskControllerRequest, AskControllerResponse

Reply = TypeVar("Reply")

# What goes to another broker, and whether it is asked again when its answer was lost.
FORWARDED: dict[type[Command[Any]], bool] = {
    # The same again takes another block: ids are skipped, none is given out twice.
    AllocateProducerIds: True,
    # Names the partition epoch that it changes. Had it been done, the second is refused for its epoch, as it is when
    # somebody else was faster, and the leader looks at its image in both cases.
    AlterPartition: True,
    # Who has left has left. A second mark of a spoilt replica costs a leader epoch.
    ResignReplicas: True,
    # The second answer would say that the topic exists already, to the one who created it. (With the same seed it
    # would be recognised; but a topic that was deleted meanwhile would come back under the id of the deleted one.)
    CreateTopics: False,
    # By name it could delete a topic that was created anew meanwhile.
    DeleteTopics: False,
    # The second answer would say that there are as many partitions already.
    CreatePartitions: False,
    # The second answer would say that there is no need.
    ElectLeaders: False,
    # Would undo what somebody else has changed meanwhile, and been told so.
    AlterConfigs: False,
    # The second answer would say that there is no such broker.
    UnregisterBroker: False,
    # Would undo what somebody else has begun meanwhile; and of a cancelled one the second finds nothing.
    AlterReassignments: False,
    # The same versions again change nothing.
    UpdateFeatures: True,
}
# A broker's own deeds when it starts, takes over or is the controller, decided by its own service.
KEPT_HERE: frozenset[type[Command[Any]]] = frozenset(
    {InitializeCluster, ClaimController, RemoveUnclaimedPartitions, Reconcile, Heal, GrowInternalTopics}
)

VERSION = 0
KEEP_TRYING_MS = 5_000
ANSWER_TIMEOUT_MS = 15_000
# Where a lost answer does no harm, another controller is looked for sooner.
REPEATABLE_ANSWER_TIMEOUT_MS = 2_000
SEE_TIMEOUT_MS = 5_000
PAUSE_MS = 100


class Controller:
    """`ask` is for everybody on this broker; `decide` is for what other brokers ask.

    What is asked again when no answer comes soon has channels of its own, `repeating`: giving up ends a channel, and a
    controller that is busy with a large command would have done that, and nobody be told.
    """

    def __init__(
        self,
        service: ControllerService,
        follower: Follower,
        broker_id: BrokerId,
        channels: Channels,
        *,
        repeating: Channels,
        keep_trying_ms: int = KEEP_TRYING_MS,
    ) -> None:
        self._service = service
        self._follower = follower
        self._broker_id = broker_id
        self._channels = channels
        self._repeating = repeating
        self._keep_trying_ms = keep_trying_ms
        self._controller_changed = asyncio.Event()
        follower.add_listener(self._image_changed)

    async def ask(self, command: Command[Reply], principal: str | None = None) -> Reply:
        """Decided and seen by this broker, or BrokerError. `principal` is on whose behalf, this broker's when None."""
        assert type(command) in FORWARDED, f"{type(command).__name__} is not for another broker"
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._keep_trying_ms / 1000
        while True:
            self._controller_changed.clear()
            try:
                if self._service.is_active:
                    return await self._service.ask(command)
                return await self._ask_there(command, principal or f"Broker:{self._broker_id}")
            except BrokerError as error:
                if not _may_be_repeated(command, error) or loop.time() >= give_up_at:
                    raise _as_answer(error) from error
            await self._pause()

    async def decide(self, command: Command[Reply]) -> Reply:
        """Decide what another broker asks, here or not at all: what is sent on and on may never arrive."""
        if type(command) not in FORWARDED:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{type(command).__name__} is not for another broker")
        if not self._service.is_active:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"broker {self._broker_id} is not the controller")
        return await self._service.ask(command)

    async def _ask_there(self, command: Command[Reply], principal: str) -> Reply:
        is_repeatable = FORWARDED[type(command)]
        channel = await (self._repeating if is_repeatable else self._channels).to(self._address())
        body = await channel.request(
            AskControllerRequest(command=type(command).__name__, principal=principal, body=encode_command(command)),
            VERSION,
            timeout_ms=REPEATABLE_ANSWER_TIMEOUT_MS if is_repeatable else ANSWER_TIMEOUT_MS,
        )
        response = AskControllerResponse.decode(body, VERSION)
        if response.error_code:
            raise BrokerError(error_code_of(response.error_code), response.error_message or "")
        await self._seen(response.revision)
        try:
            return decode_reply(command, response.body)
        except Undecodable as error:
            raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def _address(self) -> Address:
        image = self._follower.image
        controller_id = image.controller_id
        if controller_id is None:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "no broker is the controller")
        broker = image.brokers.get(controller_id)
        if broker is None or broker.internal is None or broker.broker_id == self._broker_id:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"broker {controller_id} is not the controller yet")
        return (broker.internal.host, broker.internal.port)

    async def _seen(self, revision: int) -> None:
        try:
            async with asyncio.timeout(SEE_TIMEOUT_MS / 1000):
                await self._follower.reached(revision)
        except TimeoutError:
            raise BrokerError(
                ErrorCode.REQUEST_TIMED_OUT, f"done, but this broker's metadata has not come to revision {revision} yet"
            ) from None

    async def _pause(self) -> None:
        """Until another broker is the controller, or a little while."""
        try:
            async with asyncio.timeout(PAUSE_MS / 1000):
                await self._controller_changed.wait()
        except TimeoutError:
            return

    def _image_changed(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if delta.brokers_changed or old.controller_id != new.controller_id:
            self._controller_changed.set()


def _may_be_repeated(command: Command[Any], error: BrokerError) -> bool:
    if isinstance(error, NoAnswer):
        return FORWARDED[type(command)]
    return isinstance(error, NotSent) or error.code is ErrorCode.NOT_CONTROLLER


def _as_answer(error: BrokerError) -> BrokerError:
    """What a client may be told: where brokers cannot reach each other, its request has timed out, as in Kafka."""
    if isinstance(error, NotSent):
        return BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"nothing was done, the controller is out of reach: {error}")
    if isinstance(error, NoAnswer):
        return BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"it may have been done or not: {error}")
    return error
