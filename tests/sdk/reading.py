"""What the tests of the SDK ask for: messages with a deadline, and a group's offsets as another client sees them."""

from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from penstock.sdk import Client, Message
from tests.testkit import BrokerProcess, eventually

DEADLINE_S = 30


def read(client: Client, topic: str, group: str, count: int, *, max_batch_size: int = 100) -> list[Message]:
    """The next messages of the group, at least `count`; they are not committed before the next `consume`."""
    messages: list[Message] = []

    def are_there() -> bool:
        if len(messages) < count:
            messages.extend(client.consume(topic, group, min(max_batch_size, count - len(messages)), wait_s=0.2))
        return len(messages) >= count

    eventually(are_there, DEADLINE_S, f"{count} messages of {topic}")
    return messages


def payloads(messages: list[Message]) -> list[str]:
    return [(message.payload or b"").decode() for message in messages]


def committed(broker: BrokerProcess, topic: str, group: str, partition: int = 0) -> int | None:
    """None: the group has committed nothing there."""
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})) as asker:
        offset: int = asker.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
    return offset if offset >= 0 else None
