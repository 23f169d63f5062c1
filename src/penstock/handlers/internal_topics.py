"""The coordinators' topics are created when they are first needed, with settings of their own."""

from __future__ import annotations

from penstock.controller.commands import CreateTopics, NewTopic
from penstock.core.errors import BrokerError, ErrorCode
from penstock.core.internal_topics import GROUP_OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.handlers.context import Broker
from penstock.metadata.image import TopicImage

# What the keys that describe them begin with.
_KEYS = {GROUP_OFFSETS_TOPIC: "offsets.topic", TRANSACTIONS_TOPIC: "transaction.state.log"}


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
    prefix = _KEYS.get(name)
    if prefix is None:
        return NewTopic(name)
    config = broker.config
    replicas = min(config.int(f"{prefix}.replication.factor"), max(1, len(broker.image.serving())))
    configs = [
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.int(f"{prefix}.segment.bytes"))),
    ]
    if name == TRANSACTIONS_TOPIC:
        configs.append(("min.insync.replicas", str(min(config.int(f"{prefix}.min.isr"), replicas))))
    return NewTopic(name, config.int(f"{prefix}.num.partitions"), replicas, configs=tuple(configs))
