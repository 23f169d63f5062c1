"""A connection to a leader with Produce requests under way: answers come in the order of the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import Codec
from penstock.protocol.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.connection import Asked, Connection
from penstock.wire.lanes import Sealed

_ALL_IN_SYNC = -1
# v12 adds partitions to a transaction by itself, and goes with EndTxn v5 only (KIP-890); v13 has ids for names.
_NEWEST = 11
_ZSTD_SINCE = 7


class UnderWay(NamedTuple):
    asked: Asked[ProduceResponse]
    batches: Sequence[Sealed]
    sent_at_s: float


class Line:
    """Everything raises NoAnswer; whoever made it then gives up what is under way, and the line with it."""

    def __init__(self, connection: Connection, transactional_id: str | None, codec: Codec, timeout_s: float) -> None:
        self.connection = connection
        self.under_way: deque[UnderWay] = deque()
        self._transactional_id = transactional_id
        self._needed = _ZSTD_SINCE if codec is Codec.ZSTD else 0
        self._timeout_ms = int(timeout_s * 1_000)

    def send(self, batches: Sequence[Sealed], now_s: float) -> None:
        """One batch of each partition at most."""
        topics: dict[str, list[PartitionProduceData]] = {}
        for sealed in batches:
            topic, partition = sealed.lane.partition
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=sealed.batch))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=_ALL_IN_SYNC,
            timeout_ms=self._timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()],
        )
        asked = self.connection.send(request, ProduceResponse, needed=self._needed, at_most=_NEWEST)
        self.under_way.append(UnderWay(asked, batches, now_s))

    def receive(self) -> tuple[Sequence[Sealed], dict[TopicPartition, PartitionProduceResponse]]:
        """The batches of the oldest request, and what became of them."""
        answer = self.connection.receive(self.under_way[0].asked)
        batches = self.under_way.popleft().batches
        rows = {
            TopicPartition(topic.name, row.index): row
            for topic in answer.responses
            for row in topic.partition_responses
        }
        return batches, rows

    def close(self) -> None:
        self.connection.close()
