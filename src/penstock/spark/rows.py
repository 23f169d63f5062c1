"""Spark's rows, as Arrow brings them, turned into what a producer takes.

Columns stay Arrow's: checks, the checksum and the producer look at their buffers, and no row becomes an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.batch import NO_TIMESTAMP
from penstock.protocol.records.checksum import Blobs, Numbers, Pairs, RowHashes
from penstock.protocol.records.gathering import RowColumns
from penstock.spark.sink_errors import BadRow

_MICROS_PER_MILLI = 1_000


@dataclass(frozen=True, slots=True)
class Rows:
    """A column that is not there is None. All are of the same length, `count`."""

    count: int
    topics: pa.Array | str  # binary, never null; or the one that all rows have
    partitions: pa.Array | None  # int64
    keys: pa.Array | None  # binary or large_binary, as values
    values: pa.Array
    headers: pa.Array | None
    timestamps_ms: pa.Array | None  # int64

    @classmethod
    def of(cls, batch: pa.RecordBatch, topic: str | None) -> Rows:
        """`topic` is the option, which comes before the column. Raises BadRow."""
        names = set(batch.schema.names)
        rows = cls(
            count=batch.num_rows,
            topics=topic if topic is not None else _as_bytes(batch.column("topic")),
            partitions=batch.column("partition").cast(pa.int64()) if "partition" in names else None,
            keys=_as_bytes(batch.column("key")) if "key" in names else None,
            values=_as_bytes(batch.column("value")),
            headers=batch.column("headers") if "headers" in names else None,
            timestamps_ms=_as_millis(batch.column("timestamp")) if "timestamp" in names else None,
        )
        rows._check()
        return rows

    def _check(self) -> None:
        if not isinstance(self.topics, str) and self.topics.null_count:
            raise BadRow("a row has no topic: its column topic is null, and there is no option topic")
        lowest = None if self.partitions is None else pc.min(self.partitions).as_py()
        if lowest is not None and lowest < 0:
            raise BadRow(f"a row asks for partition {lowest}: they begin at 0, and null leaves it to the key")
        if self.timestamps_ms is not None:
            self._check_timestamps(self.timestamps_ms)
        if self.headers is not None:
            entries = self.headers.flatten()
            if entries.null_count or entries.field("key").null_count:
                raise BadRow("a row has a header that is null, or whose key is")

    def _check_timestamps(self, timestamps_ms: pa.Array) -> None:
        lowest = pc.min(timestamps_ms).as_py()
        if lowest is not None and lowest < NO_TIMESTAMP:
            raise BadRow(f"a row has a timestamp before 1970, {lowest} ms")

    def checksum(self) -> int:
        """Of which rows there are, whatever their order: see `_pure_checksum`."""
        hashes = RowHashes(self.count)
        if isinstance(self.topics, str):
            hashes.add_same(self.topics.encode())
        else:
            hashes.add_blobs(_blobs(self.topics))
        _add_numbers(hashes, self.partitions)
        if self.keys is None:
            hashes.add_same(None)
        else:
            hashes.add_blobs(_blobs(self.keys))
        hashes.add_blobs(_blobs(self.values))
        if self.headers is None:
            hashes.add_same(None)
        else:
            hashes.add_pairs(_pairs(self.headers))
        _add_numbers(hashes, self.timestamps_ms)
        return hashes.total()

    def by_topic(self) -> Iterator[tuple[str, Rows]]:
        """The rows of one topic after the other, each in their order."""
        if isinstance(self.topics, str):
            yield self.topics, self
            return
        encoded = self.topics.dictionary_encode()
        codes, names = encoded.indices, [name.decode() for name in encoded.dictionary.to_pylist()]
        if len(names) <= 1:
            yield from ((name, replace(self, topics=name)) for name in names)
            return
        order = pc.sort_indices(codes)  # stable
        start = 0
        for run in pc.value_counts(codes.take(order)).to_pylist():
            name, which = names[run["values"]], order.slice(start, run["counts"])
            yield name, self._chosen(name, len(which), lambda column, which=which: column.take(which))  # type: ignore[misc]
            start += len(which)

    def columns(self) -> RowColumns:
        return RowColumns(
            self.count,
            _blobs(self.values),
            keys=None if self.keys is None else _blobs(self.keys),
            partitions=None if self.partitions is None else _numbers(self.partitions),
            headers=None if self.headers is None else _pairs(self.headers),
            timestamps_ms=None if self.timestamps_ms is None else _numbers(self.timestamps_ms),
        )

    def slice(self, start: int, count: int) -> Rows:
        topics = self.topics if isinstance(self.topics, str) else self.topics.slice(start, count)
        return self._chosen(topics, count, lambda column: column.slice(start, count))

    def _chosen(self, topics: pa.Array | str, count: int, choose: Callable[[pa.Array], pa.Array]) -> Rows:
        columns = (self.partitions, self.keys, self.values, self.headers, self.timestamps_ms)
        return Rows(count, topics, *(None if column is None else choose(column) for column in columns))


def _as_bytes(column: pa.Array) -> pa.Array:
    """Strings are UTF-8 already: nothing is copied."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _as_millis(column: pa.Array) -> pa.Array:
    """Rounded down, also before 1970: a record without a timestamp has -1."""
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    millis = pc.divide(micros, _MICROS_PER_MILLI)
    is_rounded_up = pc.less(micros, pc.multiply(millis, _MICROS_PER_MILLI))
    return pc.subtract(millis, is_rounded_up.cast(pa.int64()))


def _add_numbers(hashes: RowHashes, column: pa.Array | None) -> None:
    if column is None:
        hashes.add_same(None)
    else:
        hashes.add_numbers(_numbers(column))


def _numbers(column: pa.Array) -> Numbers:
    validity, values = column.buffers()
    return Numbers(_bits(validity), _bytes(values), column.offset)


def _blobs(column: pa.Array) -> Blobs:
    validity, offsets, data = column.buffers()
    offset_bytes = 8 if pa.types.is_large_binary(column.type) else 4
    return Blobs(_bits(validity), _bytes(offsets), _bytes(data), column.offset, offset_bytes)


def _pairs(column: pa.Array) -> Pairs:
    validity, offsets = column.buffers()[:2]
    entries = column.values  # of the whole buffers, whatever was sliced off
    keys, values = _blobs(_as_bytes(entries.field("key"))), _blobs(_as_bytes(entries.field("value")))
    offset_bytes = 8 if pa.types.is_large_list(column.type) else 4
    return Pairs(_bits(validity), _bytes(offsets), keys, values, column.offset, offset_bytes)


def _bits(validity: pa.Buffer | None) -> memoryview | None:
    return None if validity is None else memoryview(validity)


def _bytes(buffer: pa.Buffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer)
