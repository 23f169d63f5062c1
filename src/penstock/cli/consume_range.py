"""Which offsets `penstock consume` reads, and the reading of them.

The end of a range is fixed before the first record is read: while others produce, a command without --follow ends.
Offsets have gaps (transactions, compaction), so a partition is at its end when the broker says so or the end is passed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING

from penstock.cli.client import fail, reason
from penstock.cli.consume_format import OutputRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_BATCH_RECORDS = 1_000
_POLL_S = 0.2
_STEP_BACK = 4


class StartKind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin; `number` is the offset, the time in epoch milliseconds, or how many."""

    kind: StartKind
    number: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `start` to `end` (not included; None: for ever) of a partition whose log starts at `log_start_offset`."""

    partition: int
    log_start_offset: int
    start: int
    end: int | None

    @property
    def is_empty(self) -> bool:
        return self.end is not None and self.start >= self.end


def find_range(client: Consumer, topic: str, partition: int, start: Start, timeout: float) -> Range:
    """The range from `start` to the end as it is now."""
    from confluent_kafka import KafkaException, TopicPartition

    try:
        low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
        if start.kind is StartKind.TIMESTAMP:
            asked = TopicPartition(topic, partition, start.number)
            found = client.offsets_for_times([asked], timeout=timeout)[0].offset
            return Range(partition, low, high if found < 0 else found, high)
    except KafkaException as refused:
        fail(f"partition {partition}: {reason(refused.args[0])}")
    if start.kind is StartKind.OFFSET:
        return Range(partition, low, _inside(start.number, partition, low, high), high)
    return Range(partition, low, low if start.kind is StartKind.BEGINNING else high, high)


def _inside(offset: int, partition: int, low: int, high: int) -> int:
    inside = min(max(offset, low), high)
    if inside != offset:
        there = "begins" if offset < low else "ends"
        print(f"penstock: partition {partition} {there} at offset {inside}, not {offset}", file=sys.stderr)
    return inside


class Reader:
    """Reads ranges of one topic; gives up when the broker says nothing for `timeout` seconds."""

    def __init__(self, client: Consumer, topic: str, timeout: float) -> None:
        self._client = client
        self._topic = topic
        self._timeout = timeout

    def read(self, ranges: list[Range]) -> Iterator[list[OutputRecord]]:
        """Records as they come, in order within a partition, until every range is at its end."""
        from confluent_kafka import TopicPartition

        unread = {wanted.partition: wanted for wanted in ranges if not wanted.is_empty}
        self._client.assign([TopicPartition(self._topic, wanted.partition, wanted.start) for wanted in unread.values()])
        heard = time.monotonic()
        while unread:
            messages = self._poll()
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._timeout and any(wanted.end is not None for wanted in unread.values()):
                fail(f"the broker has sent nothing for {self._timeout:g} s")
            yield [record for message in messages if (record := self._accept(message, unread)) is not None]

    def _poll(self) -> list[Message]:
        """What is there, as soon as something is: `consume` alone would wait for a full batch."""
        first = self._client.poll(_POLL_S)
        return [] if first is None else [first, *self._client.consume(_BATCH_RECORDS, timeout=0)]

    def _accept(self, message: Message, unread: dict[int, Range]) -> OutputRecord | None:
        """The record, if it is wanted; takes a partition that is at its end out of `unread`."""
        partition, offset = message.partition(), message.offset()
        error = message.error()
        wanted = unread.get(partition) if partition is not None else None
        if error is not None:
            self._accept_error(message, unread)
            return None
        if wanted is None or offset is None:
            return None
        if wanted.end is not None and offset >= wanted.end - 1:
            self._finish(wanted, unread)
        return to_record(message) if wanted.end is None or offset < wanted.end else None

    def _accept_error(self, message: Message, unread: dict[int, Range]) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        assert error is not None
        if error.code() != KafkaError._PARTITION_EOF:
            fail(f"partition {message.partition()}: {reason(error)}")
        wanted = unread.get(message.partition() or 0)
        if wanted is not None and wanted.end is not None:
            self._finish(wanted, unread)

    def _finish(self, wanted: Range, unread: dict[int, Range]) -> None:
        from confluent_kafka import TopicPartition

        del unread[wanted.partition]
        self._client.incremental_unassign([TopicPartition(self._topic, wanted.partition)])

    def last(self, ranges: list[Range], count: int) -> list[OutputRecord]:
        """The last `count` records before the ends of the ranges: of all partitions together, by timestamp.

        Starts `count` offsets before each end, and further back where gaps leave fewer records than that.
        """
        found: dict[int, deque[OutputRecord]] = {}
        back = count
        unread = ranges
        while unread:
            tails = [replace(wanted, start=max(wanted.log_start_offset, (wanted.end or 0) - back)) for wanted in unread]
            found |= {wanted.partition: deque(maxlen=count) for wanted in tails}
            for record in chain.from_iterable(self.read(tails)):
                found[record.partition].append(record)
            unread = [
                wanted
                for wanted in tails
                if len(found[wanted.partition]) < count and wanted.start > wanted.log_start_offset
            ]
            back *= _STEP_BACK
        return sorted(chain.from_iterable(found.values()), key=lambda record: record.timestamp_ms)[-count:]


def to_record(message: Message) -> OutputRecord:
    return OutputRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
    )


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    """confluent-kafka allows more for headers than it ever returns: a list of names and bytes."""
    headers = message.headers() or []
    assert isinstance(headers, list)
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in headers)
