"""What the compiled form of compaction offers: that of `_pure_compaction`, to the letter."""

from array import array

from penstock.protocol.batch import BatchHeader, ReadableBuffer
from penstock.protocol.records._pure_compaction import FilteredRecords

class OffsetMap:
    slots: int
    limit: int
    entries: int
    def __init__(self, slots: int, limit: int, hash_key: bytes) -> None: ...
    def get(self, key: bytes) -> int: ...
    def put(self, key: bytes, offset: int) -> bool: ...

def add_batches(
    offset_map: OffsetMap, source: ReadableBuffer, start: int, end: int, from_offset: int
) -> tuple[int, int]: ...
def add_records(offset_map: OffsetMap, section: ReadableBuffer, header: BatchHeader, from_offset: int) -> bool: ...

class Rewriter:
    size: int
    max_timestamp: int
    offset_of_max_timestamp: int
    records_read: int
    records_kept: int
    def __init__(
        self,
        offset_map: OffsetMap,
        base_offset: int,
        index_interval_bytes: int,
        clean_end: int,
        now_ms: int,
        delete_retention_ms: int,
        kept_offsets: array[int],
        removable_end: int = ...,
    ) -> None: ...
    def rewrite(
        self, source: ReadableBuffer, start: int, end: int, out: bytearray | memoryview, out_at: int
    ) -> tuple[int, int, int]: ...
    def keeps_empty(self, header: BatchHeader) -> bool: ...
    def filter_records(self, section: ReadableBuffer, header: BatchHeader) -> FilteredRecords | None: ...
    def placed(self, header: BatchHeader) -> None: ...
    def indexes(self) -> tuple[bytes, bytes]: ...

def crc32c_of_both(data: bytes) -> tuple[int, int]: ...
def hash_of(hash_key: bytes, data: bytes) -> bytes: ...
