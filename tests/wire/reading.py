"""What tests of the small client share: settings for a broker, and columns turned back into records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from penstock.core.ids import TopicPartition
from penstock.protocol.records import StoredRecord
from penstock.protocol.records.columns import Binary, Taken
from penstock.wire.cluster import Cluster
from penstock.wire.offsets import Isolation
from penstock.wire.reading import read
from penstock.wire.settings import ClientSettings

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED


@contextmanager
def a_client(bootstrap: str, **settings: Any) -> Iterator[Cluster]:
    """Settings are Kafka's, with underscores for dots."""
    values = {name.replace("_", "."): value for name, value in settings.items()}
    with closing(Cluster(ClientSettings.parse({"bootstrap.servers": bootstrap, **values}))) as cluster:
        yield cluster


def entries_of(column: Binary) -> list[bytes | None]:
    ends = array("i", bytes(column.offsets))
    data = memoryview(column.data)
    validity = column.validity
    return [
        bytes(data[ends[at] : ends[at + 1]])
        if validity is None or memoryview(validity)[at // 8] >> at % 8 & 1
        else None
        for at in range(len(ends) - 1)
    ]


def records_of(parts: Iterable[Taken]) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    for part in parts:
        headers: list[list[tuple[str, bytes | None]]] = [[] for _ in range(part.rows)]
        if part.headers is not None:
            ends = array("i", bytes(part.headers.offsets))
            pairs = [
                ((key or b"").decode(), value)
                for key, value in zip(entries_of(part.headers.keys), entries_of(part.headers.values), strict=True)
            ]
            headers = [pairs[ends[at] : ends[at + 1]] for at in range(part.rows)]
        found += map(
            StoredRecord,
            array("q", bytes(part.offsets)),
            array("q", bytes(part.timestamps)),
            entries_of(part.keys),
            entries_of(part.values),
            headers,
        )
    return found


def offsets_and_values(cluster: Cluster, topic: str, start: int, end: int, **options: Any) -> dict[int, bytes | None]:
    """Of the first partition; fails when an offset comes twice, or before one that is lower."""
    found = records_of(read(cluster, TopicPartition(topic, 0), start, end, **options))
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    return {record.offset: record.value for record in found}
