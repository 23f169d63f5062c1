"""Fetch of one partition from its leader, over a connection of its own, one request ahead of what is being read.

The bytes of an answer lie in one buffer, which the next answer overwrites: whoever wants a batch for longer copies it.
While it is worked on, the broker prepares the next answer and the kernel receives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.core.errors import ErrorCode
from penstock.core.ids import NO_TOPIC_ID, TopicPartition
from penstock.protocol.batch import BatchHeader, CorruptBatch, crc_is_valid, split
from penstock.protocol.messages.records import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from penstock.wire.cluster import Leader
from penstock.wire.connection import Asked, Connection, ReceiveBuffer
from penstock.wire.errors import CorruptRecords
from penstock.wire.offsets import Isolation

_TOPIC_IDS_SINCE = 13


class Batch(NamedTuple):
    position: int
    header: BatchHeader


class Fetched(NamedTuple):
    """`end` is where what can be read ends now, or None when the broker did not say: it has to be asked again then."""

    error_code: int
    end: int | None
    aborted: list[AbortedTransaction]
    records: memoryview

    def batches(self, partition: TopicPartition) -> Iterator[Batch]:
        """The whole ones. Raises CorruptRecords."""
        try:
            for position, header in split(self.records):
                if not crc_is_valid(self.records, position, header):
                    raise CorruptRecords(f"{partition}: the batch at offset {header.base_offset} fails its CRC")
                yield Batch(position, header)
        except CorruptBatch as error:
            raise CorruptRecords(f"{partition}: the broker sent what cannot be read: {error}") from None


class Fetcher:
    """Everything raises NoAnswer."""

    def __init__(
        self,
        connection: Connection,
        partition: TopicPartition,
        leader: Leader,
        isolation: Isolation,
        *,
        fetch_bytes: int,
        wait_ms: int,
        buffer: ReceiveBuffer,
    ) -> None:
        self._connection = connection
        self._partition = partition
        self._leader = leader
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._wait_ms = wait_ms
        self._buffer = buffer
        self._asked: Asked[FetchResponse] | None = None

    def ask_for(self, offset: int) -> None:
        """Sends the request; nothing else may be under way."""
        wanted = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=self._leader.epoch,
            fetch_offset=offset,
            partition_max_bytes=self._fetch_bytes,
        )
        topic = FetchTopic(topic=self._partition.topic, topic_id=self._leader.topic_id, partitions=[wanted])
        request = FetchRequest(
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation,
            topics=[topic],
        )
        at_most = _TOPIC_IDS_SINCE - 1 if self._leader.topic_id == NO_TOPIC_ID else None
        assert self._asked is None
        self._asked = self._connection.send(request, FetchResponse, at_most=at_most)

    @property
    def has_asked(self) -> bool:
        return self._asked is not None

    def received(self) -> Fetched:
        assert self._asked is not None
        asked, self._asked = self._asked, None
        answer = self._connection.receive(asked, self._buffer)
        rows = [row for topic in answer.responses for row in topic.partitions]
        if answer.error_code or not rows:  # a broker whose quota is used up answers without the partition
            return Fetched(answer.error_code, None, [], memoryview(b""))
        (row,) = rows
        records = row.records
        assert records is None or isinstance(records, memoryview | bytes)
        return Fetched(
            row.error_code,
            self._end(row.high_watermark, row.last_stable_offset) if row.error_code == ErrorCode.NONE else None,
            row.aborted_transactions or [],
            memoryview(records or b""),
        )

    def _end(self, high_watermark: int, last_stable_offset: int) -> int | None:
        end = last_stable_offset if self._isolation is Isolation.READ_COMMITTED else high_watermark
        return end if end >= 0 else None

    def close(self) -> None:
        self._connection.close()
