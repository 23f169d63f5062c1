"""Spark's rows, as Arrow brings them, turned into what a producer takes.

Columns stay Arrow's for as long as they can: checks and the checksum look at their buffers. Objects are made for a part
of a batch at a time, since the producer takes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.protocol.records.checksum import Blobs, Numbers, Pairs, RowHashes
from penstock.spark.sink_errors import BadRow

_PART_BYTES = 4 << 20
_MICROS_PER_MILLI = 1_000

Header = tuple[str, str | bytes | None]


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
        if self.partitions is not None:
            lowest = pc.min(self.partitions).as_py()
            if lowest is not None and lowest < 0:
                raise BadRow(f"a row asks for partition {lowest}: partitions begin at 0, and null leaves it to the key")
        if self.timestamps_ms is not None:
            lowest = pc.min(self.timestamps_ms).as_py()
            if lowest is not None and lowest <= 0:
                raise BadRow("a row has a timestamp that is not after 1970-01-01 00:00:00 UTC")
        if self.headers is not None:
            entries = self.headers.flatten()
            if entries.null_count or entries.field("key").null_count:
                raise BadRow("a row has a header that is null, or whose key is")

    def checksum(self) -> int:
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
        """The rows of one topic after the other, in their order."""
        if isinstance(self.topics, str):
            yield self.topics, self
            return
        encoded = self.topics.dictionary_encode()
        codes, names = encoded.indices, encoded.dictionary.to_pylist()
        if len(names) > 1:
            order = pc.sort_indices(codes)  # stable
            yield from self._taken(order, codes.take(order), names)
        elif names:
            yield names[0].decode(), replace(self, topics=names[0].decode())

    def _taken(self, order: pa.Array, codes: pa.Array, names: list[bytes]) -> Iterator[tuple[str, Rows]]:
        start = 0
        for run in pc.value_counts(codes):
            length, name = run["counts"].as_py(), names[run["values"].as_py()].decode()
            which = order.slice(start, length)
            yield name, self._with(name, length, lambda column, which=which: column.take(which))  # type: ignore[misc]
            start += length

    def parts(self) -> Iterator[Rows]:
        """Few enough rows at a time that their objects take little memory."""
        step = max(1, self.count * _PART_BYTES // max(self.nbytes, 1))
        if step >= self.count:
            yield self
            return
        for start in range(0, self.count, step):
            length = min(step, self.count - start)
            topics = self.topics if isinstance(self.topics, str) else self.topics.slice(start, length)
            yield self._with(topics, length, lambda column, start=start: column.slice(start, step))  # type: ignore[misc]

    def _with(self, topics: pa.Array | str, count: int, chosen: Callable[[pa.Array], pa.Array]) -> Rows:
        columns = (self.partitions, self.keys, self.values, self.headers, self.timestamps_ms)
        return Rows(count, topics, *(None if column is None else chosen(column) for column in columns))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.keys, self.values, self.headers) if column is not None)


def messages(rows: Rows) -> list[dict[str, Any]]:
    """Of rows without headers and timestamps, for `produce_batch`."""
    values = objects(rows.values)
    if rows.keys is None and rows.partitions is None:
        return [{"value": value} for value in values]
    keys = [None] * rows.count if rows.keys is None else objects(rows.keys)
    if rows.partitions is None:
        return [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    return [
        {"key": key, "value": value, "partition": partition}
        for key, value, partition in zip(keys, values, partition_numbers(rows.partitions), strict=True)
    ]


def objects(column: pa.Array) -> list[Any]:
    # Three times as fast as to_pylist.
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def partition_numbers(column: pa.Array) -> list[int]:
    return objects(column.fill_null(-1))  # which leaves it to the key


def header_lists(column: pa.Array) -> list[list[Header] | None]:
    entries = column.flatten()
    pairs = list(zip(entries.field("key").to_pylist(), objects(entries.field("value")), strict=True))
    lengths = objects(column.value_lengths().fill_null(0))
    found: list[list[Header] | None] = []
    start = 0
    for length in lengths:
        found.append(pairs[start : start + length] or None)
        start += length
    return found


def _as_bytes(column: pa.Array) -> pa.Array:
    """Strings are UTF-8 already: nothing is copied."""
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _as_millis(column: pa.Array) -> pa.Array:
    return pc.floor(pc.divide(column.cast(pa.int64()), _MICROS_PER_MILLI)).cast(pa.int64())


def _add_numbers(hashes: RowHashes, column: pa.Array | None) -> None:
    if column is None:
        hashes.add_same(None)
    else:
        validity, values = column.buffers()
        hashes.add_numbers(Numbers(_bits(validity), memoryview(values or b""), column.offset))


def _blobs(column: pa.Array) -> Blobs:
    validity, offsets, data = column.buffers()
    is_large = pa.types.is_large_binary(column.type)
    return Blobs(
        _bits(validity), memoryview(offsets or b""), memoryview(data or b""), column.offset, 8 if is_large else 4
    )


def _pairs(column: pa.Array) -> Pairs:
    validity, offsets = column.buffers()[:2]
    entries = column.values
    keys, values = _as_bytes(entries.field("key")), entries.field("value")
    is_large = pa.types.is_large_list(column.type)
    return Pairs(
        _bits(validity), memoryview(offsets or b""), _blobs(keys), _blobs(values), column.offset, 8 if is_large else 4
    )


def _bits(validity: pa.Buffer | None) -> memoryview | None:
    return None if validity is None else memoryview(validity)
