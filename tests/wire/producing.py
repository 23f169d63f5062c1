"""What tests of the producer share: rows in columns, producers, and what is in a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from penstock.core.ids import TopicPartition
from penstock.protocol.records.gathering import RowColumns
from penstock.wire.cluster import Cluster
from penstock.wire.offsets import latest
from penstock.wire.producer_settings import ProducerSettings
from penstock.wire.producing import Producer
from penstock.wire.reading import read
from tests.protocol.arrow_columns import Blob, blobs, numbers
from tests.wire.reading import COMMITTED, UNCOMMITTED, a_client, records_of


def rows(*values: Blob, partition: int | None = 0, keys: Sequence[Blob] | None = None) -> RowColumns:
    """All for one partition, unless told otherwise."""
    return RowColumns(
        len(values),
        blobs(values, (), 4),
        keys=None if keys is None else blobs(keys, (), 4),
        partitions=numbers([partition] * len(values), ()),
    )


def numbered(first: int, end: int, size: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(size) for number in range(first, end)]


@contextmanager
def a_producer(
    bootstrap: str, transactional_id: str | None = None, client: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Producer]:
    """Settings are Kafka's, with underscores for dots."""
    values = {name.replace("_", "."): str(value) for name, value in settings.items()}
    parsed = ProducerSettings.parse(values, is_transactional=transactional_id is not None)
    with (
        a_client(bootstrap, **(client or {})) as cluster,
        closing(Producer(cluster, parsed, transactional_id)) as producer,
    ):
        yield producer


def values_in(cluster: Cluster, topic: str, partition: int = 0, *, committed: bool = True) -> list[Blob]:
    isolation = COMMITTED if committed else UNCOMMITTED
    where = TopicPartition(topic, partition)
    end = latest(cluster, [where], isolation)[where]
    return [record.value for record in records_of(read(cluster, where, 0, end, isolation))]
