"""What tests of the source share: a topic that can be filled, cut, grown and made anew, and readers of it.

Readers run here as they run in Spark's Python processes, so most tests need no session.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter, InputPartition

from penstock.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from penstock.spark.batch_reader import BatchReader
from penstock.spark.reading import batch_reader, stream_reader
from penstock.spark.reading_task import RangeOfPartition
from penstock.spark.stream_reader import StreamReader
from tests.testkit import BrokerProcess, RawClient, eventually
from tests.testkit.asking import a_batch, create_usable_topic, fetch, produce

Row = dict[str, Any]
Ranges = list[tuple[int, int, int]]


class Topic:
    def __init__(self, broker: BrokerProcess, raw: RawClient, name: str, partitions: int = 1, **configs: Any) -> None:
        self.broker = broker
        self.raw = raw
        self.name = name
        self._configs = {"retention_ms": -1, **configs}
        create_usable_topic(raw, name, partitions, **self._configs)

    # What it has

    def write(self, *values: bytes, partition: int = 0, **options: Any) -> None:
        """One batch; `options` are those of `a_batch`."""
        self.write_batch(a_batch(*values, **options), partition)

    def write_batch(self, batch: bytes | bytearray, partition: int = 0) -> None:
        answer = produce(self.raw, self.name, batch, partition=partition)
        assert answer.error_code == 0, answer

    def delete_before(self, offset: int, partition: int = 0) -> None:
        row = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=self.name, partitions=[row])], timeout_ms=10_000)
        answer = self.raw.exchange(request, 2, DeleteRecordsResponse)
        assert answer.topics[0].partitions[0].error_code == 0

    def grow(self, partitions: int) -> None:
        wanted = CreatePartitionsTopic(name=self.name, count=partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000)
        (result,) = self.raw.exchange(request, 3, CreatePartitionsResponse).results
        assert result.error_code == 0, result
        eventually(lambda: fetch(self.raw, self.name, partition=partitions - 1).error_code == 0)

    def delete(self) -> None:
        request = DeleteTopicsRequest(topic_names=[self.name], timeout_ms=10_000)
        assert self.raw.exchange(request, 5, DeleteTopicsResponse).responses[0].error_code == 0

    def create_again(self, partitions: int = 1) -> None:
        self.delete()

        def created() -> bool:
            create_usable_topic(self.raw, self.name, partitions, **self._configs)
            return True

        eventually(created, 30)

    # Who reads it

    def options(self, **options: object) -> dict[str, str]:
        """Dots of names are underscores here; what is None is left out."""
        given = {"kafka_bootstrap_servers": self.broker.bootstrap, "subscribe": self.name, **options}
        return {name.replace("_", "."): _text(value) for name, value in given.items() if value is not None}

    def offsets(self, *offsets: int) -> str:
        """As an option has them, of partitions 0, 1 and so on."""
        return json.dumps({self.name: {str(number): offset for number, offset in enumerate(offsets)}})

    def batch_reader(self, **options: object) -> BatchReader:
        reader = batch_reader(self.options(**options))
        assert isinstance(reader, BatchReader)
        return reader

    def stream_reader(self, **options: object) -> StreamReader:
        reader = stream_reader(self.options(**options))
        assert isinstance(reader, StreamReader)
        return reader

    def read(self, **options: object) -> list[Row]:
        reader = self.batch_reader(**options)
        return rows_of(reader, reader.partitions())

    def values(self, **options: object) -> list[bytes | None]:
        return [row["value"] for row in self.read(**options)]

    def ranges(self, filters: Iterable[Filter] = (), **options: object) -> Ranges:
        """The tasks of a batch query: partition, start and end."""
        reader = self.batch_reader(**options)
        reader.pushFilters(list(filters))
        return ranges_of(reader.partitions())


def rows_of(reader: BatchReader | StreamReader, tasks: Iterable[InputPartition]) -> list[Row]:
    batches = [batch for task in tasks for batch in reader.read(task)]
    return list(pa.Table.from_batches(batches).to_pylist()) if batches else []


def ranges_of(tasks: Iterable[InputPartition]) -> Ranges:
    found = []
    for task in tasks:
        assert isinstance(task, RangeOfPartition)
        found.append((task.partition.partition, task.start, task.end))
    return found


def topics_of(tasks: Iterable[InputPartition]) -> set[str]:
    return {task.partition.topic for task in tasks if isinstance(task, RangeOfPartition)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
