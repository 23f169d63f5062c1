"""The coordinators' topics are created when they are first needed, with settings of their own."""

from __future__ import annotations

from penstock.controller.commands import CreateTopics, NewTopic
from penstock.controller.internal_topics import new_internal_topic
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import INTERNAL_TOPICS
from penstock.handlers.context import Broker
from penstock.metadata.image import TopicImage


async def internal_topic(name: str, broker: Broker) -> TopicImage:
    """The topic, created if need be. Raises COORDINATOR_NOT_AVAILABLE, which clients know how to wait for."""
    if name not in broker.image.topics:
        try:
            [result] = await broker.controller.ask(CreateTopics((new_topic(name, broker),)))
        except BrokerError as error:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}: {error.message}") from error
        await broker.partitions.caught_up()
        outcome = result.outcome
        if isinstance(outcome, BrokerError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}: {outcome.message}")
    topic = broker.image.topics.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name} was deleted meanwhile")
    return topic


def new_topic(name: str, broker: Broker) -> NewTopic:
    """A topic that nobody described: an internal one has its own settings, others the broker's defaults."""
    if name not in INTERNAL_TOPICS:
        return NewTopic(name)
    return new_internal_topic(name, broker.image, broker.config)
