"""AskController: another broker passes a command on to the controller, which this broker is, or says that it is not.

Ours, and served on the internal listener only.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.controller.command_codec import Undecodable, decode_command, encode_reply
from penstock.controller.commands import AlterPartition, Command, ResignReplicas
from penstock.core.errors import BrokerError, ErrorCode
from penstock.handlers.context import Broker, RequestContext
from penstock.protocol.messages.internal import AskControllerRequest, AskControllerResponse

log = logging.getLogger(__name__)


async def ask_controller(
    request: AskControllerRequest, context: RequestContext, broker: Broker
) -> AskControllerResponse:
    try:
        command = decode_command(request.command, request.body)
    except Undecodable as error:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    _check_sender(command, context)
    log.debug("command from a broker", extra={"command": request.command, "principal": request.principal})
    reply = await broker.controller.decide(command)
    # The answer came when this broker's image had it; that image's revision is not before that of the decision.
    return AskControllerResponse(revision=broker.image.revision, body=encode_reply(command, reply))


def _check_sender(command: Command[Any], context: RequestContext) -> None:
    """What a broker says of itself, no other says for it."""
    sender = context.session.broker_id
    if sender is None or (isinstance(command, AlterPartition | ResignReplicas) and command.broker_id != sender):
        raise BrokerError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.principal} may not ask for {type(command).__name__}"
        )
