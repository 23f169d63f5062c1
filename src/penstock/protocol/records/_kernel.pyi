"""What the compiled kernel offers: the functions of `_pure`, to the letter, and those of the usual Produce request."""

from array import array
from collections.abc import Sequence

from penstock.protocol.batch import BatchHeader, ReadableBuffer
from penstock.protocol.records._pure import Record, RecordsInfo

def validate(records: ReadableBuffer, count: int, base_timestamp: int) -> RecordsInfo: ...
def spans(records: ReadableBuffer, count: int) -> array[int]: ...
def headers_of(records: ReadableBuffer, start: int, count: int) -> list[tuple[str, bytes | None]]: ...
def find_timestamp(
    records: ReadableBuffer, count: int, base_offset: int, base_timestamp: int, target_ms: int
) -> tuple[int, int] | None: ...
def encode_records(records: Sequence[Record], base_timestamp: int) -> bytearray: ...
def usual_produce(frame: memoryview) -> tuple[int, int, int, bytes, int, memoryview, BatchHeader] | None: ...
def usual_response(
    correlation_id: int,
    topic: bytes,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes: ...
