"""The Python SDK: a handful of calls on a topic, synchronous (`Client`) and asynchronous (`AsyncClient`).

    from penstock.sdk import Client

    with Client("127.0.0.1:9092") as client:
        client.create_topic("orders", partitions=3)
        client.publish("orders", "customer-7", "two pizzas")
        for message in client.consume("orders", "kitchen", max_batch_size=100):
            print(message.partition, message.offset, message.payload)

It stands on confluent-kafka and meets the broker only on the wire, so it works with every broker that speaks Kafka's
protocol. What happens when something dies is one argument, `delivery`: see `Delivery`, and docs/sdk.md.
"""

import logging

from penstock.sdk.async_client import AsyncClient
from penstock.sdk.client import Client
from penstock.sdk.delivery import Delivery
from penstock.sdk.errors import (
    BadConfig,
    BrokerUnreachable,
    ClientClosed,
    CommitRefused,
    MessageTooLarge,
    NotAssigned,
    PartlyPublished,
    PenstockError,
    PublishFailed,
    Refused,
    TopicExists,
    UnknownTopic,
)
from penstock.sdk.messages import Batch, Headers, Message, Published

__all__ = [
    "AsyncClient",
    "BadConfig",
    "Batch",
    "BrokerUnreachable",
    "Client",
    "ClientClosed",
    "CommitRefused",
    "Delivery",
    "Headers",
    "Message",
    "MessageTooLarge",
    "NotAssigned",
    "PartlyPublished",
    "PenstockError",
    "PublishFailed",
    "Published",
    "Refused",
    "TopicExists",
    "UnknownTopic",
]

# librdkafka's own lines come here. What a caller must know arrives as an exception: without a handler they are quiet.
logging.getLogger(__name__).addHandler(logging.NullHandler())
