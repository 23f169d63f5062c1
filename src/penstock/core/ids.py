"""Names of things. Ids are types, so that a broker id cannot be passed where an epoch is meant."""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

# 16 bytes, as on the wire; printed in Kafka's way (URL-safe base64 without padding).
TopicId = NewType("TopicId", bytes)

NO_TOPIC_ID = TopicId(bytes(16))
MAX_TOPIC_NAME_LENGTH = 249


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        """The name of the partition's directory, as in Kafka."""
        return f"{self.topic}-{self.partition}"


def topic_id_to_text(topic_id: TopicId) -> str:
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> TopicId:
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes, {text!r} has {len(raw)}")
    return TopicId(raw)
