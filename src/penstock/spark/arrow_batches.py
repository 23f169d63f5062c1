"""Columns of records as Arrow's record batches, which Spark takes as they are: no byte of a record is copied here.

The columns, their types and their order are those of Spark's Kafka source.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import TopicPartition
from penstock.protocol.batch import ReadableBuffer
from penstock.protocol.records.columns import Binary, Headers, Taken

_US_PER_MS = 1_000
_INT64_MAX = 2**63 - 1
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
]
_SCHEMAS = {False: pa.schema(_FIELDS), True: pa.schema([*_FIELDS, pa.field("headers", _HEADERS)])}


def record_batch(taken: Taken, partition: TopicPartition, timestamp_type: int) -> pa.RecordBatch:
    rows = taken.rows
    columns = [
        _binary(taken.keys, pa.binary()),
        _binary(taken.values, pa.binary()),
        _constant(partition.topic, pa.string(), rows),
        _constant(partition.partition, pa.int32(), rows),
        _numbers(taken.offsets, pa.int64(), rows),
        _times(taken.timestamps, rows),
        _constant(timestamp_type, pa.int32(), rows),
    ]
    if taken.headers is not None:
        columns.append(_headers(taken.headers, rows))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[taken.headers is not None])


def _binary(column: Binary, kind: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.entries, buffers)


def _numbers(column: ReadableBuffer, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(column)])


def _times(milliseconds: ReadableBuffer, rows: int) -> pa.Array:
    """Spark's are microseconds. Producers may write any 64 bits: what does not fit is the nearest that does."""
    times = _numbers(milliseconds, pa.int64(), rows)
    try:
        found = pc.multiply_checked(times, _US_PER_MS)
    except pa.ArrowInvalid:
        most = _INT64_MAX // _US_PER_MS
        found = pc.multiply(pc.max_element_wise(pc.min_element_wise(times, most), -most), _US_PER_MS)
    return found.view(pa.timestamp("us", "UTC"))


def _headers(headers: Headers, rows: int) -> pa.Array:
    entries = [_binary(headers.keys, pa.string()), _binary(headers.values, pa.binary())]
    pairs = pa.Array.from_buffers(_HEADER, headers.keys.entries, [None], children=entries)
    return pa.Array.from_buffers(_HEADERS, rows, [None, pa.py_buffer(headers.offsets)], children=[pairs])


def _constant(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """A slice of one that is kept: batches of a partition have about the same size."""
    return _repeated(value, kind, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=16)
def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)
